"""Copy arrays between the host and a device: those in locked memory directly, others by threads through pinned buffers,
large ones in slices and small ones packed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.host_memory_pool import has_locked_pages, locked_memory
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, pinned_buffer, to_host
from mgpu_ngram.kernels.intrinsics import copy_from

COPY_THREADS, COPY_SLICE_BYTES = 6, 16 << 20  # for large copies between host and GPU
MIN_LOCKED_BYTES = 1 << 16  # smaller arrays are copied as if their memory were not locked
MAX_ROWS = 64  # that are copied one by one; an array of more rows that are no neighbours is copied on the GPU first
ARRAY_ALIGNMENT_BYTES = 256  # arrays that are copied together start at multiples of this


def to_host_fast(array: Any) -> np.ndarray:
    """Return a copy of a large CuPy array in host memory; NumPy unchanged.

    Several threads copy through pinned buffers: at 20 GB/s and more, where one thread without them has 3.5 GB/s.
    """
    if isinstance(array, np.ndarray) or array.nbytes < COPY_SLICE_BYTES:
        return to_host(array)
    host = np.empty(array.shape, array.dtype)

    def copy(stream: Any, pinned: np.ndarray, source: Any, target: np.ndarray) -> None:
        source.get(stream=stream, out=pinned, blocking=True)
        np.copyto(target, pinned)

    _copy_in_slices(array, host, copy)
    return host


def to_host_together(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Return the arrays in host memory: large arrays of a GPU in locked memory, or, where CUDA cannot lock any, as
    `to_host_fast` does.
    """
    there = [array for array in arrays if not isinstance(array, np.ndarray)]
    if sum(array.nbytes for array in there) < COPY_SLICE_BYTES:
        return [to_host(array) for array in arrays]
    import cupy

    stream, found, copied = cupy.cuda.get_current_stream(), list[np.ndarray](), list[Any]()
    try:
        for array in arrays:
            host = array if isinstance(array, np.ndarray) else _locked_like(array)
            found.append(to_host_fast(array) if host is None else host)
            if host is None or host is array or not host.nbytes:
                continue
            rows = _rows_of(array)
            copied += rows
            for row, target in zip(rows, host if len(rows) > 1 else [host], strict=True):
                row.get(stream=stream, out=target.reshape(row.shape), blocking=False)
    finally:
        stream.synchronize()  # both ends of the copies must live until then, also after an error
    return found


def _locked_like(array: Any) -> np.ndarray | None:
    """Return an array of the same shape and dtype in locked memory; None if CUDA cannot lock it."""
    if not array.nbytes:
        return np.empty(array.shape, array.dtype)
    host = locked_memory.array(array.nbytes)
    return None if host is None else host.view(array.dtype).reshape(array.shape)


def _rows_of(array: Any) -> list[Any]:
    """Return an array in contiguous pieces: its rows, or itself, copied if it is not contiguous."""
    if array.ndim == 2 and 1 < len(array) <= MAX_ROWS and array.strides[1] == array.itemsize:
        return list(array)
    return [array_module(array).ascontiguousarray(array)]


def _read_by_gpu(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays, with copies on the GPU of those in locked memory, and of empty ones."""
    import cupy

    stream, found = cupy.cuda.get_current_stream(), list(arrays)
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ndarray) or (array.nbytes and not has_locked_pages(array)):
            continue
        found[i], rows = cupy.empty(array.shape, array.dtype), _rows_of(array)
        for row, target in zip(rows, found[i] if len(rows) > 1 else [found[i]], strict=True):
            target.set(row, stream=stream)
    stream.synchronize()
    return found


def to_device_fast(array: Any, device: str) -> Any:
    """Return an array on the device, as `to_device_together` does; an array on the device is returned unchanged."""
    is_small = isinstance(array, np.ndarray) and array.nbytes < COPY_SLICE_BYTES
    if device == "cpu" or (is_small and (array.nbytes < MIN_LOCKED_BYTES or not has_locked_pages(array))):
        return to_device(array, device)
    return to_device_together([array], device)[0]


def move_to(array: Any, device: str) -> Any:
    """Return an array, or a list of numbers, on a device, from any device."""
    if device == "gpu":
        return to_device_fast(array if on_gpu(array) else np.asarray(array), device)
    return to_host_fast(array) if on_gpu(array) else np.asarray(array)


def starts_together(arrays: Sequence[Any]) -> list[int]:
    """Return the byte at which each of several arrays begins in one piece of memory, and the size of the piece."""
    return [0, *np.cumsum([-(-a.nbytes // ARRAY_ALIGNMENT_BYTES) * ARRAY_ALIGNMENT_BYTES for a in arrays]).tolist()]


def to_device_together(arrays: Sequence[Any], device: str) -> list[Any]:
    """Return the arrays on the device. The GPU reads those in locked memory; threads copy the others through pinned
    buffers to one piece of memory, because many small copies take longer.
    """
    if device == "cpu" or not any(isinstance(array, np.ndarray) for array in arrays):
        return list(arrays)
    import cupy

    arrays = _read_by_gpu(arrays)
    here = [a for a in arrays if isinstance(a, np.ndarray)]
    if not here:
        return arrays
    starts = starts_together(here)
    packed = cupy.empty(starts[-1], np.uint8)
    pieces: list[tuple[int, np.ndarray]] = []  # contiguous bytes, and their start in `packed`
    for start, array in zip(starts, here, strict=False):
        rows = [array.reshape(-1)] if array.flags.c_contiguous else list(array)
        pieces += [(start + i * row.nbytes, row.view(np.uint8)) for i, row in enumerate(rows)]
    first_P = np.array([first for first, _ in pieces], np.int64)
    address_P = np.array([row.ctypes.data for _, row in pieces], np.int64)
    size_P = np.array([row.nbytes for _, row in pieces], np.int64)

    def fill(slices: Sequence[tuple[int, int]], stream: Any, pinned: np.ndarray) -> None:
        for first, last in slices:
            _pack(first_P, address_P, size_P, first, last, pinned)
            packed[first:last].set(pinned[: last - first], stream=stream)
            stream.synchronize()

    _in_threads(_to_device, fill, _slices(starts[-1], COPY_SLICE_BYTES))
    found = iter(starts)
    return [
        packed[(start := next(found)) : start + a.nbytes].view(a.dtype).reshape(a.shape)
        if isinstance(a, np.ndarray)
        else a
        for a in arrays
    ]


@njit(nogil=True, cache=True)
def _pack(first_P, address_P, size_P, first, last, out):
    """Copy bytes `first` to `last` - 1 of all pieces to `out`.

    One call, because threads would wait for the GIL after each piece.
    """
    for p in range(np.searchsorted(first_P, first, "right") - 1, len(first_P)):
        if first_P[p] >= last:
            break
        a, b = max(first, first_P[p]), min(last, first_P[p] + size_P[p])
        if a < b:
            copy_from(out, a - first, address_P[p] + a - first_P[p], b - a)


def each_slice(array: Any, use: Callable[[int, np.ndarray], None], threads: int = 1) -> None:
    """Call use(first, bytes) for slices of a contiguous array; bytes are in host memory, from byte `first` on.

    `threads` threads call it, and a few more if a GPU copies. For a CuPy array, the bytes are in a buffer that is
    valid only during the call.
    """
    flat = array.reshape(-1).view(np.uint8)
    if on_gpu(array):
        half = COPY_SLICE_BYTES // 2

        def copy(slices: Sequence[tuple[int, int]], stream: Any, pinned: np.ndarray) -> None:
            halves = pinned[:half], pinned[half:]  # one is filled while the other is used

            def start(i: int) -> np.ndarray:
                first, last = slices[i]
                return flat[first:last].get(stream=stream, out=halves[i % 2][: last - first], blocking=False)

            coming = start(0)
            try:
                for i, (first, _) in enumerate(slices):
                    stream.synchronize()
                    here = coming
                    if i + 1 < len(slices):
                        coming = start(i + 1)
                    use(first, here)
            finally:
                stream.synchronize()  # `use` may have failed

        _in_threads(_to_host, copy, _slices(len(flat), half), max(threads, COPY_THREADS))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: use(part[0], flat[slice(*part)]), _slices(len(flat), COPY_SLICE_BYTES)))


def _copy_in_slices(source: Any, target: np.ndarray, copy: Callable[..., Any]) -> None:
    """Call copy(stream, pinned buffer, device slice, host slice) for all slices, in several threads."""

    def copy_each(slices: Sequence[tuple[Any, ...]], stream: Any, pinned: np.ndarray) -> None:
        for a, b in slices:
            copy(stream, pinned.view(target.dtype)[: len(b)], a, b)

    if target.flags.c_contiguous and source.flags.c_contiguous:
        source, target = source.reshape(-1), target.reshape(-1)
    # Rows of a strided view are copied separately.
    rows = [(source[i], target[i]) for i in np.ndindex(target.shape[:-1])]
    step = COPY_SLICE_BYTES // target.itemsize
    slices = [(a[i : i + step], b[i : i + step]) for a, b in rows for i in range(0, len(b), step)]
    _in_threads(_to_host, copy_each, slices)


def _slices(size: int, step: int) -> list[tuple[int, int]]:
    return [(i, min(i + step, size)) for i in range(0, size, step)]


class _Way:
    """Pinned buffers for copies in one direction, to the device or to the host, one copy at a time."""

    def __init__(self) -> None:
        self.taken = threading.Lock()
        self.buffers: dict[int, np.ndarray] = {}  # by thread

    def buffer(self, thread: int) -> np.ndarray:
        if thread not in self.buffers:
            self.buffers[thread] = pinned_buffer(COPY_SLICE_BYTES)
        return self.buffers[thread]


_to_device, _to_host = _Way(), _Way()


def _in_threads(
    way: _Way, fn: Callable[..., Any], slices: Sequence[tuple[Any, ...]], threads: int = COPY_THREADS
) -> None:
    """Call fn(slices, stream, pinned buffer) in several threads, each with neighbouring slices.

    Neighbouring, because a file is locked for other threads while a thread writes to it.
    """
    import cupy

    device = cupy.cuda.Device()
    cupy.cuda.get_current_stream().synchronize()
    each = max(1, -(-len(slices) // threads))

    def run(first: int) -> None:
        device.use()
        stream, pinned = cupy.cuda.Stream(non_blocking=True), way.buffer(first // each)
        fn(slices[first : first + each], stream, pinned)

    with way.taken, ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(0, len(slices), each)))
