"""How much host memory a process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Available memory of the host, or what a container's limit leaves of it."""
    free = psutil.virtual_memory().available
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return free
    return min(free, max(0, limit - used))
