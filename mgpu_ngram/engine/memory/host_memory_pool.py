"""Host memory with locked pages: a GPU reads and writes it at the full rate of the bus, without another copy.

Touching and locking new pages takes three times as long as a copy. So memory whose arrays are gone is used for new
arrays, until no array is left; then all of it is freed.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mgpu_ngram.engine.memory.device import current_gpu

GROWTH = 0.25  # a new slab has this share of the bytes of all others, within two limits
MIN_SLAB_BYTES, MAX_SLAB_BYTES = 16 << 20, 1 << 30
ALIGNMENT_BYTES = mmap.PAGESIZE  # of arrays in a slab
TOUCHING_THREADS, TOUCHED_BYTES = 12, 16 << 20  # pages are touched in slices of so many bytes


def lock_pages(array: np.ndarray) -> None:
    """Lock a large array, and what it is a view of, in host memory: a GPU then reads it without another copy, at three
    times the rate. This takes 0.12 s/GB, or 0.03 where pages have 2 MB. Does nothing if CUDA cannot lock it.
    """
    import cupy

    while isinstance(array.base, np.ndarray):
        array = array.base
    if has_locked_pages(array):
        return
    runtime = cupy.cuda.runtime
    try:
        runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    except runtime.CUDARuntimeError:
        return
    weakref.finalize(array, _unlock, array.ctypes.data).atexit = False


def _unlock(address: int) -> None:
    import cupy

    cupy.cuda.runtime.hostUnregister(address)


def has_locked_pages(array: np.ndarray) -> bool:
    """Return whether a GPU reads the array without another copy."""
    import cupy

    runtime = cupy.cuda.runtime
    return bool(runtime.pointerGetAttributes(array.ctypes.data).type == runtime.memoryTypeHost)


@dataclass(eq=False)
class _Slab:
    """Locked memory that several arrays share.

    gaps  (first byte, past the last one) of ranges that no array uses, rising
    """

    memory: np.ndarray
    gaps: list[tuple[int, int]]

    def take(self, nbytes: int) -> int | None:
        """Return where a range begins that is in use from now on; None if no gap is so large."""
        for i, (first, last) in enumerate(self.gaps):
            if last - first >= nbytes:
                self.gaps[i : i + 1] = [(first + nbytes, last)] if last - first > nbytes else []
                return first
        return None

    def give_back(self, first: int, last: int) -> None:
        i = bisect_right(self.gaps, (first, last))
        if i < len(self.gaps) and self.gaps[i][0] == last:
            last = self.gaps.pop(i)[1]
        if i and self.gaps[i - 1][1] == first:
            first = self.gaps.pop(i - 1)[0]
        insort(self.gaps, (first, last))

    def unused_bytes(self) -> int:
        return sum(last - first for first, last in self.gaps)

    def is_unused(self) -> bool:
        return self.unused_bytes() == len(self.memory)


class _Range(NamedTuple):
    """Bytes `first` to `last` - 1 of a slab."""

    slab: _Slab
    first: int
    last: int


class LockedMemory:
    """Locked host memory for large arrays that leave a GPU."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: list[_Slab] = []
        # An array may end at any time in any thread, also in one that holds the lock. So its end only adds to these.
        self._given_back = deque[_Range]()
        self._refused_bytes = math.inf  # CUDA could not lock so much
        self._thread = ThreadPoolExecutor(1)
        self._coming: Future[None] | None = None  # makes another slab

    def array(self, nbytes: int) -> np.ndarray | None:
        """Return a new array, (nbytes,) uint8, with any content; None if CUDA cannot lock so much memory.

        Once a slab was made, a thread makes the next one meanwhile, because more arrays are likely to follow.
        """
        size = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        taken, is_new = self._taken(size), False
        while taken is None:
            with self._changing():
                coming, self._coming = self._coming, None
            if coming is not None:
                coming.result()
            elif size >= self._refused_bytes:
                return None
            else:
                self._add_slab(size)
            taken, is_new = self._taken(size), True
        if is_new:
            with self._changing():
                if self._coming is None and size <= self._next_bytes():
                    self._coming = self._thread.submit(self._add_another, current_gpu())
        # Not a view of the memory: NumPy's views of a view refer to the memory alone.
        address = taken.slab.memory.ctypes.data + taken.first
        array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        weakref.finalize(array, self._give_back, taken).atexit = False
        return array

    def unused_bytes(self) -> int:
        """Return the bytes of memory that no array uses."""
        with self._changing():
            return sum(slab.unused_bytes() for slab in self._slabs)

    def free_unused(self) -> None:
        """Free slabs that no array uses."""
        with self._changing():
            self._slabs = [slab for slab in self._slabs if not slab.is_unused()]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, when all ranges are given back that ended until now."""
        try:
            with self._lock:
                self._collect()
                yield
        finally:
            self._collect_if_free()

    def _taken(self, size: int) -> _Range | None:
        with self._changing():
            for slab in self._slabs:
                first = slab.take(size)
                if first is not None:
                    return _Range(slab, first, first + size)
        return None

    def _next_bytes(self) -> int:
        """Return the size of the next slab, if no array needs more."""
        total = sum(len(slab.memory) for slab in self._slabs)
        return max(MIN_SLAB_BYTES, min(MAX_SLAB_BYTES, int(GROWTH * total)))

    def _add_slab(self, least_bytes: int) -> None:
        with self._changing():
            nbytes = max(least_bytes, self._next_bytes())
            nbytes = least_bytes if nbytes >= self._refused_bytes else nbytes
        if not nbytes:
            return
        memory = _new_memory(nbytes)
        with self._changing():
            if memory is None:
                self._refused_bytes = min(self._refused_bytes, nbytes)
            elif least_bytes or self._slabs:  # else all arrays have ended meanwhile
                self._slabs.append(_Slab(memory, [(0, len(memory))]))

    def _add_another(self, gpu: int) -> None:
        """Make a slab in another thread than that of the GPU's tasks."""
        import cupy

        cupy.cuda.runtime.setDevice(gpu)
        self._add_slab(0)

    def _give_back(self, ended: _Range) -> None:
        self._given_back.append(ended)
        self._collect_if_free()

    def _collect_if_free(self) -> None:
        while self._given_back and self._lock.acquire(blocking=False):  # else the holder of the lock does it
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Give ranges back that arrays used, and free all memory if no array is left. The lock is held."""
        if not self._given_back:
            return
        while self._given_back:
            ended = self._given_back.popleft()
            ended.slab.give_back(ended.first, ended.last)
        if all(slab.is_unused() for slab in self._slabs):
            self._slabs, self._refused_bytes = [], math.inf


def _new_memory(nbytes: int) -> np.ndarray | None:
    """Return memory with locked pages; None if there is no memory or CUDA cannot lock it. Threads touch the pages: the
    system clears new ones at 5 GB/s a thread.
    """
    try:
        pages = mmap.mmap(-1, nbytes) if sys.platform == "win32" else mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE)
    except (OSError, OverflowError, ValueError):
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    with ThreadPoolExecutor(TOUCHING_THREADS) as pool:
        slices = range(0, nbytes, TOUCHED_BYTES)
        list(pool.map(lambda i: memory[i : i + TOUCHED_BYTES : mmap.PAGESIZE].fill(0), slices))
    lock_pages(memory)
    return memory if has_locked_pages(memory) else None


locked_memory = LockedMemory()  # of this process
