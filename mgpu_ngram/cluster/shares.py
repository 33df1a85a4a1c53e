"""Workers take shares of values that other workers hold (`Executor.offer`).

A task asks each holder for its share, and the holder cuts it out and sends it. For Dask the task depends on no value:
Dask would send whole values, or need a task for each pair of workers, which is a million tasks for 1,000 workers.
"""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle
from distributed import Worker, rejoin, secede
from distributed.protocol.serialize import to_serialize

from mgpu_ngram.cluster import dask_private
from mgpu_ngram.cluster.executor import ResultLost
from mgpu_ngram.cluster.transport import Parcel

HANDLER = "mgpu_ngram_share"
AT_ONCE = 4  # shares that a task receives at once: it holds them all in the end, but not their messages
PAUSE_SECONDS = 0.1  # between two looks for lost values
T = TypeVar("T")


@dataclass(frozen=True)
class Take:
    """What a task takes of each value: take(value, *args)."""

    take: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class ValuePlace:
    """Where the value of a task is: on the worker of this address, at least when it was offered; "": not known."""

    key: str
    address: str


def serve(worker: Worker) -> None:
    """Let other workers take shares of the values of this one."""

    async def answer(key: str, take: bytes = b"", taken: str = "") -> dict[str, Any]:
        """Return the share that another worker asks for; {} if the value is not here.

        taken  the name of a share that has arrived: its loan ends
        """
        parcel: Parcel | None = worker.data.get(key)  # type: ignore[assignment]
        if parcel is None:
            return {}
        if taken:
            parcel.shares.pop(taken, None)
            return {}
        share = await asyncio.get_running_loop().run_in_executor(None, _cut, parcel, take)
        name = uuid.uuid4().hex
        parcel.shares[name] = share  # peers read its arrays until they say that they have it
        return {"share": to_serialize(share), "name": name}

    dask_private.add_handler(worker, HANDLER, answer)


def stop_serving(worker: Worker) -> None:
    dask_private.remove_handler(worker, HANDLER)


def _cut(parcel: Parcel, pickled: bytes) -> Parcel:
    try:
        wanted: Take = pickle.loads(pickled)
        return Parcel(wanted.take(parcel.open(), *wanted.args))
    except Exception as error:
        return Parcel(None, failed=error)


class _Gone(Exception):
    """A value is not where it was offered."""


def take_shares(worker: Worker, places: Sequence[ValuePlace], take: Take) -> list[Any]:
    """Return take(value, *args) of each value, in order. Call it in the thread of a task.

    Waits for values of lost workers until Dask has made them again. Raises ResultLost if the offer has ended.
    """
    loop: Any = worker.loop

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop).result()

    while True:
        with suppress(_Gone):
            return run(_take_all(worker, places, take))
        secede()  # other tasks get this thread: they may be what makes the value again
        places = run(_find(worker, [place.key for place in places]))
        rejoin()


async def _take_all(worker: Worker, places: Sequence[ValuePlace], take: Take) -> list[Any]:
    room, pickled = asyncio.Semaphore(AT_ONCE), cloudpickle.dumps(take)
    mine = next((i for i, place in enumerate(places) if place.address == worker.address), 0)

    async def one(place: ValuePlace) -> Any:
        async with room:
            return (await _take_one(worker, place, pickled)).open()

    turns = [*range(mine, len(places)), *range(mine)]  # not all workers ask the first one first
    tasks = {i: asyncio.ensure_future(one(places[i])) for i in turns}
    try:
        await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
    return [tasks[i].result() for i in range(len(places))]


async def _take_one(worker: Worker, place: ValuePlace, pickled: bytes) -> Parcel:
    here: Parcel | None = worker.data.get(place.key)  # type: ignore[assignment]
    if here is not None:
        return await asyncio.get_running_loop().run_in_executor(None, _cut, here, pickled)
    if place.address:
        ask = getattr(worker.rpc(place.address), HANDLER)
        answer: dict[str, Any] = {}
        with suppress(OSError):  # the holder was lost
            answer = await ask(key=place.key, take=pickled)
        if share := answer.get("share"):
            with suppress(OSError):
                await ask(key=place.key, taken=answer["name"])
            return share  # type: ignore[no-any-return]
    raise _Gone


async def _find(worker: Worker, keys: Sequence[str]) -> list[ValuePlace]:
    """Wait until each value is on a worker; return where."""
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        places = list[ValuePlace]()
        for key, holders in zip(keys, await dask_private.holders_of(worker, keys), strict=True):
            if holders is None:
                raise ResultLost("a worker was lost with a result that Dask cannot make again")
            places += [ValuePlace(key, holder) for holder in holders[:1]]
        if len(places) == len(keys):
            return places
