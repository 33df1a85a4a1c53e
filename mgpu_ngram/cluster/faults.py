"""Detect from the events of the cluster which task kills its workers, and whether all workers are lost."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future

from mgpu_ngram.cluster import dask_private
from mgpu_ngram.cluster.executor import MAX_DEATHS, SILENT_SECONDS
from mgpu_ngram.core.errors import RunError

RELEASE_SECONDS = 1  # by then the scheduler knows of tasks that were in flight when a worker was lost
LOOKS = 10  # for silent workers within lost_seconds; the scheduler logs each
ECHO, ECHO_SECONDS = "echo", 0.02  # key of an event that shows the driver that it receives events
WORKERS_TOPIC = "all"  # Dask's topic for workers that join and leave


@dataclass
class _Task:
    label: str
    worker: str = ""  # name of the last worker that started it
    address: str = ""
    deaths: int = 0
    told: bool = False  # whether the driver is told before it starts
    error: str = ""  # of the GPU, if that was the cause


class Watch:
    """Follows the tasks of one executor. `error` says why the run cannot continue; then all its futures are cancelled.

    Dask's own count of failures (allowed-failures) blames every task that was queued on a lost worker. This class
    counts only tasks that the lost worker had started and not finished.
    """

    def __init__(self, client: Client, address: str, topic: str, lost_seconds: float | None = None):
        self.lost_seconds = lost_seconds or SILENT_SECONDS
        self.client, self.address, self.topic = client, address, topic
        self.resume_hint = ""  # see Executor
        self.error: RunError | None = None
        self.on_loss: list[Callable[[str], None]] = []  # called with the address of each worker that leaves
        self._tasks: dict[str, _Task] = {}  # by key; also tasks without a handle, which may have to run again
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._started: defaultdict[str, set[str]] = defaultdict(set)  # keys by worker address
        self._workers: dict[str, None] = {}  # addresses, first by name, then in order of arrival
        self._gone: set[str] = set()
        self._placed: dict[str, str] = {}  # preferred worker of a task, by key
        self._empty_since = 0.0
        # A client has one handler per topic: pass events on.
        self._others = dask_private.event_handler(client, WORKERS_TOPIC)
        self._subscribed = asyncio.Event()
        client.subscribe_topic(WORKERS_TOPIC, self._on_workers)
        client.subscribe_topic(topic, self._on_task)
        self._listening: asyncio.Task[None] = client.sync(self._start)

    async def _start(self) -> asyncio.Task[None]:
        await self._list_workers()
        return asyncio.create_task(self._find_silent())

    async def _list_workers(self) -> None:
        """List the workers after the first event has arrived: a worker that left before it would be awaited forever."""
        scheduler: Any = self.client.scheduler
        while not self._subscribed.is_set():
            await scheduler.log_event(topic=self.topic, msg={"key": ECHO})
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._subscribed.wait(), ECHO_SECONDS)
        workers = await dask_private.list_workers(self.client)
        addresses = sorted(workers.keys() - self._gone, key=lambda address: str(workers[address]["name"]))
        self._workers = dict.fromkeys(addresses) | self._workers

    async def _find_silent(self) -> None:
        """Remove workers that are silent for lost_seconds; end the run when the scheduler is.

        Dask notices a loss only if a connection breaks, and only after timeouts of its own.
        """
        answered = time.monotonic()
        while self.client.status in ("running", "connecting") and not self.error:
            with suppress(OSError, AttributeError):  # no answer in time; no scheduler while the client reconnects
                for worker in await asyncio.wait_for(
                    dask_private.remove_silent_workers(self.client, self.lost_seconds), self.lost_seconds
                ):
                    print(
                        f"mgpu-ngram: worker {worker} has been silent for {self.lost_seconds:g} s; the run goes on "
                        "without it",
                        file=sys.stderr,
                    )
                answered = time.monotonic()
            if time.monotonic() - answered > self.lost_seconds:
                self.error = RunError(
                    f"the Dask scheduler {self.address} has been silent for {self.lost_seconds:g} s; "
                    f"{self.way_out('check the network')}"
                )
                await dask_private.give_up_scheduler(self.client)
            await asyncio.sleep(self.lost_seconds / LOOKS)

    def add(self, future: Future[Any], label: str) -> None:
        task = self._tasks.setdefault(str(future.key), _Task(""))
        task.label, task.told = label or f"task {future.key}", bool(label)
        with self._adding:
            self._futures.add(future)

    def place(self, key: str, affinity: int | None, holder: str | None) -> list[str]:
        """Return the worker for a task: by affinity the worker of this number, or the worker that ran another task.

        The worker of another task is a strict choice: otherwise an idle worker would steal the task and fetch all its
        arguments. If that worker is lost, so are the arguments; before they are computed again, `_release` lifts the
        restriction. Uses addresses, because Dask fails on the name of a worker that is briefly absent.
        """
        addresses = list(self._workers)
        address = ""
        if affinity is not None and addresses:
            address = addresses[affinity % len(addresses)]
        elif holder is not None:
            address = self._tasks[holder].address
        if address not in self._workers:
            return []
        self._placed[key] = address
        return [address]

    async def _release(self, worker: str) -> None:
        """Let tasks of a lost worker run anywhere: without workers, Dask forgets that these tasks may move."""

        keys = [key for key, placed in list(self._placed.items()) if placed == worker]  # another thread calls tasks
        if keys:
            with suppress(Exception):  # the scheduler is gone
                for key in await dask_private.lift_restrictions(self.client, keys):
                    self._placed.pop(key, None)

    def label(self, key: str) -> str:
        task = self._tasks.get(key)
        return task.label if task else key

    def worker_of(self, key: str) -> str:
        return self._tasks[key].worker

    def holder_of(self, key: str) -> str:
        """Return the address of the worker that ran a task last, or the task's key if that worker is lost."""
        return self.address_of(key) or key

    def address_of(self, key: str) -> str:
        """Return the address of the worker that ran a task last, or "" if that worker is lost."""
        address = self._tasks[key].address
        return address if address in self._workers else ""

    def close(self) -> None:
        """End all our tasks, to leave a cluster in its earlier state."""
        self._listening.get_loop().call_soon_threadsafe(self._listening.cancel)
        self.client.cancel(self._alive())
        self.client.unsubscribe_topic(self.topic)
        self.client.unsubscribe_topic(WORKERS_TOPIC)
        if self._others:
            self.client.subscribe_topic(WORKERS_TOPIC, self._others)

    def _on_task(self, event: tuple[float, dict[str, Any]]) -> None:
        _, message = event
        if message["key"] == ECHO:
            self._subscribed.set()
            return
        task = self._tasks.setdefault(message["key"], _Task(message["key"]))
        if "error" in message:
            task.error = message["error"]
        else:
            task.worker, task.address = message["name"], message["worker"]
            self._started[message["worker"]].add(message["key"])

    async def _on_workers(self, event: tuple[float, dict[str, Any]]) -> None:
        if self._others:
            answer = self._others(event)
            if hasattr(answer, "__await__"):
                await answer
        _, message = event
        worker = message.get("worker", "")
        if message.get("action") == "add-worker":
            self._workers[worker] = None
        elif message.get("action") == "remove-worker":
            self._workers.pop(worker, None)
            self._gone.add(worker)
            for tell in list(self.on_loss):
                tell(worker)
            await self._release(worker)
            again = lambda: asyncio.ensure_future(self._release(worker))  # noqa: E731
            asyncio.get_running_loop().call_later(RELEASE_SECONDS, again)
            started, running = self._started.pop(worker, set()), set(message["processing-tasks"])
            for key in started - running:
                self._tasks[key].deaths = 0  # the task finished on this worker, so it did not cause earlier deaths
            if not message["expected"]:
                # Labelled tasks report before they start; an unlabelled task's report may be lost with its worker.
                unsure = {key for key in running if key in self._tasks and not self._tasks[key].told}
                for key in started & running or unsure:
                    self._died(self._tasks[key])
            if not self._workers:
                self._empty_since = time.monotonic()
                asyncio.get_running_loop().call_later(_no_workers_seconds(), self._on_no_workers)

    def _died(self, task: _Task) -> None:
        task.deaths += 1
        if task.deaths < MAX_DEATHS:
            return
        why = f"the GPU failed: {task.error}" if task.error else "the usual reason is lack of memory"
        self._fail(
            f"{task.label} killed every worker that ran it ({task.deaths} times); {why}: "
            "use smaller chunks (chunk_bytes) or fewer workers"
        )

    def _on_no_workers(self) -> None:
        seconds = _no_workers_seconds()
        if not self._workers and time.monotonic() - self._empty_since > 0.9 * seconds:
            self._fail(self.no_workers())

    def no_workers(self) -> str:
        """Return the message that all workers are lost, with the way out."""
        return (
            f"all workers of the Dask cluster {self.address} are gone and none came back within "
            f"{_no_workers_seconds():g} s; {self.way_out('start some')}"
        )

    def way_out(self, first: str) -> str:
        """Return the advice to do something and run again, with the hint on resuming if the run has one."""
        return f"{first}, then run again{' ' * bool(self.resume_hint)}{self.resume_hint}"

    def _fail(self, message: str) -> None:
        self.error = RunError(message)
        self._ending = asyncio.ensure_future(self.client.cancel(self._alive(), asynchronous=True))

    def _alive(self) -> list[Future[Any]]:
        with self._adding:
            return list(self._futures)


def _no_workers_seconds() -> float:
    return parse_timedelta(dask.config.get("distributed.scheduler.no-workers-timeout") or "60s")
