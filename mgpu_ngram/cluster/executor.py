"""The interface through which jobs run tasks. A handle stands for a result that stays on its worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from mgpu_ngram.core.errors import RunError

SILENT_SECONDS = 300.0  # a worker or a scheduler that is silent for so long is lost
MAX_DEATHS = 4  # a run ends when one task has killed this many workers, or when the same gang was lost this often
Handle = Any
OnDone = Callable[[Any], Iterable[Any] | None]


class ResultLost(RunError):
    """A worker was lost with the result of a task that took shares of an offer that has ended. Dask cannot make this
    result again; the caller of the task must.
    """


@dataclass(frozen=True)
class Offer:
    """Finished values of which tasks may take shares: the result of `Executor.offer`. It keeps the values alive.

    places  a handle of the values' places, which workers read
    """

    handles: tuple[Handle, ...]
    places: Handle = None

    def share(self, take: Callable[..., Any], *args: Any) -> Share:
        """Return an argument for a task: take(value, *args) of each value. Keep it until the task has finished."""
        return Share(self, take, args)


@dataclass(frozen=True)
class Share:
    """An argument for which a task receives the list of take(value, *args) of all values; inside a list of arguments,
    these take the place of the share. The worker that holds a value calls `take`, at any time: `take` must be short,
    such as a view, and must not change the value.
    """

    offer: Offer
    take: Callable[..., Any]
    args: tuple[Any, ...]


class Executor(Protocol):
    """Runs pure functions. Arguments may be handles, shares or lists of them; tasks receive their values. Ranks of a
    gang take no shares.

    workers    number of tasks that run at once
    device     "cpu" or "gpu", the device of the tasks
    threads    number of host threads that one task may use
    tasks_per_host     number of tasks at once on one host
    tasks_per_process  number of tasks at once in one process
    transport  transport of values between workers: "memory", "ipc", "ucx" or "tcp"
    dashboard  address of the cluster's dashboard, or None
    resume_hint  how to resume a run after its cluster is lost, such as "with --resume"; the caller of a run sets it,
               and errors end with it. Empty: the run must start again
    """

    workers: int
    device: str
    threads: int
    tasks_per_host: int
    tasks_per_process: int
    transport: str
    dashboard: str | None
    resume_hint: str

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        label: str = "",
        affinity: int | None = None,
        colocate_with: Handle | None = None,
        priority: bool = False,
    ) -> Handle:
        """Run fn(*args) on some worker. It may begin only when this process calls `wait`, `offer`, `gather` or
        `everywhere`.

        label          name of the task in errors: "chunk 3: books.txt, bytes 0 to 1,000"
        affinity       prefer worker number `affinity % workers`; another worker takes the task if that worker is lost
        colocate_with  prefer the worker that holds the value of this finished handle
        priority       start before tasks that were called earlier and have not started
        """

    def wait(self, handles: Iterable[Handle], done: OnDone | None = None) -> None:
        """Wait for all; call `done` with each handle as it finishes. The first error is raised.

        `done` may return further handles to wait for. Finished handles are dropped, so values without other
        handles are freed during the wait.
        """

    def offer(self, handles: Sequence[Handle]) -> Offer:
        """Wait for all, and let tasks take shares of their values. Values do not move to workers that take a share."""

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """Return small values to this process; device arrays may become NumPy arrays."""

    def fetch(self, handle: Handle) -> Any:
        """Return a large value to this process, directly from the worker that holds it."""

    def everywhere(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Run fn(*args) in every worker process at once; for short functions with small results."""

    def gang_size(self, seconds: float = 0) -> int:
        """Return the number of ranks that a gang can have now: the number of tasks that run at once.

        On a cluster, waits for the first worker, and up to `seconds` for all `workers`, because lost workers may
        return.
        """

    def gang(self, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], label: str = "") -> list[Handle]:
        """Run fn(communicator, *args) for each rank, all at once; wait for all.

        label  name of the work for errors, such as "the sweeps"

        The communicator is a `gang.Communicator`. Waits until enough workers are free. Returns the finished handles of
        the results, by rank; a result is lost with its worker. A rank runs on a worker that holds one of its arguments,
        if possible. The first error of a rank is raised; a lost worker raises GangError. In both cases, and after
        Ctrl-C, all other ranks end with GangError where they call their communicator.
        """

    def groups(self, handles: Sequence[Handle]) -> list[list[Handle]]:
        """Return finished handles grouped by the worker that made their values; groups keep the order."""

    def worker_of(self, handle: Handle) -> str:
        """Return the name of the worker that ran the task of a handle."""

    def check_folder(self, folder: str) -> None:
        """Raise InputError unless every worker sees this folder of the driver."""

    def reserve(self, device_bytes: int) -> None:
        """Allocate this number of bytes of device memory at once on every worker, if arrays then move faster."""

    def describe(self) -> str:
        """Return where tasks run, for reports: "this process, 2 threads" or "2 cpu workers"."""

    def close(self) -> None:
        """Stop what this executor started."""


def reduce_tasks(
    executor: Executor,
    merge: Callable[..., Any],
    handles: Sequence[Handle],
    arity: int = 8,
    roots: int = 1,
    priority: bool = False,
) -> list[Handle]:
    """Merge neighbours in a tree, with an associative merge(*values) of 2 to `arity` values.

    priority  as in `Executor.call`

    Returns at most `roots` handles, in the order of `handles`.
    """
    handles = list(handles)
    while len(handles) > roots:
        groups = [handles[i : i + arity] for i in range(0, len(handles), arity)]
        handles = [executor.call(merge, *g, priority=priority) if len(g) > 1 else g[0] for g in groups]
    return handles


def windowed(
    executor: Executor, calls: Iterable[Handle], window: int, done: OnDone, meanwhile: Callable[[], None] | None = None
) -> None:
    """Wait for the tasks of `calls`, at most `window` unfinished at once, because workers fetch arguments early.

    calls      a lazy iterable: drawing a handle from it calls its task
    done       called with each handle as it finishes; may return further handles to wait for, which do not count
               towards the window
    meanwhile  called once, after the first calls
    """
    waiting, counted = iter(calls), set[Handle]()

    def more(n: int) -> list[Handle]:
        made = list(islice(waiting, n))
        counted.update(made)
        return made

    def follow(handle: Handle) -> list[Handle]:
        further = list(done(handle) or ())
        if handle in counted:
            counted.remove(handle)
            further += more(1)
        return further

    first = iter(more(window))
    if meanwhile:
        meanwhile()
    executor.wait(first, follow)


def in_order(executor: Executor, calls: Iterable[Handle], window: int) -> Iterator[Any]:
    """Yield the values of `calls` in order, at most `window` running or not yet yielded at once.

    calls  a lazy iterable: drawing a handle from it calls its task
    """
    waiting: deque[Handle] = deque()
    for handle in calls:
        waiting.append(handle)
        if len(waiting) == window:
            yield executor.fetch(waiting.popleft())
    while waiting:
        yield executor.fetch(waiting.popleft())
