"""The ranks of a gang on the workers of a Dask cluster.

Only the driver aborts a gang: it cancels the task of each rank, which every worker notices, even while it is busy. If
the driver is lost, the scheduler cancels its tasks, which also aborts the gang.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from distributed import Worker, get_worker
from distributed.protocol.serialize import to_serialize

from mgpu_ngram.cluster import dask_private
from mgpu_ngram.cluster.gang import LOST_SECONDS, Communicator, GangError
from mgpu_ngram.cluster.gang_host import NO_BYTES, POLL_SECONDS, Abort, HostCommunicator, Hub
from mgpu_ngram.cluster.gang_nccl import NcclCommunicator
from mgpu_ngram.cluster.worker import die

LONE_FACTOR = 10  # times `patience`: a rank that waits longer is alone, because Dask ran it again after a loss


@dataclass(frozen=True)
class Place:
    """The place of a task in a gang.

    addresses  addresses of the workers, by rank
    patience   seconds that the driver waits for all ranks to start
    """

    gang: str
    rank: int
    addresses: tuple[str, ...]
    patience: float


_here: dict[tuple[str, int], Future[Any]] = {}  # ranks in this process; each begins when its future is done


def ranks_here(gang: str, begin: bool) -> list[int]:
    """Return the ranks of a gang that run in this process; let them begin if all ranks have started."""
    found = {rank: future for (name, rank), future in list(_here.items()) if name == gang}
    for future in found.values():
        if begin and not future.done():
            future.set_result(None)
    return list(found)


def run_rank(place: Place, device: str, fn: Callable[..., Any], *args: Any) -> Any:
    """Wait until all ranks have started, then return fn(communicator, *args)."""
    worker, size, abort = get_worker(), len(place.addresses), Abort()
    with _registered(worker, place, abort) as (begun, hub):
        abort.wait_for(begun)
        channel = DaskChannel(worker, place, hub, abort)
        comm: Communicator
        if device == "gpu" and size > 1:
            give_up = partial(die, worker, during=f"rank {place.rank} of a gang")
            comm = NcclCommunicator(channel, place.rank, size, abort, give_up)
        else:
            comm = HostCommunicator(channel, place.rank, size, abort)
        try:
            result = fn(comm, *args)
            if size > 1:
                channel.exchange("end", NO_BYTES)
            return result
        except BaseException as error:
            abort.set(f"rank {place.rank} failed: {error!r}")  # its collectives will never end
            raise
        finally:
            comm.close()


@contextmanager
def _registered(worker: Worker, place: Place, abort: Abort) -> Iterator[tuple[Future[Any], Hub]]:
    """Let the driver find this rank and other ranks its hub, and abort the rank when Dask cancels its task."""
    key, begun, has_ended = str(worker.get_current_task()), Future[None](), threading.Event()
    latest = time.monotonic() + LONE_FACTOR * place.patience

    def follow() -> None:
        while not has_ended.wait(POLL_SECONDS):
            if not dask_private.is_executing(worker, key):
                abort.set("the gang was aborted")
            elif not begun.done() and time.monotonic() > latest:
                abort.set(f"rank {place.rank} ran again alone: its worker was lost with its result; start a new gang")

    hub, handler = Hub(len(place.addresses)), f"mgpu_ngram_{place.gang}"
    if place.rank == 0:
        dask_private.add_handler(worker, handler, _answer(hub))
    _here[place.gang, place.rank] = begun
    threading.Thread(target=follow, name="mgpu-ngram-gang", daemon=True).start()
    try:
        yield begun, hub
    finally:
        has_ended.set()
        del _here[place.gang, place.rank]
        if place.rank == 0:
            hub.close("rank 0 has ended")
            dask_private.remove_handler(worker, handler)


def _answer(hub: Hub) -> Callable[..., Any]:
    """Return the handler of messages from other ranks; it runs on the event loop, and `hub` in a thread."""

    async def answer(rank: int, number: int, operation: str, array: np.ndarray) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        future = await loop.run_in_executor(None, hub.put, rank, number, operation, array)
        try:
            return {"array": to_serialize(await asyncio.wrap_future(future))}
        except GangError as error:
            return {"why": str(error)}

    return answer


class DaskChannel:
    """Connects ranks on workers through Dask's own connections, with the cluster's TLS. All arrays go to rank 0."""

    def __init__(self, worker: Worker, place: Place, hub: Hub, abort: Abort):
        self._worker, self._place, self._hub, self._abort, self._number = worker, place, hub, abort, 0
        loop: Any = worker.loop
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop

    def exchange(self, operation: str, array: np.ndarray) -> np.ndarray:
        self._number += 1
        if self._place.rank == 0:
            return self._abort.wait_for(self._hub.put(0, self._number, operation, array))
        asked = asyncio.run_coroutine_threadsafe(self._ask(operation, array), self._loop)
        try:
            answer = self._abort.wait_for(asked) or {}
        except OSError as error:
            answer = {"why": f"rank 0 cannot be reached: {error}"}
        finally:
            asked.cancel()
        if "array" in answer:
            reduced: np.ndarray = answer["array"]
            return reduced
        self._abort.wait(LOST_SECONDS)  # rank 0 failed or was lost: the driver knows which
        self._abort.check()
        raise GangError(answer.get("why", "rank 0 has ended"))

    async def _ask(self, operation: str, array: np.ndarray) -> dict[str, Any] | None:
        ask = getattr(self._worker.rpc(self._place.addresses[0]), f"mgpu_ngram_{self._place.gang}")
        answer: dict[str, Any] | None = await ask(
            rank=self._place.rank, number=self._number, operation=operation, array=to_serialize(array)
        )
        return answer
