"""Folders of compiled kernels in the user's cache: no other user can write them."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


@functools.cache
def user_folder(name: str) -> Path | None:
    """Return a folder in the user's cache, else a private one in the temporary directory, else None.

    name  name of the folder in mgpu_ngram
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    if os.path.isabs(home) and is_writable(Path(home, PACKAGE, name)):
        return Path(home, PACKAGE, name)
    try:
        private = Path(tempfile.gettempdir(), f"{PACKAGE}-cache-{user}")
    except OSError:  # no temporary directory can be written
        return None
    return private / name if _is_private(private) and is_writable(private / name) else None


@functools.cache
def cupy_folder() -> Path:
    """Return the folder in which CuPy keeps compiled kernels: ours if its own is not writable.

    Call this before CuPy is imported: its import reads CUPY_CACHE_DIR, and fails if the folder cannot be made.
    """
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path("~/.cupy/kernel_cache").expanduser())
    if not is_writable(folder) and (ours := user_folder("cupy")):
        os.environ["CUPY_CACHE_DIR"] = str(ours)
        return ours
    return folder


def is_writable(folder: Path) -> bool:
    """Make a folder, and return whether files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _is_private(folder: Path) -> bool:
    """Make a folder that only this user can write: compiled code of others must not be run."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
