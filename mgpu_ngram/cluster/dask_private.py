"""All private names of Dask that this package uses, with the reason and the public call that each replaces.

No other file uses private names, so a new Dask release can break only this file. pyproject.toml lists the releases that
pass the tests.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import distributed.comm.utils
import distributed.utils
from dask._expr import LLGExpr
from dask._task_spec import Task, parse_input
from dask.base import annotate
from distributed import Client, Scheduler, Status, Worker
from distributed.spans import SpanMetadata

MESSAGE_SECONDS = 0.0001  # between messages; Dask's 2 to 10 ms are half the time of a short task, there and back
LARGE_GRAPH = "distributed.admin.large-graph-warning-threshold"  # in bytes; text in memory is large


# The driver


def empty_partition(frame: Any) -> Any:
    """Return an empty pandas DataFrame with the columns, types and index of a Dask DataFrame.

    Replaces DataFrame.head(0), which computes a partition.
    """
    return frame._meta


@dataclass(frozen=True)
class Call:
    """A task to send: fn(*args), where arguments may be futures.

    workers   addresses of the workers that should run it; empty: any
    strict    whether only these workers may run it
    priority  whether it starts before tasks that were sent earlier
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    workers: list[str]
    strict: bool
    priority: bool


def describe_scheduler(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of itself and of all its workers.

    Replaces Client.scheduler_info, which returns an attribute that a timer of Dask replaces, and that may lack some
    workers.
    """

    async def ask() -> Any:
        scheduler: Any = client.scheduler
        return await scheduler.identity(n_workers=-1)

    identity: dict[str, Any] = client.sync(ask)
    return identity


def send_tasks(client: Client, calls: Mapping[str, Call], numbers: Sequence[int]) -> None:
    """Send tasks, by key, in one message. Tasks start in the order of their numbers.

    Replaces Client.submit, which sends a message per task: the scheduler takes a millisecond or more for each.
    Client.get sends many tasks at once, but does not keep their order.
    """
    tasks = {key: Task(key, call.fn, *map(parse_input, call.args)) for key, call in calls.items()}
    annotations: dict[str, dict[str, Any]] = {
        "workers": {key: call.workers for key, call in calls.items()},
        "allow_other_workers": {key: not call.strict for key, call in calls.items()},
        "priority": {key: int(call.priority) for key, call in calls.items()},
    }
    with (
        annotate(**{name: values.__getitem__ for name, values in annotations.items()}),
        dask.config.set({LARGE_GRAPH: sys.maxsize}),
    ):
        client._graph_to_futures(
            LLGExpr(tasks, _determ_token=uuid.uuid4().hex), list(tasks), SpanMetadata(collections=[]),
            internal_priority=dict(zip(tasks, numbers, strict=True)), fifo_timeout="100ms",
        )  # fmt: skip


def event_handler(client: Client, topic: str) -> Callable[..., Any] | None:
    """Return the client's handler of a topic, or None.

    No public call returns it, and Client.subscribe_topic replaces it, because a client has one handler per topic.
    """
    return client._event_handlers.get(topic)


async def lift_restrictions(client: Client, keys: list[str]) -> list[str]:
    """Let tasks run on any worker; return the keys that the scheduler knows.

    Replaces no public call: restrictions can only be set when a task is submitted.
    """

    def unrestrict(keys: list[str], dask_scheduler: Any) -> list[str]:  # nested: the scheduler may lack this module
        known = [key for key in keys if key in dask_scheduler.tasks]  # others are on their way, or forgotten
        dask_scheduler.set_restrictions(dict.fromkeys(known))
        return known

    known: list[str] = await client._run_on_scheduler(unrestrict, keys)
    return known


async def list_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Return the scheduler's current workers by address; runs on the client's event loop.

    Replaces Client.scheduler_info, which blocks that loop.
    """
    scheduler: Any = client.scheduler
    return dict((await scheduler.identity(n_workers=-1))["workers"])


async def remove_silent_workers(client: Client, seconds: float) -> list[str]:
    """Let the scheduler forget workers from which it has heard nothing for so long; return their names.

    Replaces the setting distributed.scheduler.worker-ttl, which the scheduler reads when it starts.
    """

    async def remove(seconds: float, dask_scheduler: Any) -> list[str]:  # nested: the scheduler may lack this module
        from time import time

        silent = [ws for ws in dask_scheduler.workers.values() if time() - ws.last_seen > seconds]
        for ws in silent:
            await dask_scheduler.remove_worker(ws.address, stimulus_id=f"silent-{time()}", close=False)
        return [str(ws.name) for ws in silent]

    names: list[str] = await client._run_on_scheduler(remove, seconds)
    return names


async def give_up_scheduler(client: Client) -> None:
    """End a client whose scheduler does not answer: everything that waits for a future or an answer fails.

    Replaces Client.close, which tells the scheduler and waits for it.
    """
    client.status = "closing"
    for state in list(client.futures.values()):
        state.cancel()
    stream: Any = client.scheduler_comm
    stream.abort()
    await client.rpc.close()


# Short waits between messages, on clusters that we start. Replaces nothing: no setting of Dask has this interval.


def send_sooner_from_client(client: Client) -> None:
    """Let the client wait MESSAGE_SECONDS between messages to the scheduler."""
    stream: Any = client.scheduler_comm
    stream.interval = MESSAGE_SECONDS


def send_sooner_from_worker(worker: Worker) -> None:
    """Let the worker wait MESSAGE_SECONDS between messages to the scheduler."""
    worker.batched_stream.interval = MESSAGE_SECONDS


def send_sooner_from_scheduler(scheduler: Scheduler, worker: str | None = None) -> None:
    """Let the scheduler wait MESSAGE_SECONDS between messages to one worker, or to all workers and clients."""
    streams = [*scheduler.stream_comms.values(), *scheduler.client_comms.values()]
    for stream in streams if worker is None else [scheduler.stream_comms[worker]]:
        stream.interval = MESSAGE_SECONDS


# Workers


def tell_scheduler(worker: Worker, topic: str, message: dict[str, Any]) -> None:
    """Log an event of the cluster from a task's thread, and return when the scheduler has received it.

    Replaces Worker.log_event, which returns at once, so the message is lost if the task kills its process.
    """
    distributed.utils.sync(worker.loop, worker.scheduler.log_event, topic=topic, msg=message)


async def leave_cluster(worker: Worker, reason: str) -> None:
    """Give a worker's tasks back to the scheduler, then end the worker and its nanny.

    Replaces Worker.close_gracefully if the worker has a nanny. Then the worker ends before its nanny: its process
    closes a queue that its own thread reads, and logs a traceback (distributed 2026.7, Nanny: watch_stop_q).

    Heartbeats end first. One that reaches the scheduler after the worker has left would close the worker a second time.
    They may not have started yet, so their timer gets another function.
    """
    worker.periodic_callbacks["heartbeat"].callback = lambda: None
    nanny: Any = worker.nanny  # its address
    if not nanny:
        await worker.close_gracefully(reason=reason)
        return
    await worker.scheduler.retire_workers(
        workers=[worker.address], close_workers=False, remove=True, stimulus_id=f"{reason}-{time.time()}"
    )
    await worker.rpc(nanny).terminate(reason=reason, reply=False)


def on_lost_worker(worker: Worker, react: Callable[[str], None]) -> Callable[[], None]:
    """Call `react` with the address of each lost worker that the scheduler reports; return a function that ends this.

    Replaces no public call: WorkerPlugin has no such method.
    """
    usual = worker.stream_handlers["remove-worker"]

    def handle(worker: str, stimulus_id: str) -> None:
        usual(worker=worker, stimulus_id=stimulus_id)
        react(worker)

    worker.stream_handlers["remove-worker"] = handle
    return partial(worker.stream_handlers.__setitem__, "remove-worker", usual)


def forget_connections(worker: Worker, address: str) -> None:
    """End this worker's connections to an address, including connections that are being opened.

    Replaces no public call: Dask ends open connections to a lost worker, but tries to open a new one for 30 s.
    """
    worker.rpc.remove(address)


async def connect_within(worker: Worker, address: str, seconds: float) -> None:
    """Open a connection of this worker, for later messages. Raises OSError if that takes longer.

    Replaces no public call: a message alone tries to connect for 30 s (distributed.comm.timeouts.connect).
    """
    worker.rpc.reuse(address, await worker.rpc.connect(address, timeout=seconds))


# Gangs


def is_executing(worker: Worker, key: str) -> bool:
    """Return whether a task in a thread of this worker is still wanted, that is, not cancelled.

    Replaces no public call: Dask cannot stop a task, and does not tell a task that it was cancelled.
    """
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


def add_handler(worker: Worker, name: str, answer: Callable[..., Any]) -> None:
    """Let other workers call `answer`, a coroutine function, by `worker.rpc(address).name(...)`.

    Replaces no public call: extensions of Dask do the same.
    """
    worker.handlers[name] = answer


def remove_handler(worker: Worker, name: str) -> None:
    """Undo `add_handler`."""
    worker.handlers.pop(name, None)


async def holders_of(worker: Worker, keys: Sequence[str]) -> list[list[str] | None]:
    """Return the addresses of the workers that hold the value of each task, None if the scheduler has forgotten the
    task or the task has failed; runs on the worker's event loop.

    Replaces Client.who_has, which needs a client in the worker and does not tell the two apart.
    """
    states = await worker.scheduler.get_task_status(keys=list(keys))
    found = await worker.scheduler.who_has(keys=list(keys))
    return [None if states.get(key) in (None, "erred") else list(found.get(key, ())) for key in keys]


# Transport


def offer_in_handshakes(worker: Worker, offer: dict[str, Any]) -> None:
    """Send `offer` to the other side of each connection that this worker opens from now on.

    Replaces no public call: Dask's handshake has no public place for further facts.
    """
    worker.rpc.connection_args["handshake_overrides"] = offer


def recipient_of(context: dict[str, Any] | None) -> dict[str, Any]:
    """Return the handshake of the recipient of a message, with its offer; {} if unknown."""
    return (context or {}).get("recipient") or {}


_usual_messages = distributed.comm.utils.OFFLOAD_THRESHOLD, distributed.utils._offload_executor


def messages_in_threads(min_bytes: int, threads: ThreadPoolExecutor) -> None:
    """Read and write messages longer than `min_bytes` in these threads, not on the event loop.

    Replaces the setting distributed.comm.offload, which Dask reads only when it is imported. Also, Dask has one thread
    for all messages.
    """
    distributed.comm.utils.OFFLOAD_THRESHOLD, distributed.utils._offload_executor = min_bytes, threads


def messages_as_usual() -> None:
    """Read and write messages as Dask did before `messages_in_threads`."""
    messages_in_threads(*_usual_messages)


# Local clusters


def end_cluster(cluster: Any, seconds: float) -> None:
    """Close a cluster that this process started, in about `seconds` at most for each of two steps.

    Replaces cluster.close() alone, which fails in two cases (distributed 2026.7):
    - It waits for workers that are starting. If one was killed while it started, its nanny may wait for ever, with the
      next worker running: the first start takes the answer of the second.
    - A worker that was killed while it registered ends Dask's watch of the workers with a KeyError, which is raised at
      the end of close: all processes have ended by then.
    """
    starting = [n for n in cluster.workers.values() if n.process and n.process.status == Status.starting]
    for nanny in starting:
        cluster.loop.add_callback(nanny.close_gracefully)  # so that it starts no other
        with suppress(ProcessLookupError, TypeError):  # it has ended
            os.kill(nanny.pid, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while any(n.process and n.process.status == Status.starting for n in starting) and time.monotonic() < deadline:
        time.sleep(0.05)
    with suppress(TimeoutError, KeyError):
        cluster.close(timeout=seconds)
    cluster.status = Status.closed  # else Python would close it a second time at exit
