"""The memory that tasks may take: what they work in, and what their results may hold until they are merged."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal

from mgpu_ngram.engine.device import free_bytes

KEPT_SHARE = {"gpu": 0.6, "cpu": 0.2}  # of the device, for results that wait; the rest is what tasks work in
SPILLING_KEPT_SHARE = 0.1  # of a device that could keep no more than a small part of all: working in more is faster
KEPT_BESIDE_SHARE = 0.6  # of the host, when the device is a GPU
BYTES_PER_TEXT_BYTE = {"gpu": 24, "cpu": 40}  # of a chunk while it is counted and cut; 17 were seen on a GPU
MAX_TEXT_BYTES = {"cpu": 64 << 20, "gpu": 2 << 30}
AUTO_DEVICE_SHARE = 0.9  # of the free memory when nothing was asked for; the rest is for CUDA and other users
AUTO_HOST_SHARE = 0.5
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt (malloc.h); set, they do not grow any more
RETURNED_BYTES = 1 << 20


@dataclass(frozen=True)
class Budget:
    """Bytes that the tasks of one process may take. Picklable; the same for every process of a run.

    device         "cpu" or "gpu", where tasks work
    device_bytes   of the GPU; 0 on a CPU
    host_bytes     of host memory, this process's share
    tasks          tasks at once in this process
    spills         the results are expected to be many times what a GPU could keep
    """

    device: str
    device_bytes: int
    host_bytes: int
    tasks: int = 1
    spills: bool = False

    def limit(self) -> None:
        """Hold this process to the budget of its GPU."""
        if self.device == "gpu":
            _first_limit.setdefault("bytes", _pool().get_limit())
            limit_device(self.device_bytes)
            _watch_peak()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the tasks of this process that ask for it from working on the GPU at once: each may take all that is
        left of it."""
        with _working_alone if self.device == "gpu" else nullcontext():
            self.limit()
            yield

    def working_bytes(self) -> int:
        """What one task may take now on its device, beside what earlier results hold there."""
        if self.device == "gpu":
            self.limit()
            return min(free_bytes("gpu"), self.device_bytes - _pool().used_bytes())
        return self.host_working_bytes()

    def host_working_bytes(self) -> int:
        """What one task may take of host memory, beside what earlier results hold there."""
        return int((1 - self._kept_host_share()) * self.host_bytes) // self.tasks

    def kept_device_share(self) -> float:
        """Of the GPU, for results that wait."""
        return SPILLING_KEPT_SHARE if self.spills else KEPT_SHARE["gpu"]

    def task_bytes(self) -> int:
        """What one task may work in on its device when earlier results hold all that they may."""
        if self.device == "gpu":
            return int((1 - self.kept_device_share()) * self.device_bytes)
        return self.host_working_bytes()

    def _kept_host_share(self) -> float:
        return KEPT_SHARE["cpu"] if self.device == "cpu" else KEPT_BESIDE_SHARE

    def block_bytes(self) -> int:
        """What a block of rows that is merged and written may take, with all its copies."""
        of_host = self.host_working_bytes() // 2  # the other half is for pieces of other workers
        if self.device == "cpu":
            return of_host
        return min(of_host, self.task_bytes() // 2)

    def part_bytes(self, held_bytes: int) -> int:
        """Rows of a part of the result, beside `held_bytes` of runs: two parts wait while one is merged."""
        if self.device == "cpu":
            return self.block_bytes()
        held_bytes = min(held_bytes, int(self.kept_device_share() * self.device_bytes))
        return max(1, (self.device_bytes - self.block_bytes() - held_bytes) // 2)

    def text_bytes(self) -> int:
        """Text of a chunk: what is made of it until it is counted fits."""
        room = min(self.task_bytes(), self.host_bytes)
        return max(1, min(MAX_TEXT_BYTES[self.device], room // BYTES_PER_TEXT_BYTE[self.device]))

    def place(self, nbytes: int) -> Literal["device", "host", "disk"]:
        """Where a result of `nbytes` that lies on the device may stay until it is merged."""
        if self.device == "gpu" and _pool().used_bytes() <= self.kept_device_share() * self.device_bytes:
            return "device"
        return "host" if self.fits_host(nbytes) else "disk"

    def fits_host(self, nbytes: int) -> bool:
        """Whether host memory may hold `nbytes` more of results."""
        return _held_bytes() + nbytes <= self._kept_host_share() * self.host_bytes


def give_back_freed_memory() -> None:
    """Let large arrays of host memory go back to the system when they are freed, at a cost of about 3 % of the time.

    By itself glibc comes to keep freed arrays of up to 32 MiB for the next ones: a fifth more than a small budget.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        for threshold in M_TRIM_THRESHOLD, M_MMAP_THRESHOLD:
            libc.mallopt(threshold, RETURNED_BYTES)
        libc.malloc_trim(0)


def limit_device(device_bytes: int) -> None:
    """Let CuPy's pool take no more than `device_bytes` of the GPU."""
    global _peak_bytes
    if _pool().get_limit() != device_bytes:
        _pool().free_all_blocks()  # it would give out what it has, more than the limit too
        _pool().set_limit(size=device_bytes)
        _peak_bytes = _pool().used_bytes()


def lift_limit(device: str) -> None:
    """Let CuPy's pool take what it could before the first budget: a run that ended in this process has left its own."""
    if device == "gpu" and _first_limit:
        limit_device(_first_limit["bytes"])


def peak_device_bytes(device: str) -> int:
    """The most that arrays of this process have taken of its GPU at once, since its budget was set."""
    return _peak_bytes if device == "gpu" else 0


def peak_host_bytes() -> int:
    """The most host memory that this process has had at once since it started; 0 where the system does not say."""
    try:  # and not getrusage, whose peak a process takes over from the one that started it
        with open("/proc/self/status") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM")), 0)
    except OSError:  # no Linux
        return 0


def peak_bytes(device: str) -> tuple[int, int]:
    """(of the GPU, of the host): see the two above."""
    return peak_device_bytes(device), peak_host_bytes()


_first_limit: dict[str, int] = {}
_peak_bytes = 0
_watched = threading.local()


def _watch_peak() -> None:
    """Look at the pool after every allocation of this thread."""
    if hasattr(_watched, "hook"):
        return
    import cupy

    class Peak(cupy.cuda.MemoryHook):
        name = "mgpu-ngram peak"

        def malloc_postprocess(self, **_: Any) -> None:
            global _peak_bytes
            _peak_bytes = max(_peak_bytes, _pool().used_bytes())

    _watched.hook = Peak()
    _watched.hook.__enter__()


def _pool() -> Any:
    import cupy

    return cupy.get_default_memory_pool()


_working_alone = threading.Lock()
_held: weakref.WeakSet = weakref.WeakSet()
_holding = threading.Lock()  # tasks of a process are threads; a set must not grow while it is read


def hold(result: Any) -> Any:
    """Count a result with `host_bytes` as held in host memory for as long as it lives; returns it."""
    with _holding:
        _held.add(result)
    return result


def _held_bytes() -> int:
    with _holding:
        results = list(_held)
    return sum(result.host_bytes for result in results)
