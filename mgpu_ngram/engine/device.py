"""The device an engine function works on, and the blocks of a chunk brought to it."""

from __future__ import annotations

import queue
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.corpus import Chunk
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.memory import free_host_bytes
from mgpu_ngram.core.reading import Block, block_checksums, read_blocks
from mgpu_ngram.kernels.dispatch import on_gpu, to_host

RING_SLOTS = 3  # one block being read, one being copied, one being worked on
COPY_THREADS, SLICE_BYTES = 6, 16 << 20  # of large copies between host and GPU
T = TypeVar("T")
ALIGNED = 256  # where arrays begin that are copied together


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


def to_host_fast(array: Any) -> np.ndarray:
    """A copy of a large CuPy array in host memory, by several threads through pinned buffers; NumPy as it is.

    One thread without them copies 3.5 GB/s on a host where these copy 20 and more.
    """
    if isinstance(array, np.ndarray) or array.nbytes < SLICE_BYTES:
        return to_host(array)
    host = np.empty(array.shape, array.dtype)

    def copy(stream: Any, pinned: np.ndarray, there: Any, here: np.ndarray) -> None:
        there.get(stream=stream, out=pinned, blocking=True)
        np.copyto(here, pinned)

    _copy_in_slices(array, host, copy)
    return host


def to_device_fast(array: Any, device: str) -> Any:
    """The opposite of `to_host_fast`; what is on the device already stays."""
    if isinstance(array, np.ndarray) and array.nbytes < SLICE_BYTES:
        return to_device(array, device)
    return to_device_together([array], device)[0]


def device_of(array: Any) -> str:
    """ "gpu" for a CuPy array, "cpu" for all else."""
    return "gpu" if on_gpu(array) else "cpu"


def moved_to(array: Any, device: str) -> Any:
    """An array, or a list of numbers, on a device, from wherever it is."""
    if device == "gpu":
        return to_device_fast(array if on_gpu(array) else np.asarray(array), device)
    return to_host_fast(array) if on_gpu(array) else np.asarray(array)


def to_device_together(arrays: Sequence[Any], device: str) -> list[Any]:
    """As `to_device_fast` of each, packed on their way: of small ones, a copy each takes longer than its bytes."""
    here = [a for a in arrays if isinstance(a, np.ndarray)]
    if device == "cpu" or not here:
        return list(arrays)
    import cupy

    starts = [0, *np.cumsum([-(-a.nbytes // ALIGNED) * ALIGNED for a in here]).tolist()]
    packed = cupy.empty(starts[-1], np.uint8)
    pieces: list[tuple[int, np.ndarray]] = []  # contiguous bytes, and where they begin in `packed`
    for start, array in zip(starts, here, strict=False):
        rows = [array.reshape(-1)] if array.flags.c_contiguous else list(array)
        pieces += [(start + i * row.nbytes, row.view(np.uint8)) for i, row in enumerate(rows)]
    firsts = [first for first, _ in pieces]

    def fill(slices: Sequence[tuple[int, int]], stream: Any, pinned: np.ndarray) -> None:
        for first, last in slices:
            for begin, row in pieces[max(0, bisect_right(firsts, first) - 1) : bisect_left(firsts, last)]:
                a, b = max(first, begin), min(last, begin + len(row))
                if a < b:
                    pinned[a - first : b - first] = row[a - begin : b - begin]
            packed[first:last].set(pinned[: last - first], stream=stream)
            stream.synchronize()

    _in_threads(fill, _slices(starts[-1], SLICE_BYTES))
    moved = iter(
        packed[start : start + a.nbytes].view(a.dtype).reshape(a.shape) for start, a in zip(starts, here, strict=False)
    )
    return [next(moved) if isinstance(a, np.ndarray) else a for a in arrays]


def each_slice(array: Any, use: Callable[[int, np.ndarray], None], threads: int = 1) -> None:
    """use(first, bytes) for slices of a contiguous array, of its bytes from `first` on, in host memory.

    So many threads call it, a few at least where a GPU copies; of a CuPy array the bytes are those of a buffer, gone
    when it returns.
    """
    flat = array.reshape(-1).view(np.uint8)
    if on_gpu(array):
        half = SLICE_BYTES // 2

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

        _in_threads(copy, _slices(len(flat), half), max(threads, COPY_THREADS))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: use(part[0], flat[slice(*part)]), _slices(len(flat), SLICE_BYTES)))


def _copy_in_slices(there: Any, here: np.ndarray, copy: Callable) -> None:
    """copy(stream, pinned buffer, slice there, slice here) for all slices, in several threads."""

    def copy_some(slices: Sequence[tuple], stream: Any, pinned: np.ndarray) -> None:
        for a, b in slices:
            copy(stream, pinned.view(here.dtype)[: len(b)], a, b)

    if here.flags.c_contiguous and there.flags.c_contiguous:
        there, here = there.reshape(-1), here.reshape(-1)
    rows = [(there[i], here[i]) for i in np.ndindex(here.shape[:-1])]  # of a view, each by itself
    step = SLICE_BYTES // here.itemsize
    slices = [(a[i : i + step], b[i : i + step]) for a, b in rows for i in range(0, len(b), step)]
    _in_threads(copy_some, slices)


def _slices(size: int, step: int) -> list[tuple[int, int]]:
    return [(i, min(i + step, size)) for i in range(0, size, step)]


def _in_threads(fn: Callable, slices: Sequence[tuple], threads: int = COPY_THREADS) -> None:
    """fn(some slices, stream, pinned buffer) in so many threads. Each has neighbouring ones, as a file is locked for
    others while a thread writes to it.
    """
    import cupy

    device = cupy.cuda.Device()
    cupy.cuda.get_current_stream().synchronize()
    each = max(1, -(-len(slices) // threads))

    def run(first: int) -> None:
        device.use()
        stream, pinned = cupy.cuda.Stream(non_blocking=True), _pinned_slice(first // each)
        fn(slices[first : first + each], stream, pinned)

    with _copying, ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(0, len(slices), each)))


_copying = threading.Lock()
_pinned_slices: dict[int, np.ndarray] = {}


def _pinned_slice(thread: int) -> np.ndarray:
    import cupyx

    if thread not in _pinned_slices:
        _pinned_slices[thread] = cupyx.empty_pinned(SLICE_BYTES, np.uint8)
    return _pinned_slices[thread]


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
        self.add({stage: now - self._last})
        self._last = now

    def add(self, seconds: dict[str, float]) -> None:
        """Charge seconds that were measured elsewhere."""
        self.seconds = add_seconds(self.seconds, seconds)

    def lap_shared(self, busy: dict[str, float]) -> None:
        """Charge the time since the last lap to the stages it was spent waiting for, shared as their busy seconds."""
        now = time.perf_counter()
        total = sum(busy.values()) or 1.0
        self.add({stage: (now - self._last) * s / total for stage, s in busy.items()})
        self._last = now


def add_seconds(*parts: dict[str, float]) -> dict[str, float]:
    """Sum of several stages-to-seconds tables."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, s in part.items():
            total[stage] = total.get(stage, 0.0) + s
    return total


def device_blocks(
    chunk: Chunk,
    unit: str,
    block_bytes: int,
    halo: int,
    device: str,
    threads: int,
    checksums: list | None,
    watch: Stopwatch,
) -> Iterator[tuple[Block, Any]]:
    """Yield each block of a chunk and its bytes on the device. The bytes are the caller's until the next one.

    On a GPU a thread reads ahead into pinned memory and copies on a stream of its own, so reading,
    copying and the caller's kernels overlap. The time that the caller waits all the same is charged
    to `read` and `copy`. The GPU computes the checksums of plain sources: the reading threads would
    lose half their speed.
    """
    if device == "cpu":
        for block in read_blocks(chunk, unit, block_bytes, halo, None, threads, checksums):
            watch.lap("read")
            yield block, block.data
        watch.lap("read")
        return
    ring = _idle_ring(block_bytes)
    read = lambda allocate: read_blocks(chunk, unit, block_bytes, halo, allocate, threads, checksums, False)  # noqa: E731
    for block, data, busy in ring.run(read):
        watch.lap_shared(busy)
        if checksums is not None:
            checksums.extend(block_checksums(block, data, chunk))
        yield block, data
    # Not when the caller stops early: what an error left is collected in any order, its stream before this generator.
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

    def run(self, read: Any) -> Iterator[tuple[Block, Any, dict[str, float]]]:
        """Yield block, bytes on the device, and the seconds that reading and copying have taken so far."""
        import cupy

        filled: queue.Queue = queue.Queue()
        free: queue.Queue = queue.Queue()
        for slot in range(RING_SLOTS):
            free.put((slot, None))
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
                        done.synchronize()  # the kernels that still read this slot's device buffer
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
                        copied = self.stream.record()
                    filled.put((slot, block, self.device[slot][:n], begun, copied))
                filled.put(None)
            except BaseException as error:  # handed to the consumer, which raises it
                filled.put(error)

        reader = threading.Thread(target=fill, daemon=True)
        reader.start()
        try:
            while (item := filled.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                slot, block, data, begun, copied = item
                copied.synchronize()
                busy["copy"] += cupy.cuda.get_elapsed_time(begun, copied) / 1000
                yield block, data, busy
                free.put((slot, cupy.cuda.get_current_stream().record()))
        finally:
            stop.set()
            free.put((0, None))
            reader.join()


def _outside_pool(nbytes: int) -> Any:
    """A device array that CuPy's pool knows nothing of: the pool may be full, and other streams use it otherwise."""
    import cupy

    return cupy.ndarray(nbytes, np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0))


_idle_rings: list[_Ring] = []  # a task in another thread, or one that failed and is not yet collected, holds its own


def _idle_ring(block_bytes: int) -> _Ring:
    """One that is free, unless its buffers are much larger than needed: then they go back to the pool."""
    import cupy

    device = cupy.cuda.Device().id
    for ring in list(_idle_rings):
        if ring.id == device:
            with suppress(ValueError):  # another thread was faster
                _idle_rings.remove(ring)
                if all(buffer is None or len(buffer) <= 2 * block_bytes for buffer in ring.device):
                    return ring
    return _Ring()


def out_of_memory(error: BaseException) -> bool:
    """True for out-of-memory errors of Python, of CuPy's pool and of CUDA itself (pinned memory)."""
    named = type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error)
    return named or isinstance(error, MemoryError)


def on_device_or_host(fn: Callable[[str], T], device: str) -> T:
    """fn(device); fn("cpu") where the device has no room for what it does."""
    try:
        return fn(device)
    except Exception as error:
        if device == "cpu" or not out_of_memory(error):
            raise
    return fn("cpu")  # here, where the error holds no arrays any more


@contextmanager
def memory_guard(
    doing: str, device: str, way_out: str = "use smaller chunks (chunk_bytes), a lower order or fewer workers"
) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that says what was being done and the way out."""
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
