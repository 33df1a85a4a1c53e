"""Workers take shares of values that other workers hold (`Executor.offer`).

A task asks each holder for its share, and the holder cuts it out and sends it. For Dask the task depends on no value:
Dask would send whole values, or need a task for each pair of workers, which is a million tasks for 1,000 workers.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import uuid
import weakref
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
PAUSE_SECONDS = 0.1, 3.0  # between looks for lost values, first and last
CONNECT_SECONDS = 3.0  # for a connection to a holder; a holder that was only slow is asked again
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


_serving: weakref.WeakKeyDictionary[Worker, int] = weakref.WeakKeyDictionary()  # runs that use a worker
_lent: dict[tuple[str, str], Parcel | None] = {}  # shares on their way, by receiver and name; None: not cut yet
_lost: set[str] = set()  # addresses of workers that have left
_cutting = threading.Lock()  # one at a time: a share may need memory


def serve(worker: Worker) -> None:
    """Let other workers take shares of the values of this one, until `stop_serving` was called as often."""
    _serving[worker] = _serving.get(worker, 0) + 1
    if _serving[worker] > 1:
        return

    async def answer(receiver: str, name: str, key: str = "", take: bytes = b"") -> dict[str, Any]:
        """Return the share that another worker asks for; {} if the value is not here.

        name  name of the share
        key   task of the value; "" says that the share has arrived or is no longer needed
        """
        if not key:
            _lent.pop((receiver, name), None)
            return {}
        parcel: Parcel | None = worker.data.get(key)  # type: ignore[assignment]
        if parcel is None:
            return {}
        _lent[receiver, name] = None
        share = await asyncio.get_running_loop().run_in_executor(None, _cut, parcel, take)
        if (receiver, name) not in _lent:
            return {}
        _lent[receiver, name] = share  # the receiver reads its arrays until it says that it has them
        return {"share": to_serialize(share)}

    dask_private.add_handler(worker, HANDLER, answer)


def stop_serving(worker: Worker) -> None:
    _serving[worker] -= 1
    if not _serving[worker]:
        dask_private.remove_handler(worker, HANDLER)


def forget(address: str) -> None:
    """Note that a worker was lost: it takes no shares any more, and holds no values."""
    _lost.add(address)
    for receiver, name in list(_lent):
        if receiver == address:
            _lent.pop((receiver, name), None)


def _cut(parcel: Parcel, pickled: bytes) -> Parcel:
    try:
        wanted: Take = pickle.loads(pickled)
        with _cutting:
            return Parcel(wanted.take(parcel.open(), *wanted.args))
    except Exception as error:
        return Parcel(None, failed=error)


def take_shares(worker: Worker, places: Sequence[ValuePlace], take: Take) -> list[Any]:
    """Return take(value, *args) of each value, in order. Call it in the thread of a task.

    Waits for values of lost workers until Dask has made them again. Raises ResultLost if Dask cannot.
    """
    loop: Any = worker.loop
    taken, pickled = dict[str, Any](), cloudpickle.dumps(take)

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop.asyncio_loop).result()

    mine = next((i for i, place in enumerate(places) if place.address == worker.address), 0)
    wanted = [*places[mine:], *places[:mine]]  # each worker begins with itself, so not all ask one holder at once
    while True:
        missing = run(_take_all(worker, wanted, pickled, taken))
        if not missing:
            return [taken[place.key].open() for place in places]
        secede()  # the thread is free for other tasks, such as the task that makes the value again
        wanted = run(_find(worker, missing))
        rejoin()


async def _take_all(
    worker: Worker, places: Sequence[ValuePlace], pickled: bytes, taken: dict[str, Parcel]
) -> list[str]:  # fmt: skip
    """Add the share of each value to `taken`, by key; return the keys of values that are not where they should be."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(place: ValuePlace) -> Parcel | None:
        async with room:
            return await _take_one(worker, place, pickled)

    found = await asyncio.gather(*map(one, places))
    taken.update({place.key: share for place, share in zip(places, found, strict=True) if share is not None})
    return [place.key for place in places if place.key not in taken]


async def _take_one(worker: Worker, place: ValuePlace, pickled: bytes) -> Parcel | None:
    here: Parcel | None = worker.data.get(place.key)  # type: ignore[assignment]
    if here is not None:
        return await asyncio.get_running_loop().run_in_executor(None, _cut, here, pickled)
    if not place.address or place.address in _lost:
        return None
    who, answer = {"receiver": worker.address, "name": uuid.uuid4().hex}, dict[str, Any]()
    with suppress(OSError):  # the holder was lost; Dask does not report losses from before this process began
        await dask_private.connect_within(worker, place.address, CONNECT_SECONDS)
        ask = getattr(worker.rpc(place.address), HANDLER)
        answer = await ask(key=place.key, take=pickled, **who) or {}
        await ask(**who)
    share: Parcel | None = answer.get("share")
    return share


async def _find(worker: Worker, keys: Sequence[str]) -> list[ValuePlace]:
    """Wait until each value is on a worker; return where."""
    pause, last = PAUSE_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = min(2 * pause, last)
        places = list[ValuePlace]()
        for key, holders in zip(keys, await dask_private.holders_of(worker, keys), strict=True):
            if holders is None:
                raise ResultLost("a worker was lost with a result that Dask cannot make again")
            places += [ValuePlace(key, holder) for holder in holders[:1]]
        if len(places) == len(keys):
            _lost.difference_update(place.address for place in places)  # another worker may have its address
            return places
