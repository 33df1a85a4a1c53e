"""Run a gang on a Dask cluster, from the driver: start all ranks or none, and abort all when one is lost."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from distributed import Client, Future

from mgpu_ngram.cluster import checks
from mgpu_ngram.cluster.gang import GangError, check_size
from mgpu_ngram.cluster.gang_host import POLL_SECONDS
from mgpu_ngram.cluster.gang_worker import Place, ranks_here

GANG_START_SECONDS = 10.0  # for all ranks: another gang may hold some of the workers. Doubles with each attempt
ABORT_SECONDS = 10.0  # to wait for the ranks of an aborted gang to end
QUIET_SECONDS = 2.0  # a longer wait for free workers is reported
PAUSE_SECONDS = 0.005, 0.1  # between questions to the workers, first and last


class GangExecutor(Protocol):
    """The methods of a `DaskExecutor` that run a gang; each is described there."""

    client: Client
    workers: int

    @property
    def on_loss(self) -> list[Callable[[str], None]]: ...
    def scheduler(self) -> AbstractContextManager[None]: ...
    def wait(self, handles: Iterable[Future[Any]]) -> None: ...
    def holder_of(self, handle: Future[Any]) -> str: ...
    def worker_of(self, handle: Future[Any]) -> str: ...
    def send_ranks(
        self, fn: Callable[..., Any], places: Sequence[Place], args_by_rank: Sequence[Sequence[Any]], label: str
    ) -> list[Future[Any]]: ...
    def raise_error_of(self, handle: Future[Any]) -> None: ...
    def way_out(self, first: str) -> str: ...


def slots(executor: GangExecutor) -> dict[str, int]:
    """Return the number of tasks that each worker can run at once, by address."""
    with executor.scheduler():
        workers = checks.scheduler_info(executor.client)["workers"].items()
    return {address: int(worker["nthreads"]) for address, worker in workers if worker["status"] == "running"}


def size_now(executor: GangExecutor, seconds: float) -> int:
    """Return the number of workers' slots; see `Executor.gang_size`."""
    deadline = time.monotonic() + seconds
    while (size := sum(slots(executor).values())) < executor.workers:
        if size and time.monotonic() > deadline:
            break
        time.sleep(PAUSE_SECONDS[1])
    return size


def run(
    executor: GangExecutor, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], label: str
) -> list[Future[Any]]:
    """Run a gang; see `Executor.gang`."""
    executor.wait([handle for args in args_by_rank for handle in _handles(args)])
    patience = GANG_START_SECONDS
    while True:
        attempt = _Attempt(executor, _find_workers(executor, args_by_rank, label), label)
        try:
            if attempt.start(fn, args_by_rank, patience):
                return attempt.finish()
        except BaseException:
            attempt.abort()
            raise
        attempt.abort()
        patience *= 2


def _handles(args: Sequence[Any]) -> list[Future[Any]]:
    return [h for a in args for h in (a if isinstance(a, list) else [a]) if isinstance(h, Future)]


def _find_workers(executor: GangExecutor, args_by_rank: Sequence[Sequence[Any]], label: str) -> tuple[str, ...]:
    """Return the addresses of free workers by rank; wait until there are enough, and say so."""
    said, begin = False, time.monotonic()
    while True:
        there = slots(executor)
        _check_left(executor, len(args_by_rank), sum(there.values()), label)
        with executor.scheduler():
            running = executor.client.processing(list(there))
        free = {address: max(0, number - len(running.get(address, ()))) for address, number in there.items()}
        lacking = len(args_by_rank) - sum(free.values())
        if lacking <= 0:
            return _place(free, [[executor.holder_of(h) for h in _handles(args)] for args in args_by_rank])
        if not said and time.monotonic() - begin > QUIET_SECONDS:
            said = True
            print(
                f"mgpu-ngram: waiting for {lacking} of {len(args_by_rank)} workers{label and f' for {label}'}; "
                "they run other tasks",
                file=sys.stderr,
            )
        time.sleep(PAUSE_SECONDS[1])


def _check_left(executor: GangExecutor, size: int, there: int, label: str) -> None:
    """Raise GangError for more ranks than slots. It reports lost workers if the run started with enough slots."""
    if there < size <= executor.workers:
        lost = f"({executor.workers - there} of {executor.workers} left before {label or 'a gang'})"
        raise GangError(f"{size} ranks were requested but workers were lost {lost}; start a new gang", [lost])
    check_size(size, there, label)


def _place(free: dict[str, int], holders: list[list[str]]) -> tuple[str, ...]:
    """Return a free worker for each rank: one that holds an argument of the rank, else the one with most free slots."""
    free, placed = dict(free), dict[int, str]()
    for rank, wanted in enumerate(holders):
        if address := next((a for a in wanted if free.get(a)), ""):
            placed[rank] = address
            free[address] -= 1
    for rank in range(len(holders)):
        if rank not in placed:
            placed[rank] = max(free, key=free.__getitem__)
            free[placed[rank]] -= 1
    return tuple(placed[rank] for rank in range(len(holders)))


class _Attempt:
    """One try to run a gang on these workers."""

    def __init__(self, executor: GangExecutor, addresses: tuple[str, ...], label: str):
        self.executor, self.addresses, self.label, self.id = executor, addresses, label, uuid.uuid4().hex
        self.futures: list[Future[Any]] = []
        self.events: SimpleQueue[Future[Any] | str] = SimpleQueue()  # finished ranks, and addresses of lost workers
        executor.on_loss.append(self.events.put)

    def start(self, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]], seconds: float) -> bool:
        """Send all ranks and let them begin when all are there; return False if some do not come in time."""
        places = [Place(self.id, rank, self.addresses, seconds) for rank in range(len(self.addresses))]
        self.futures = self.executor.send_ranks(fn, places, args_by_rank, self.label)
        self.unfinished = len(self.futures)
        for future in self.futures:
            future.add_done_callback(self.events.put)
        deadline, pause = time.monotonic() + seconds, PAUSE_SECONDS[0]
        while len(self._ranks()) < len(self.futures):
            if time.monotonic() > deadline:
                return False
            with suppress(Empty):
                self._take(self.events.get(timeout=pause))
            pause = min(2 * pause, PAUSE_SECONDS[1])
        waiting = set(self.addresses)
        while waiting := waiting - self._ask(waiting, begin=True).keys():  # a lost worker comes as an event
            with suppress(Empty):
                self._take(self.events.get(timeout=pause))
        return True

    def finish(self) -> list[Future[Any]]:
        """Wait for all ranks; return their handles."""
        while self.unfinished:
            with suppress(Empty):  # a Ctrl-C just before a wait does not end the wait, so it is short
                self._take(self.events.get(timeout=POLL_SECONDS))
        self.executor.on_loss.remove(self.events.put)
        return self.futures

    def abort(self) -> None:
        """End all ranks, and return when they have ended."""
        self.executor.on_loss.remove(self.events.put)
        deadline = time.monotonic() + ABORT_SECONDS
        with suppress(OSError, RuntimeError):  # the scheduler is gone, and cancels them itself
            self.executor.client.cancel(self.futures)
            while self._ranks() and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS[1] / 2)

    def _ranks(self) -> set[int]:
        """Return the ranks that run."""
        return {rank for ranks in self._ask(set(self.addresses), begin=False).values() for rank in ranks}

    def _ask(self, addresses: set[str], begin: bool) -> dict[str, list[int]]:
        """Return the ranks that run, by address of the workers that answer; let them begin if they may."""
        there = sorted(addresses & slots(self.executor).keys())
        with self.executor.scheduler():
            return dict(self.executor.client.run(ranks_here, self.id, begin, workers=there, on_error="ignore"))

    def _take(self, event: Future[Any] | str) -> None:
        """Note that a rank has finished; raise its error, or GangError for a lost worker."""
        if isinstance(event, Future):
            self.executor.raise_error_of(event)
            self.unfinished -= 1
        elif event in self.addresses:
            name = self.executor.worker_of(self.futures[self.addresses.index(event)]) or event
            raise GangError(
                f"worker {name} ({event}) was lost, which ended {self.label or 'a gang'} on "
                f"{len(self.addresses)} workers; {self.executor.way_out('see its log')}",
                [name],
            )
