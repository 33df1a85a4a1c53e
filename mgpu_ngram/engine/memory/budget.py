"""Memory limits of tasks: for working memory, and for intermediate results."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from mgpu_ngram.engine.memory.device import free_bytes

KEPT_SHARE = {"gpu": 0.6, "cpu": 0.2}  # share of the device for waiting results; tasks work in the rest
SPILLING_KEPT_SHARE = 0.1  # for a GPU that can keep only a small part of all results: tasks are faster with more memory
FULL_SHARE = 0.9  # most of the device that a task alone can fill, because a pool of memory has gaps
KEPT_BESIDE_SHARE = 0.6  # share of host memory for waiting results, when the device is a GPU


@dataclass(frozen=True)
class Budget:
    """Bytes that the tasks of one process may use. Picklable; all processes of a run have the same budget.

    device         "cpu" or "gpu", the device of the tasks
    device_bytes   bytes of GPU memory; 0 on a CPU
    host_bytes     this process's share of host memory
    tasks          tasks that run at once in this process
    spills         the results are expected to be many times larger than what a GPU could keep
    kept_bytes     bytes of results that a GPU keeps although most results spill
    before_bytes   bytes of the process's GPU arrays that are older than the run; device_bytes does not count them

    `device_limited` limits CuPy's pool to a budget. Methods that ask how much memory is in use change nothing.
    """

    device: str
    device_bytes: int
    host_bytes: int
    tasks: int = 1
    spills: bool = False
    kept_bytes: int = 0
    before_bytes: int = 0

    def working_bytes(self) -> int:
        """Return the bytes that one task may use on its device now, beside the intermediate results there."""
        if self.device == "gpu":
            return min(free_bytes("gpu"), self.device_bytes - self._taken_bytes())
        return self.host_working_bytes()

    def host_working_bytes(self) -> int:
        """Return the bytes of host memory that one task may use, beside the intermediate results there."""
        return int((1 - self._kept_host_share()) * self.host_bytes) // self.tasks

    def kept_device_share(self) -> float:
        """Return the share of the GPU that intermediate results may use."""
        if not self.spills:
            return KEPT_SHARE["gpu"]
        return max(SPILLING_KEPT_SHARE, self.kept_bytes / max(1, self.device_bytes))

    def task_bytes(self) -> int:
        """Return the bytes that one task may use on its device when intermediate results fill their share."""
        if self.device == "gpu":
            return int((1 - self.kept_device_share()) * self.device_bytes)
        return self.host_working_bytes()

    def alone_bytes(self) -> int:
        """Return the bytes that one task may use on its device when no results are kept there."""
        return int(FULL_SHARE * self.device_bytes) if self.device == "gpu" else self.host_working_bytes()

    def _kept_host_share(self) -> float:
        return KEPT_SHARE["cpu"] if self.device == "cpu" else KEPT_BESIDE_SHARE

    def kept_host_bytes(self) -> int:
        """Return the bytes of host memory that intermediate results of this process may use."""
        return int(self._kept_host_share() * self.host_bytes)

    def block_bytes(self) -> int:
        """Return the bytes that a block of rows may use, with all its copies, while it is merged and written."""
        of_host = self.host_working_bytes() // 2  # the other half is for data that other workers send
        if self.device == "cpu":
            return of_host
        return min(of_host, self.task_bytes() // 2)

    def part_bytes(self, held_bytes: int) -> int:
        """Return the bytes of a part of the result beside `held_bytes` of runs; two parts wait during a merge."""
        if self.device == "cpu":
            return self.block_bytes()
        held_bytes = min(held_bytes, int(self.kept_device_share() * self.device_bytes))
        return max(1, (self.device_bytes - self.block_bytes() - held_bytes) // 2)

    def place(self, nbytes: int) -> Literal["device", "host", "disk"]:
        """Return where to keep an intermediate result of `nbytes` on the device."""
        if self.device == "gpu" and self.fits_device(0):
            return "device"
        return "host" if self.fits_host(nbytes) else "disk"

    def _taken_bytes(self) -> int:
        """Return the bytes of the run's GPU arrays now; negative if older arrays have been freed."""
        return _pool().used_bytes() - self.before_bytes

    def fits_device(self, nbytes: int) -> bool:
        """Return whether the GPU may keep `nbytes` more of results."""
        return self._taken_bytes() + nbytes <= self.kept_device_share() * self.device_bytes

    def fits_host(self, nbytes: int) -> bool:
        """Return whether host memory may keep `nbytes` more of results."""
        return _held_bytes() + nbytes <= self._kept_host_share() * self.host_bytes


@contextmanager
def device_limited(budget: Budget) -> Iterator[None]:
    """Limit CuPy's pool to a budget, beside older arrays, within this scope; record the peak of this thread.

    Scopes may be nested and may overlap in several threads; the lowest limit applies. The last scope to end
    restores the limit that the pool had before the first. On a CPU the scope does nothing.
    """
    if budget.device != "gpu":
        yield
        return
    limit_bytes = budget.device_bytes and budget.device_bytes + budget.before_bytes  # 0 is no limit
    with _limits.held_to(limit_bytes), _peak_noted():
        yield


@contextmanager
def device_alone(budget: Budget) -> Iterator[None]:
    """Like `device_limited`, but one task of the process runs at a time and may use all free GPU memory.

    Not reentrant.
    """
    with _working_alone if budget.device == "gpu" else nullcontext(), device_limited(budget):
        yield


class _PoolLimits:
    """The limits of all open scopes of this process; the pool obeys the least of them."""

    def __init__(self) -> None:
        self._lock, self._open, self._before = threading.Lock(), list[int](), 0

    @contextmanager
    def held_to(self, limit_bytes: int) -> Iterator[None]:
        with self._lock:
            if not self._open:
                self._before = _pool().get_limit()
            self._open.append(limit_bytes)
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(limit_bytes)
                self._set()

    def _set(self) -> None:
        pool, limit = _pool(), min(filter(None, self._open), default=self._before)  # 0 is no limit
        if pool.get_limit() == limit:
            return
        if 0 < limit < pool.total_bytes():
            pool.free_all_blocks()  # or the pool would also hand out cached blocks above the limit
        pool.set_limit(size=limit)


def used_bytes(device: str) -> int:
    """Return the bytes of this process's GPU arrays now; 0 on a CPU."""
    return _pool().used_bytes() if device == "gpu" else 0


def forget_peak(device: str) -> None:
    """Restart the measurement of the device's peak from the memory in use now."""
    if device == "gpu":
        _peak.bytes = _pool().used_bytes()


def peak_device_bytes(device: str) -> int:
    """Return the peak bytes of GPU arrays since `forget_peak`, within scopes of a budget."""
    return _peak.bytes if device == "gpu" else 0


def peak_host_bytes() -> int:
    """Return the peak host memory of this process since its start; 0 without /proc."""
    try:  # not getrusage: a process inherits its parent's peak
        with open("/proc/self/status") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), 0)
    except OSError:  # not Linux
        return 0


def peak_bytes(device: str) -> tuple[int, int]:
    """Return (`peak_device_bytes`, `peak_host_bytes`)."""
    return peak_device_bytes(device), peak_host_bytes()


class _Peak:
    """The peak over all threads, and for each thread whether a hook records it."""

    def __init__(self) -> None:
        self.bytes, self.noted = 0, threading.local()


_peak = _Peak()


@contextmanager
def _peak_noted() -> Iterator[None]:
    """Read the pool's size after every allocation of this thread."""
    if getattr(_peak.noted, "here", False):
        yield
        return
    import cupy

    class Hook(cupy.cuda.MemoryHook):
        name = "mgpu-ngram peak"

        def malloc_postprocess(self, **_: Any) -> None:
            _peak.bytes = max(_peak.bytes, _pool().used_bytes())

    _peak.noted.here = True
    try:
        with Hook():
            yield
    finally:
        _peak.noted.here = False


def _pool() -> Any:
    import cupy

    return cupy.get_default_memory_pool()


_limits = _PoolLimits()
_working_alone = threading.Lock()
_held: weakref.WeakSet[Any] = weakref.WeakSet()
_holding = threading.Lock()  # tasks of a process are threads; a set must not grow while another thread reads it


def hold(result: Any) -> Any:
    """Count the `host_bytes` of a result as taken while the result lives; return the result."""
    with _holding:
        _held.add(result)
    return result


def _held_bytes() -> int:
    with _holding:
        results = list(_held)
    return sum(result.host_bytes for result in results)
