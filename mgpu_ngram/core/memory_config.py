"""Memory limits of a run, and the free memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes

CGROUP = Path("/sys/fs/cgroup")
AUTO_DEVICE_SHARE = 0.9  # default share of the free memory; the rest is for CUDA and other users
AUTO_HOST_SHARE = 0.5
# Least memory of a budget: one row group per file being written, and the working buffers of a task.
MIN_BYTES = {"device_bytes": 256 << 20, "host_bytes": 64 << 20}


@dataclass(frozen=True)
class MemoryConfig:
    """Memory that a run may use; the YAML section `memory`."""

    device_bytes: Bytes | None = None  # memory limit for each GPU; auto: 0.9 of the memory that is free when the run
    # starts
    host_bytes: Bytes | None = None  # memory limit for each host, all its workers together; auto: half of the free
    # memory
    spill_dir: str | None = None  # folder for spilled runs, which all hosts must see; auto: beside the output

    def __post_init__(self) -> None:
        for name, least in MIN_BYTES.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value:,} but must be at least {least:,}")


def free_host_bytes() -> int:
    """Return the available memory of the host, or the remainder of a container's limit."""
    free = _available_bytes()
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return free
    return min(free, max(0, limit - used))


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # no Linux
        import psutil

        return int(psutil.virtual_memory().available)
