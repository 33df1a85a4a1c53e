"""Freed memory that malloc keeps for later arrays."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # options of mallopt (malloc.h)
MIN_REUSED_BYTES, MAX_REUSED_BYTES = 1 << 20, 64 << 20
REUSED_SHARE, KEPT_SHARE = 1 / 64, 1 / 16  # shares of the memory limit


def keep_freed_memory(host_bytes: float = math.inf) -> None:
    """Keep freed arrays of host memory for later arrays of all threads, because new pages cost the system time.

    host_bytes  limit of this process's memory. Arrays of more than `REUSED_SHARE` of it go back to the system at once,
                and free bytes at the end of the heap from `KEPT_SHARE` on
    """
    reused = max(MIN_REUSED_BYTES, min(MAX_REUSED_BYTES, REUSED_SHARE * host_bytes))
    kept = min((1 << 31) - 1, KEPT_SHARE * host_bytes)
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, int(reused))
        libc.mallopt(M_TRIM_THRESHOLD, int(kept))
        libc.malloc_trim(0)
