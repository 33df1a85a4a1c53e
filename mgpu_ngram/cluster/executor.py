"""What a job may ask of whatever runs its tasks. A handle stands for a result that stays where it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

Handle = Any
Done = Callable[[Any], Iterable[Any] | None]


class Executor(Protocol):
    """Runs pure functions. Arguments may be handles, or lists of handles: they arrive as values.

    workers    tasks that run at once
    device     "cpu" or "gpu", where tasks work
    threads    host threads that one task may use
    tasks_per_host    tasks at once that share a host, and
    tasks_per_process  those of them that share a process
    transport  how values go from worker to worker: "memory", "ipc", "ucx" or "tcp"
    dashboard  address of the cluster's dashboard, if it has one
    """

    workers: int
    device: str
    threads: int
    tasks_per_host: int
    tasks_per_process: int
    transport: str
    dashboard: str | None

    def call(
        self,
        fn: Callable,
        *args: Any,
        label: str = "",
        affinity: int | None = None,
        colocate_with: Handle | None = None,
        priority: bool = False,
    ) -> Handle:
        """Run fn(*args) somewhere. It may begin only when this process waits, gathers, or asks everywhere.

        label  what the task is to people, for errors: "chunk 3: books.txt, bytes 0 to 1,000"
        affinity       prefer worker number `affinity % workers`; another takes the task when that one is gone
        colocate_with  prefer the worker that holds the value of this finished handle
        priority       start before tasks that were called earlier and have not started
        """

    def wait(self, handles: Iterable[Handle], done: Done | None = None) -> None:
        """Wait for all; call `done` with each handle as it finishes. The first error is raised.

        `done` may return further handles, which are then waited for, too.
        A finished handle is not kept: what nobody else holds is freed while others are still awaited.
        """

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """The values, here. For small ones; arrays of a device may come as NumPy arrays."""

    def fetch(self, handle: Handle) -> Any:
        """The value, here: a large one, straight from the worker that holds it."""

    def everywhere(self, fn: Callable, *args: Any) -> list[Any]:
        """fn(*args) in every worker process, at once: for small questions, with small answers."""

    def groups(self, handles: Sequence[Handle]) -> list[list[Handle]]:
        """Finished handles by the worker that made their value, each group in the order given."""

    def worker_of(self, handle: Handle) -> str:
        """The name of the worker that ran it."""

    def check_folder(self, folder: str) -> None:
        """Raise InputError unless every worker sees this folder of ours."""

    def reserve(self, device_bytes: int) -> None:
        """A hint that every worker will need so much of its device: arrays then cross faster."""

    def close(self) -> None:
        """Stop what this executor started."""


def reduce_tasks(executor: Executor, merge: Callable, handles: Sequence[Handle], arity: int = 8) -> Handle:
    """Join handles in a tree by an associative merge(*values)."""
    handles = list(handles)
    while len(handles) > 1:
        groups = [handles[i : i + arity] for i in range(0, len(handles), arity)]
        handles = [executor.call(merge, *g) if len(g) > 1 else g[0] for g in groups]
    return handles[0]


def windowed(
    executor: Executor, calls: Iterable[Callable[[], Handle]], window: int, done: Callable[[Handle], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Make calls, at most `window` of them unfinished at once, since workers fetch the arguments of all at once.

    meanwhile  done once, after the first calls
    """
    waiting = iter(calls)

    def next_one(handle: Handle) -> list[Handle]:
        done(handle)
        return [call() for call in islice(waiting, 1)]

    first = [call() for call in islice(waiting, window)]
    if meanwhile:
        meanwhile()
    executor.wait(iter(first), next_one)
