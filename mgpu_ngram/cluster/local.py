"""Tasks in this process: as many threads as cores on a CPU, one on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from mgpu_ngram.cluster.devices import cpu_cores


class LocalExecutor:
    """An `Executor` without a cluster: kernels release the GIL, so threads run side by side."""

    def __init__(self, device: str = "cpu", workers: int | None = None):
        self.device = device
        self.workers = 1 if device == "gpu" else workers or cpu_cores()
        self.threads = max(1, cpu_cores() // self.workers)
        self.sharers = self.workers
        self.pool = ThreadPoolExecutor(self.workers)

    def call(self, fn: Callable, *args: Any) -> Future:
        # Tasks start in the order they are called, so a task that waits for its arguments waits
        # only for tasks that have started: no deadlock.
        return self.pool.submit(_run, fn, args)

    def wait(self, handles: Sequence[Future], done: Callable[[Any], None] | None = None) -> None:
        try:
            for handle in as_completed(handles):
                handle.result()
                if done:
                    done(handle)
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def gather(self, handles: Sequence[Future]) -> list[Any]:
        return [h.result() for h in handles]

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


def _run(fn: Callable, args: tuple) -> Any:
    return fn(*[_value(a) for a in args])


def _value(arg: Any) -> Any:
    if isinstance(arg, Future):
        return arg.result()
    if isinstance(arg, list):
        return [_value(a) for a in arg]
    return arg
