"""Run tasks on a Dask cluster, which the run started or the user provides."""

from __future__ import annotations

import importlib.util
import itertools
import threading
import time
import uuid
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, KilledWorker, as_completed
from distributed.client import FutureCancelledError
from distributed.scheduler import NoWorkerError

from mgpu_ngram.cluster import checks, dask_private, gang_driver, lent_arrays
from mgpu_ngram.cluster.executor import Offer, OnDone, ResultLost, Share
from mgpu_ngram.cluster.faults import Watch
from mgpu_ngram.cluster.gang_worker import Place, run_rank
from mgpu_ngram.cluster.shares import Take, ValuePlace
from mgpu_ngram.cluster.worker import Plugin, Prompt, run_task, versions
from mgpu_ngram.core.errors import RunError

MAX_CALLED_TASKS = 100  # tasks per message: the scheduler is blocked while it takes them
CALLED_SECONDS = 0.005  # longest delay of a message, so workers do not wait for a slow caller


@dataclass
class _Call:
    """A task that is not sent yet.

    It holds the handles among its arguments, so that their values live. It does not hold its own handle, so that a task
    is dropped if nobody waits for it any more, as after an error.
    """

    future: weakref.ref[Future[Any]]
    args: tuple[Any, ...]
    affinity: int | None
    colocate_with: Future[Any] | None
    priority: bool


class DaskExecutor:
    """An `Executor` around a `distributed.Client`.

    device   "auto": the device of the workers
    ours     whether the cluster was started for this executor; any other cluster is left as it was
    closing  contexts that close() also ends
    lost_seconds  a worker that is silent for so long is removed; with a silent scheduler, the run ends. None: 300
    """

    def __init__(
        self,
        client: Client,
        device: str = "auto",
        ours: bool = False,
        closing: ExitStack | None = None,
        lost_seconds: float | None = None,
    ):
        self.client, self._ours, self._closing = client, ours, closing
        scheduler = checks.scheduler_info(client)
        self._address, workers = str(scheduler["address"]), scheduler["workers"]
        checks.check_tasks(client, workers, device)
        self.device, facts = checks.check_workers(client, workers, device)
        self.workers = sum(w["nthreads"] for w in workers.values())
        tasks_by_host: Counter[str] = Counter()
        for w in workers.values():
            tasks_by_host[w["host"]] += w["nthreads"]
        self.tasks_per_host = max(tasks_by_host.values())
        self.tasks_per_process = max(w["nthreads"] for w in workers.values())
        self.threads = checks.threads_per_task({a: w["nthreads"] for a, w in workers.items()}, facts)
        self.dashboard = client.dashboard_link if importlib.util.find_spec("bokeh") else None
        self.transport, may_lend = checks.choose_transport(client, self.device, facts)
        self._name = f"mgpu-ngram-{uuid.uuid4().hex}"
        if ours:
            client.register_plugin(Prompt())
            dask_private.send_sooner_from_client(client)
        client.register_plugin(Plugin(self._name, self.device, versions(), may_lend, ours))
        self._watch = Watch(client, self._address, self._name, lost_seconds)
        self._called: dict[str, _Call] = {}  # by key
        self._calling, self._called_since, self._numbers = threading.Lock(), 0.0, itertools.count()

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        label: str = "",
        affinity: int | None = None,
        colocate_with: Future[Any] | None = None,
        priority: bool = False,
    ) -> Future[Any]:
        with self.scheduler():
            name = getattr(fn, "__name__", type(fn).__name__)
            # Dask decides by name whether tasks queue until a worker is free, from the arguments of all tasks of that
            # name. Tasks with fewer arguments get their own name, or all would go to the worker that holds one.
            key = f"{name}_{sum(isinstance(a, Future) for a in args)}-{uuid.uuid4().hex}"
            future: Future[Any] = Future(key, self.client)
            self._watch.add(future, label)
            now, args = time.monotonic(), (fn, self._name, self.device, label, *map(_sent, args))
            with self._calling:
                self._called_since = self._called_since if self._called else now
                self._called[key] = _Call(weakref.ref(future), args, affinity, colocate_with, priority)
                is_enough = len(self._called) >= MAX_CALLED_TASKS or now > self._called_since + CALLED_SECONDS
            if is_enough:
                self._send()
            return future

    def _send(self) -> None:
        """Send all tasks that were called since the last message, in that order."""
        with self._calling:
            called, self._called = self._called, {}
        wanted: dict[str, _Call] = {}
        while called:  # last first: a dropped call may hold the only handles of earlier ones
            key, call = called.popitem()
            if call.future() is not None:
                wanted[key] = call
            del call
        if not wanted:
            return
        calls = {}
        for key, call in reversed(wanted.items()):
            holder = None if call.colocate_with is None else str(call.colocate_with.key)
            workers = self._watch.place(key, call.affinity, holder)
            calls[key] = dask_private.Call(run_task, call.args, workers, holder is not None, call.priority)
        dask_private.send_tasks(self.client, calls, [next(self._numbers) for _ in calls])

    def wait(self, handles: Iterable[Future[Any]], done: OnDone | None = None) -> None:
        finished = as_completed(handles, loop=self.client.loop)
        del handles
        while True:
            with self.scheduler():
                self._send()
            if (handle := next(finished, None)) is None:
                return
            self.raise_error_of(handle)
            finished.update((done(handle) if done else None) or ())
            del handle  # or it would live until the next one finishes

    def offer(self, handles: Sequence[Future[Any]]) -> Offer:
        self.wait(iter(handles))
        places = [ValuePlace(str(h.key), self._watch.address_of(str(h.key))) for h in handles]
        return Offer(tuple(handles), self.call(list, places, priority=True))

    def gather(self, handles: Sequence[Future[Any]]) -> list[Any]:
        self.wait(handles)
        with self.scheduler():
            return [parcel.open() for parcel in self.client.gather(list(handles))]

    def fetch(self, handle: Future[Any]) -> Any:
        self.wait([handle])
        with self.scheduler():
            parcel = self.client.gather(handle, direct=True)  # through the scheduler where no worker can be reached
        return parcel.open()

    def everywhere(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        with self.scheduler():
            self._send()
            # Dask would wait forever for a worker that joins and leaves again because it cannot read our tasks
            workers = checks.scheduler_info(self.client)["workers"].items()
            addresses = [address for address, worker in workers if worker["status"] in ("running", "paused")]
            answers = list(self.client.run(fn, *args, workers=addresses, on_error="return").values())
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise answer
        answers = [a for a in answers if not isinstance(a, OSError)]  # others died just now
        return answers or self.gather([self.call(fn, *args)])  # all died: ask the next worker that joins

    def gang_size(self, seconds: float = 0) -> int:
        return gang_driver.size_now(self, seconds)

    def gang(self, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], label: str = "") -> list[Future[Any]]:
        return gang_driver.run(self, fn, args_by_rank, label)

    def send_ranks(
        self, fn: Callable[..., Any], places: Sequence[Place], args_by_rank: Sequence[Sequence[Any]], label: str
    ) -> list[Future[Any]]:
        """Send the tasks of a gang in one message, each for one worker only."""
        calls: dict[str, dask_private.Call] = {}
        futures: list[Future[Any]] = []
        for place, args in zip(places, args_by_rank, strict=True):
            name = f"rank {place.rank} of {label or 'a gang'}"
            key = f"{getattr(fn, '__name__', type(fn).__name__)}_rank-{uuid.uuid4().hex}"
            futures.append(Future(key, self.client))
            self._watch.add(futures[-1], name)
            task = (run_rank, self._name, self.device, name, place, self.device, fn, *args)
            calls[key] = dask_private.Call(run_task, task, [place.addresses[place.rank]], strict=True, priority=True)
        with self.scheduler():
            self._send()
            dask_private.send_tasks(self.client, calls, [next(self._numbers) for _ in calls])
        return futures

    def groups(self, handles: Sequence[Future[Any]]) -> list[list[Future[Any]]]:
        groups = defaultdict(list)
        with self.scheduler():
            for handle in handles:
                groups[self._watch.holder_of(str(handle.key))].append(handle)  # a lost handle forms its own group
        return [groups[holder] for holder in sorted(groups)]

    def worker_of(self, handle: Future[Any]) -> str:
        return self._watch.worker_of(str(handle.key))

    def holder_of(self, handle: Future[Any]) -> str:
        """Return the address of the worker that ran a task last, or the task's key if that worker is lost."""
        return self._watch.holder_of(str(handle.key))

    def check_folder(self, folder: str) -> None:
        if not self._ours:  # the workers of ours are processes of this host
            with self.scheduler():
                checks.check_folder(self.client, folder)

    def reserve(self, device_bytes: int) -> None:
        if self._ours and self.transport == "ipc":
            with self.scheduler():
                self.client.run(lent_arrays.reserve, device_bytes, on_error="ignore")

    @property
    def resume_hint(self) -> str:
        return self._watch.resume_hint

    @resume_hint.setter
    def resume_hint(self, hint: str) -> None:
        self._watch.resume_hint = hint

    def describe(self) -> str:
        return f"{self.workers} {self.device} worker{'s' * (self.workers != 1)}"

    def close(self) -> None:
        if not self._ours and self.client.status == "running":
            with suppress(OSError, RuntimeError):  # the scheduler is gone, and its state with it
                self._watch.close()
                self.client.unregister_worker_plugin(self._name)
        if self._closing is not None:
            self._closing.close()

    @contextmanager
    def scheduler(self) -> Iterator[None]:
        """Turn exceptions of Dask after the loss of its scheduler, or after the end of a run, into one-line errors."""
        if self._watch.error:
            raise self._watch.error
        if self.client.status != "running":
            raise self._lost()
        try:
            yield
        except (OSError, FutureCancelledError, checks.NoAnswer):
            raise self._watch.error or self._lost() from None

    @property
    def on_loss(self) -> list[Callable[[str], None]]:
        """Functions called with the address of each worker that leaves."""
        return self._watch.on_loss

    def way_out(self, first: str) -> str:
        """Return the advice for the next run, and how to resume."""
        return self._watch.way_out(first)

    def _lost(self) -> RunError:
        return RunError(f"the Dask scheduler {self._address} was lost; {self._watch.way_out('start one')}")

    def raise_error_of(self, handle: Future[Any]) -> None:
        """Raise the error of a finished task, if it has one."""
        error = None if handle.status == "finished" else handle.exception()  # waits if its worker was lost since
        if handle.status == "cancelled":
            raise self._watch.error or self._lost()
        if error is None:
            return
        if isinstance(error, KilledWorker):
            raise RunError(
                f"{self._watch.label(str(error.task))} killed every worker that tried it "
                f"({error.allowed_failures + 1} times); the usual reason is lack of memory: "
                "use smaller chunks (chunk_bytes) "
                "or fewer workers"
            ) from None
        if isinstance(error, NoWorkerError):
            raise RunError(self._watch.no_workers()) from None
        if isinstance(error, ResultLost):  # another object: Dask keeps this one, and with it the frames that raise it
            raise ResultLost(f"{error}; {self._watch.way_out('look at its log')}") from None
        raise error


def _sent(arg: Any) -> Any:
    """Return an argument as tasks receive it: `worker.run_task` takes shares itself."""
    if isinstance(arg, Share):
        return [Take(arg.take, arg.args), arg.offer.places]
    if isinstance(arg, list):
        return [_sent(a) for a in arg]
    return arg
