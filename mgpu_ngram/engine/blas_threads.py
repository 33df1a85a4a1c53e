"""One thread for BLAS while sentences are searched in this process.

The products of a step are small, and BLAS threads wait for each other: 10 times the CPU time on a busy machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread in the whole process. Does nothing inside another such block, also of another thread."""
    from threadpoolctl import threadpool_limits

    if not _lock.acquire(blocking=False):
        yield
        return
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _lock.release()
