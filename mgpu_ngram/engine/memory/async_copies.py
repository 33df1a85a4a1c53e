"""Copy from a device to the host: whole arrays asynchronously, and parts of arrays in the threads that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from mgpu_ngram.engine.memory.cuda_graphs import rounded_up
from mgpu_ngram.kernels.dispatch import on_gpu, pinned_buffer

ALIGNMENT = 16  # bytes
SIZES_PER_OCTAVE = 4  # sizes of pinned buffers between powers of 2; buffers are kept by size


class HostCopies:
    """Copies of arrays of one device to the host, in progress: their values at this point of the current stream.

    arrays  arrays or None; arrays of the host are not copied
    """

    def __init__(self, arrays: Sequence[Any]):
        self._arrays, self._event = list(arrays), None
        on_device = [i for i, array in enumerate(arrays) if on_gpu(array)]
        if not on_device:
            return
        import cupy

        starts = np.cumsum([0, *(-(-arrays[i].nbytes // ALIGNMENT) * ALIGNMENT for i in on_device)]).tolist()
        buffer = pinned_buffer(rounded_up(max(starts[-1], ALIGNMENT), SIZES_PER_OCTAVE))
        for i, start in zip(on_device, starts, strict=False):
            target = buffer[start : start + arrays[i].nbytes].view(arrays[i].dtype).reshape(arrays[i].shape)
            self._arrays[i] = arrays[i].get(out=target, blocking=False)
        self._event = cupy.cuda.get_current_stream().record()

    def wait(self) -> list[Any]:
        """Return the arrays on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._arrays


def _united(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges in order, with adjacent ranges joined: each CUDA call releases the interpreter lock."""
    first = 0
    for n in range(1, len(ranges) + 1):
        if n == len(ranges) or ranges[n][0] != ranges[n - 1][1]:
            yield ranges[first][0], ranges[n - 1][1]
            first = n


class SliceCopies:
    """Copies of parts of a device's arrays through pinned buffers, one for each thread that copies.

    threads  number of threads that may copy at the same time
    """

    def __init__(self, threads: int):
        self._buffers: SimpleQueue[tuple[Any, np.ndarray] | None] = SimpleQueue()  # (stream, buffer), made when needed
        for _ in range(threads):
            self._buffers.put(None)

    @contextmanager
    def copied(self, array: Any, ranges: Sequence[tuple[int, int]]) -> Iterator[list[memoryview]]:
        """Yield array[begin:end] of each range in host memory, where it stays until the block ends.

        array  uint8, contiguous, complete; of a NumPy array the parts are views

        Waits until a buffer is free.
        """
        if not on_gpu(array):
            yield [array[begin:end].data for begin, end in ranges]
            return
        from cupy.cuda import Stream, runtime

        kept = self._buffers.get()
        try:
            array.device.use()
            nbytes = sum(end - begin for begin, end in ranges)
            stream, buffer = kept or (Stream(non_blocking=True), np.empty(0, np.uint8))
            if len(buffer) < nbytes:
                buffer = pinned_buffer(rounded_up(nbytes, SIZES_PER_OCTAVE))
            kept, start = (stream, buffer), 0
            parts: list[memoryview] = []
            for begin, end in _united(ranges):
                target, source = buffer[start:].ctypes.data, array.data.ptr + begin
                runtime.memcpyAsync(target, source, end - begin, runtime.memcpyDeviceToHost, stream.ptr)
                start += end - begin
            stream.synchronize()
            start = 0
            for begin, end in ranges:
                parts.append(buffer[start : start + end - begin].data)
                start += end - begin
            yield parts
        finally:
            self._buffers.put(kept)
