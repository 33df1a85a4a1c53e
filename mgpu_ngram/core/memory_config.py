"""How much memory there is, and how much of it a run may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes

CGROUP = Path("/sys/fs/cgroup")
# Of a budget: one row group of each file being written, and what a task works in with its buffers.
MIN_BYTES = {"device_bytes": 256 << 20, "host_bytes": 64 << 20}


@dataclass(frozen=True)
class MemoryConfig:
    """What a run may take; the YAML's section `memory`."""

    device_bytes: Bytes | None = None  # of each GPU; auto: nine tenths of what is free when the run starts
    host_bytes: Bytes | None = None  # of each host, all its workers together; auto: half of what is free
    spill_dir: str | None = None  # where sorted runs go that do not fit; auto: beside the output. All hosts must see it

    def __post_init__(self) -> None:
        for name, least in MIN_BYTES.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value:,} but must be at least {least:,}")


def free_host_bytes() -> int:
    """Available memory of the host, or what a container's limit leaves of it."""
    free = psutil.virtual_memory().available
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return free
    return min(free, max(0, limit - used))
