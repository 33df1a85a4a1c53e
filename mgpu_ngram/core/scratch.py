"""Temporary folders that do not outlive their process for long, even when it is killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "mgpu-ngram-"


def scratch_folder() -> str:
    """A new temporary folder, named after this process. Those of processes that are gone are removed first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = re.fullmatch(rf"{PREFIX}(\d+)-\w+", folder.name)
        if owner and not is_running(int(owner[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def is_running(pid: int) -> bool:
    """Whether this host has a process of that number, which has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it is another's
        return True
