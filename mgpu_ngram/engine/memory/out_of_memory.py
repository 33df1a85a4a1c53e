"""Tell that memory ran out, and try again with less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.memory.device import free_bytes

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """Return whether it is an out-of-memory error of Python, of CuPy's pool or of CUDA itself (pinned memory)."""
    named = type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error)
    return named or isinstance(error, MemoryError)


def on_device_or_host(fn: Callable[[str], T], device: str, make_room: Callable[[], None] | None = None) -> T:
    """Return fn(device), or fn("cpu") when the device runs out of memory; other errors are raised.

    make_room  frees memory of the device; fn(device) is then tried once more before fn("cpu")
    """
    try:
        return fn(device)
    except Exception as error:
        if device == "cpu" or not out_of_memory(error):
            raise
    # Not in the except block: there the error keeps arrays of the failed attempt alive.
    if make_room is None:
        return fn("cpu")
    make_room()
    return on_device_or_host(fn, device)


def on_device_or_none(fn: Callable[[str], T], device: str, make_room: Callable[[], None] | None = None) -> T | None:
    """Return fn(device), or None when the device runs out of memory; other errors are raised. `make_room` as above."""
    try:
        return fn(device)
    except Exception as error:
        if not out_of_memory(error):
            raise
    if make_room is None:
        return None
    make_room()
    return on_device_or_none(fn, device)


@contextmanager
def memory_guard(
    doing: str, device: str, way_out: str = "use smaller chunks (chunk_bytes), a lower order or fewer workers"
) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the activity and the way out."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        place = "device" if device == "gpu" else "host"
        raise RunError(
            f"out of {place} memory while {doing} ({' '.join(str(error).split()) or 'no size given'}; "
            f"{free_bytes(device):,} bytes are free); {way_out}"
        ) from None
