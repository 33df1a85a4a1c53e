"""Run tasks in threads of this process: one per core on a CPU, one on a GPU, and one more for priority tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from mgpu_ngram.cluster.devices import allow_open_files, cpu_cores
from mgpu_ngram.cluster.executor import Offer, OnDone, Share
from mgpu_ngram.cluster.gang import check_size


class LocalExecutor:
    """An `Executor` without a cluster: kernels release the GIL, so threads run side by side."""

    transport: str = "memory"
    dashboard: str | None = None
    resume_hint: str = ""

    def __init__(self, device: str = "cpu", workers: int | None = None):
        allow_open_files()
        self.device = device
        self.workers = 1 if device == "gpu" else workers or cpu_cores()
        self.threads = max(1, cpu_cores() // self.workers)
        self.tasks_per_host = self.tasks_per_process = self.workers
        self.pool = ThreadPoolExecutor(self.workers)
        self._priority_thread = ThreadPoolExecutor(1)
        self.closed = False
        if device == "gpu":
            self.pool.submit(_open_gpu)  # while the driver reads and plans: CuPy and CUDA take about a second

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        label: str = "",
        affinity: int | None = None,
        colocate_with: Future[Any] | None = None,
        priority: bool = False,
    ) -> Future[Any]:
        if priority:
            handle: Future[Any] = Future()
            self._enter([handle, fn, args], list(_handles(args)))
            return handle
        # Tasks start in the order they are called, so a task that waits for its arguments waits
        # only for tasks that have started, or for priority ones, which never wait: no deadlock.
        return self.pool.submit(_run, fn, args)

    def _enter(self, task: list[Any], arguments: list[Future[Any]], _: Future[Any] | None = None) -> None:
        """Give a priority task to its thread as soon as the last of its arguments has finished."""
        while arguments and arguments[-1].done():
            arguments.pop()
        if arguments:
            arguments[-1].add_done_callback(partial(self._enter, task, arguments))
            return
        try:
            self._priority_thread.submit(self._run_priority, task)
        except RuntimeError:  # closed meanwhile
            task[0].cancel()

    def _run_priority(self, task: list[Any]) -> None:
        handle, fn, args = task
        task.clear()  # finished arguments refer to the task, which would keep them alive
        if self.closed:
            handle.cancel()
        if handle.set_running_or_notify_cancel():
            try:
                handle.set_result(_run(fn, args))
            except BaseException as error:
                handle.set_exception(error)

    def wait(self, handles: Iterable[Future[Any]], done: OnDone | None = None) -> None:
        finished: SimpleQueue[Future[Any]] = SimpleQueue()
        pending: set[Future[Any]] = set()

        def follow(more: Iterable[Future[Any]]) -> None:
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

    def offer(self, handles: Sequence[Future[Any]]) -> Offer:
        """Return at once: a task waits for its arguments."""
        return Offer(tuple(handles))

    def gather(self, handles: Sequence[Future[Any]]) -> list[Any]:
        return [h.result() for h in handles]

    def fetch(self, handle: Future[Any]) -> Any:
        return handle.result()

    def everywhere(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        return [fn(*args)]

    def gang_size(self, seconds: float = 0) -> int:
        return self.workers

    def gang(self, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], label: str = "") -> list[Future[Any]]:
        """Run the ranks in separate threads, so that they do not wait for tasks."""
        from mgpu_ngram.cluster.gang_host import run_in_threads  # imports NumPy, which `--help` does not need

        check_size(len(args_by_rank), self.workers, label)
        return run_in_threads(fn, [[_value(a) for a in args] for args in args_by_rank])

    def groups(self, handles: Sequence[Future[Any]]) -> list[list[Future[Any]]]:
        return [list(handles)] if handles else []

    def worker_of(self, handle: Future[Any]) -> str:
        return "0"

    def check_folder(self, folder: str) -> None:
        """Do nothing: every task sees the folders of this process."""

    def reserve(self, device_bytes: int) -> None:
        """Do nothing: no arrays move."""

    def describe(self) -> str:
        if self.device == "gpu":
            return "this process, one GPU"
        return f"this process, {self.workers} thread{'s' * (self.workers != 1)}"

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.closed = True
        self._priority_thread.shutdown(wait=True)


def _open_gpu() -> None:
    """Import CuPy and create the CUDA context. Ignores errors: the first task meets and reports the same error."""
    with suppress(Exception):
        import cupy

        cupy.empty(1)


def _run(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*[_value(a) for a in args])


def _handles(args: Iterable[Any]) -> Iterator[Future[Any]]:
    """Yield the handles that `_value` waits for."""
    for arg in args:
        if isinstance(arg, Future):
            yield arg
        elif isinstance(arg, Share):
            yield from arg.offer.handles
        elif isinstance(arg, list):
            yield from _handles(arg)


def _value(arg: Any) -> Any:
    if isinstance(arg, Future):
        return arg.result()
    if isinstance(arg, Share):
        return [arg.take(handle.result(), *arg.args) for handle in arg.offer.handles]
    if isinstance(arg, list):
        return [value for a in arg for value in (_value(a) if isinstance(a, Share) else [_value(a)])]
    return arg
