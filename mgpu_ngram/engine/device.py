"""The device an engine function works on, and the blocks of a chunk brought to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.memory import free_host_bytes
from mgpu_ngram.core.reading import Block, read_blocks

RING_SLOTS = 3  # one block being read, one being copied, one being worked on


def synchronize(device: str) -> None:
    """Wait until the GPU has done what was asked of it; nothing to wait for on a CPU."""
    if device == "gpu":
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def to_device(array: Any, device: str) -> Any:
    """`array` on the device: NumPy as it is, or a CuPy copy."""
    if device == "cpu":
        return array
    import cupy

    return cupy.asarray(array)


def free_bytes(device: str) -> int:
    """Memory that a task may use now: free device memory with CuPy's cached blocks, or free host memory."""
    if device == "gpu":
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())
    return free_host_bytes()


@dataclass
class Stopwatch:
    """Seconds by stage. `lap` charges the time since the last lap to a stage."""

    device: str
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def add_seconds(*parts: dict[str, float]) -> dict[str, float]:
    """Sum of several stages-to-seconds tables."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, s in part.items():
            total[stage] = total.get(stage, 0.0) + s
    return total


def device_blocks(
    chunk: Chunk, unit: str, block_bytes: int, halo: int, device: str, threads: int, checksums: list | None
) -> Iterator[tuple[Block, Any]]:
    """Yield each block of a chunk and its bytes on the device. The bytes are the caller's until the next one.

    On a GPU a thread reads ahead into pinned memory and copies on a stream of its own, so reading,
    copying and the caller's kernels overlap.
    """
    if device == "cpu":
        for block in read_blocks(chunk, unit, block_bytes, halo, None, threads, checksums):
            yield block, block.data
        return
    ring = _idle_ring()
    try:
        yield from ring.run(lambda allocate: read_blocks(chunk, unit, block_bytes, halo, allocate, threads, checksums))
    finally:
        _idle_rings.append(ring)


class _Ring:
    """Pinned and device buffers that blocks pass through; one chunk at a time, kept for the life of the process."""

    def __init__(self) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.host: list[Any] = [None] * RING_SLOTS
        self.device: list[Any] = [None] * RING_SLOTS
        self.id = cupy.cuda.Device().id

    def pinned(self, slot: int, nbytes: int) -> np.ndarray:
        """The slot's pinned buffer, of at least `nbytes`."""
        import cupyx

        if self.host[slot] is None or len(self.host[slot]) < nbytes:
            self.host[slot] = cupyx.empty_pinned(nbytes, np.uint8)
        return self.host[slot][:nbytes]

    def run(self, read: Any) -> Iterator[tuple[Block, Any]]:
        import cupy

        filled: queue.Queue = queue.Queue()
        free: queue.Queue = queue.Queue()
        for slot in range(RING_SLOTS):
            free.put((slot, None))
        stop = threading.Event()

        def fill() -> None:
            try:
                cupy.cuda.Device(self.id).use()
                slot = 0
                blocks = read(lambda nbytes: self.pinned(slot, nbytes))
                while not stop.is_set():
                    slot, done = free.get()
                    if done is not None:
                        done.synchronize()  # the kernels that still read this slot's device buffer
                    block = next(blocks, None)
                    if block is None:
                        break
                    n = len(block.data)
                    with self.stream:
                        if self.device[slot] is None or len(self.device[slot]) < n:
                            self.device[slot] = cupy.empty(n, np.uint8)
                        self.device[slot][:n].set(block.data, stream=self.stream)
                        copied = self.stream.record()
                    filled.put((slot, block, self.device[slot][:n], copied))
                filled.put(None)
            except BaseException as error:  # handed to the consumer, which raises it
                filled.put(error)

        reader = threading.Thread(target=fill, daemon=True)
        reader.start()
        try:
            while (item := filled.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                slot, block, data, copied = item
                stream = cupy.cuda.get_current_stream()
                stream.wait_event(copied)
                yield block, data
                free.put((slot, stream.record()))
        finally:
            stop.set()
            free.put((0, None))
            reader.join()


_idle_rings: list[_Ring] = []  # a task in another thread, or one that failed and is not yet collected, holds its own


def _idle_ring() -> _Ring:
    import cupy

    device = cupy.cuda.Device().id
    for ring in list(_idle_rings):
        if ring.id == device:
            with suppress(ValueError):  # another thread was faster
                _idle_rings.remove(ring)
                return ring
    return _Ring()


def out_of_memory(error: BaseException) -> bool:
    """True for out-of-memory errors of Python, of CuPy's pool and of CUDA itself (pinned memory)."""
    named = type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error)
    return named or isinstance(error, MemoryError)


@contextmanager
def memory_guard(doing: str, device: str) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that says what was being done and the way out."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        place = "device" if device == "gpu" else "host"
        raise RunError(
            f"out of {place} memory while {doing} ({' '.join(str(error).split()) or 'no size given'}; "
            f"{free_bytes(device):,} bytes are free); use smaller chunks (chunk_bytes), a lower order or fewer workers"
        ) from None
