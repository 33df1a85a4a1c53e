"""Make the memory budget of a run from its `memory` section, and executors that limit their tasks to the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mgpu_ngram.cluster.executor import Executor, Handle
from mgpu_ngram.core.freed_memory import keep_freed_memory
from mgpu_ngram.core.memory_config import AUTO_DEVICE_SHARE, AUTO_HOST_SHARE, MemoryConfig, free_host_bytes
from mgpu_ngram.engine.memory.budget import (
    KEPT_SHARE,
    Budget,
    device_limited,
    forget_peak,
    used_bytes,
)
from mgpu_ngram.engine.memory.device import free_bytes

SHORT_TEXT_CHUNKS = 64  # so that all workers have some; the same for any number of workers
TEXT_WORD_BYTES = 5.5  # bytes of text for each word, with its space; an estimate for plans


def make_budget(
    memory: MemoryConfig,
    executor: Executor,
    result_bytes: int = 0,
    outside_pool: Callable[[Budget], int] = lambda budget: 0,
) -> Budget:
    """Return the budget of the processes of a run, which is that of the worker with least memory.

    `memory.device_bytes`, by default the free memory, is for the run alone. Older GPU arrays, such as the caller's or
    replicas of models, do not count: `before_bytes` is the least memory that older arrays take in any process; the
    limit is added on top.

    result_bytes  greatest number of bytes of results that the run keeps until it writes them
    outside_pool  bytes of the device that a task takes outside CuPy's pool, such as buffers for text
    """
    # Workers release an earlier job's results before they run these tasks; then those do not count as taken.
    executor.wait([executor.call(_nothing, affinity=k) for k in range(executor.workers)])
    found = executor.everywhere(_memory, executor.device)  # in one message: each takes some milliseconds
    device_bytes, host_bytes, before_bytes = map(min, zip(*found, strict=True))
    host_bytes = memory.host_bytes or int(AUTO_HOST_SHARE * host_bytes)
    per_process = host_bytes * executor.tasks_per_process // executor.tasks_per_host
    if memory.host_bytes is not None:
        executor.everywhere(keep_freed_memory, per_process)
    device_bytes = memory.device_bytes or int(AUTO_DEVICE_SHARE * device_bytes)
    spills = is_spilling(result_bytes, executor.device, device_bytes, executor.workers)
    tasks = executor.tasks_per_process
    budget = Budget(executor.device, device_bytes, per_process, tasks, spills, before_bytes=before_bytes)
    return replace(budget, device_bytes=max(0, device_bytes - outside_pool(budget)))


def _nothing() -> None:
    pass


def _memory(device: str) -> tuple[int, int, int]:
    """Return the free bytes of the device and of the host, and the bytes of arrays on the device; restarts the
    measurement of the device's peak.
    """
    forget_peak(device)
    return free_bytes(device) if device == "gpu" else 0, free_host_bytes(), used_bytes(device)


def is_spilling(result_bytes: int, device: str, device_bytes: int, workers: int) -> bool:
    """Return whether GPUs could keep less than a quarter of `result_bytes`, an upper bound of the results.

    The bound assumes that all n-grams are distinct. Real text has fewer, but GPUs can still hardly keep their counts.
    """
    return device == "gpu" and result_bytes > 4 * KEPT_SHARE["gpu"] * device_bytes * workers


def text_within(budget: Budget, bytes_per_text_byte: int, most: int) -> int:
    """Return the bytes of text that one task may read at once, at most `most`.

    bytes_per_text_byte  bytes of memory that the task takes for each byte of its text
    """
    room = min(budget.task_bytes(), budget.host_bytes)
    return max(1, min(most, room // bytes_per_text_byte))


def chunks_ahead(budget: Budget, workers: int, result_bytes: int, most: int) -> int:
    """Return the number of chunks that may be in flight or buffered, as results wait for the result of the first chunk.

    result_bytes  bytes of host memory that the result of a chunk takes
    most          greatest number of chunks for each worker; the result is at least 1 for each
    """
    return workers * max(1, min(most, budget.kept_host_bytes() // (budget.tasks * max(1, result_bytes))))


def limited(executor: Executor, budget: Budget) -> Executor:
    """Return the executor with all its tasks within `device_limited(budget)`, on every worker that runs one."""
    return executor if budget.device == "cpu" else cast(Executor, _Limited(executor, budget))


def limited_to(executor: Executor, memory: MemoryConfig, outside_bytes: int = 0) -> Executor:
    """Return the executor with all its tasks limited to `memory.device_bytes`, if that is given.

    outside_bytes  bytes of the device that a task takes outside CuPy's pool
    """
    if memory.device_bytes is None:
        return executor
    return limited(executor, Budget(executor.device, memory.device_bytes - outside_bytes, 0))


@dataclass(frozen=True)
class _Limited:
    """An executor around `inner`: `call` and `gang` limit tasks to the budget, all else passes through."""

    inner: Executor
    budget: Budget

    def call(self, fn: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        return self.inner.call(LimitedTask(fn, self.budget), *args, **how)

    def gang(self, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], label: str = "") -> list[Handle]:
        return self.inner.gang(LimitedTask(fn, self.budget), args_by_rank, label)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class LimitedTask:
    """A task that limits CuPy's pool to a budget while it runs. It has the name of its function, which Dask shows."""

    def __init__(self, fn: Callable[..., Any], budget: Budget):
        self.fn, self.budget = fn, budget
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)

    def __call__(self, *args: Any) -> Any:
        with device_limited(self.budget):
            return self.fn(*args)
