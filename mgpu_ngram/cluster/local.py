"""Tasks in this process: as many threads as cores on a CPU, one on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from mgpu_ngram.cluster.devices import allow_open_files, cpu_cores
from mgpu_ngram.cluster.executor import Done


class LocalExecutor:
    """An `Executor` without a cluster: kernels release the GIL, so threads run side by side."""

    transport: str = "memory"
    dashboard: str | None = None

    def __init__(self, device: str = "cpu", workers: int | None = None):
        allow_open_files()
        self.device = device
        self.workers = 1 if device == "gpu" else workers or cpu_cores()
        self.threads = max(1, cpu_cores() // self.workers)
        self.sharers = self.tasks_per_process = self.workers
        self.pool = ThreadPoolExecutor(self.workers)
        self.first = ThreadPoolExecutor(1)

    def call(
        self,
        fn: Callable,
        *args: Any,
        label: str = "",
        near: int | None = None,
        beside: Future | None = None,
        first: bool = False,
    ) -> Future:
        # Tasks start in the order they are called, so a task that waits for its arguments waits
        # only for tasks that have started: no deadlock.
        return (self.first if first else self.pool).submit(_run, fn, args)

    def wait(self, handles: Iterable[Future], done: Done | None = None) -> None:
        finished: SimpleQueue[Future] = SimpleQueue()
        pending: set[Future] = set()

        def follow(more: Iterable[Future]) -> None:
            for handle in more:
                pending.add(handle)
                handle.add_done_callback(finished.put)

        follow(handles)
        try:
            while pending:
                handle = finished.get()
                pending.discard(handle)
                handle.result()
                follow((done(handle) if done else None) or ())
                del handle  # or it would live until the next one finishes
        except BaseException:
            for handle in pending:
                handle.cancel()
            raise

    def gather(self, handles: Sequence[Future]) -> list[Any]:
        return [h.result() for h in handles]

    def groups(self, handles: Sequence[Future]) -> list[list[Future]]:
        return [list(handles)] if handles else []

    def worker_of(self, handle: Future) -> str:
        return "0"

    def check_folder(self, folder: str) -> None:
        """Every task sees what this process sees."""

    def reserve(self, device_bytes: int) -> None:
        """Nothing crosses."""

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.first.shutdown(wait=True, cancel_futures=True)


def _run(fn: Callable, args: tuple) -> Any:
    return fn(*[_value(a) for a in args])


def _value(arg: Any) -> Any:
    if isinstance(arg, Future):
        return arg.result()
    if isinstance(arg, list):
        return [_value(a) for a in arg]
    return arg
