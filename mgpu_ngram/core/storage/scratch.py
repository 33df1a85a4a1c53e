"""Temporary folders that are removed soon after their process ends, even if it is killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

SCRATCH_PREFIX = "mgpu-ngram-"


def scratch_folder(parent: str | Path | None = None) -> str:
    """Create a temporary folder named after this process, in the system's folder or in `parent`. First removes those of
    dead processes there.
    """
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*-*"):
        owner = re.fullmatch(rf"{SCRATCH_PREFIX}(\d+)-\w+", folder.name)
        if owner and not is_running(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=parent)


def is_running(pid: int) -> bool:
    """Return whether this host runs a process of that id."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it belongs to another user
        return True
