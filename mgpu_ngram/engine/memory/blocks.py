"""Copy the blocks of a chunk to the device while the previous block is processed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import BlockChecksums, TextBlock, read_blocks
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.dispatch import pinned_buffer

RING_SLOTS = 3  # one block being read, one being copied, one being processed


def device_blocks(
    chunk: Chunk,
    unit: str,
    block_bytes: int,
    halo: int,
    device: str,
    threads: int,
    checksums: list[PartCrc] | None,
    watch: Stopwatch,
) -> Iterator[tuple[TextBlock, Any]]:
    """Yield each block of a chunk and its bytes on the device. The bytes are valid until the next block.

    On a GPU a thread reads ahead into pinned memory and copies on its own stream, so reading, copying and
    the caller's kernels overlap. Time that the caller still waits is charged to `read` and `copy`. The GPU
    computes the checksums of plain sources, which would halve the speed of the reading threads.
    """
    if device == "cpu":
        for block in read_blocks(chunk, unit, block_bytes, halo, None, threads, checksums):
            watch.lap("read")
            yield block, block.data
        watch.lap("read")
        return
    ring = _idle_ring(block_bytes)
    read = lambda allocate: read_blocks(chunk, unit, block_bytes, halo, allocate, threads, checksums, False)  # noqa: E731
    checked: list[BlockChecksums] = []
    check = None if checksums is None else lambda block, data: checked.append(BlockChecksums.of(block, data, chunk))
    for block, data, busy in ring.run(read, check):
        watch.lap_shared(busy)
        yield block, data
    if checksums is not None:
        checksums.extend(row for block_checksums in checked for row in block_checksums.rows())
    # A ring is reused only after a complete pass: after an error, its stream may be collected before this generator.
    _idle_rings.append(ring)


class _Ring:
    """Pinned and device buffers for the blocks of one chunk at a time; kept for the life of the process."""

    def __init__(self) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.host: list[Any] = [None] * RING_SLOTS
        self.device: list[Any] = [None] * RING_SLOTS
        self.id = cupy.cuda.Device().id
        self.done: Any = None  # event behind the kernels that use the last chunk's blocks

    def pinned(self, slot: int, nbytes: int) -> np.ndarray:
        """Return the slot's pinned buffer, of at least `nbytes`."""
        if self.host[slot] is None or len(self.host[slot]) < nbytes:
            self.host[slot] = pinned_buffer(nbytes)
        return self.host[slot][:nbytes]

    def run(
        self, read: Any, check: Callable[[TextBlock, Any], None] | None
    ) -> Iterator[tuple[TextBlock, Any, dict[str, float]]]:
        """Yield (block, bytes on the device, seconds of reading and copying so far).

        check  called with each block and its bytes in the reading thread, on the stream that copies them
        """
        import cupy

        filled: queue.Queue[Any] = queue.Queue()
        free: queue.Queue[Any] = queue.Queue()
        for slot in range(RING_SLOTS):
            free.put((slot, self.done))
        stop = threading.Event()
        busy = {"read": 0.0, "copy": 0.0}

        def fill() -> None:
            try:
                cupy.cuda.Device(self.id).use()
                slot = 0
                blocks = read(lambda nbytes: self.pinned(slot, nbytes))
                while not stop.is_set():
                    slot, done = free.get()
                    if done is not None:
                        done.synchronize()  # waits for kernels that still use this slot's device buffer
                    start = time.perf_counter()
                    block = next(blocks, None)
                    busy["read"] += time.perf_counter() - start
                    if block is None:
                        break
                    n = len(block.data)
                    if self.device[slot] is None or len(self.device[slot]) < n:
                        self.device[slot] = _outside_pool(n)
                    with self.stream:
                        begun = self.stream.record(cupy.cuda.Event())
                        self.device[slot][:n].set(block.data, stream=self.stream)
                        copied = self.stream.record(cupy.cuda.Event())
                        if check:
                            check(block, self.device[slot][:n])
                        ready = self.stream.record()
                    filled.put((slot, block, self.device[slot][:n], begun, copied, ready))
                filled.put(None)
            except BaseException as error:  # the consumer raises it
                filled.put(error)

        reader = threading.Thread(target=fill, daemon=True)
        reader.start()
        try:
            while (item := filled.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                slot, block, data, begun, copied, ready = item
                ready.synchronize()
                busy["copy"] += cupy.cuda.get_elapsed_time(begun, copied) / 1000
                yield block, data, busy
                free.put((slot, cupy.cuda.get_current_stream().record()))
            self.done = cupy.cuda.get_current_stream().record()
        finally:
            stop.set()
            free.put((0, None))
            reader.join()


def _outside_pool(nbytes: int) -> Any:
    """Return a device array outside CuPy's pool: the pool may be full, and it reuses memory across streams."""
    import cupy

    return cupy.ndarray(nbytes, np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0))


_idle_rings: list[_Ring] = []  # rings not in use; a running or failed, not yet collected task holds its own


def _idle_ring(block_bytes: int) -> _Ring:
    """Return a free ring. If its buffers are much larger than needed, frees them first."""
    import cupy

    device = cupy.cuda.Device().id
    for ring in list(_idle_rings):
        if ring.id == device:
            with suppress(ValueError):  # another thread was faster
                _idle_rings.remove(ring)
                if all(buffer is None or len(buffer) <= 2 * block_bytes for buffer in ring.device):
                    return ring
    return _Ring()
