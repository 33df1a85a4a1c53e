"""Gangs through host memory: rank 0 sums the arrays of all ranks, and the ranks of one process are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import numpy as np

from mgpu_ngram.cluster.gang import Communicator, GangError, Pending, check_array, checked_target

T = TypeVar("T")

POLL_SECONDS = 0.05  # between checks whether a gang was aborted or interrupted


class Abort:
    """Whether a gang was aborted, and the reason. Any thread may set it; the first reason is kept."""

    def __init__(self) -> None:
        self._lock, self._set, self._reason = threading.Lock(), threading.Event(), ""

    def set(self, reason: str) -> None:
        with self._lock:
            self._reason = self._reason or reason
            self._set.set()

    def is_set(self) -> bool:
        return self._set.is_set()

    def wait(self, seconds: float) -> bool:
        return self._set.wait(seconds)

    def check(self) -> None:
        if self._set.is_set():
            raise GangError(self._reason)

    def wait_for(self, future: Future[T]) -> T:
        """Return the future's result; raise GangError if the gang is aborted first."""
        while True:
            self.check()
            done, _ = wait([future], POLL_SECONDS)
            if done:
                return future.result()


class Hub:
    """Combines the arrays of all ranks in collectives; rank 0 holds it."""

    def __init__(self, size: int):
        self.size = size
        self._lock = threading.Lock()
        self._rounds: dict[int, tuple[dict[int, tuple[str, np.ndarray]], Future[np.ndarray]]] = {}
        self._closed = ""

    def put(self, rank: int, number: int, operation: str, array: np.ndarray) -> Future[np.ndarray]:
        """Add the array of a rank to the collective with a number; return the result, which all ranks share."""
        with self._lock:
            brought, future = self._rounds.setdefault(number, ({}, Future()))
            if not brought:
                future.set_running_or_notify_cancel()  # so that no rank can cancel it
            brought[rank] = operation, array
            if self._closed:
                del self._rounds[number]
                future.set_exception(GangError(self._closed))
                return future
            if len(brought) < self.size:
                return future
            del self._rounds[number]
        try:
            future.set_result(_combine([brought[r] for r in range(self.size)]))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self, reason: str) -> None:
        """End all collectives, including future ones."""
        with self._lock:
            self._closed, rounds = reason, list(self._rounds.values())
            self._rounds.clear()
        for _, future in rounds:
            future.set_exception(GangError(reason))


def _combine(brought: list[tuple[str, np.ndarray]]) -> np.ndarray:
    """Sum or stack arrays in the order of ranks."""
    calls = [f"{operation} of {array.shape} {array.dtype}" for operation, array in brought]
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise GangError(
                f"rank 0 calls {calls[0]} but rank {rank} calls {call}; "
                "all ranks must call the same collectives in the same order"
            )
    operation, first = brought[0]
    if operation == "all_gather":
        return np.stack([array for _, array in brought])
    total = first.copy()
    for _, array in brought[1:]:
        total += array
    return total


class Channel(Protocol):
    """Connects ranks through host memory."""

    def exchange(self, operation: str, array: np.ndarray) -> np.ndarray:
        """Return the result of the `Hub` for the arrays of all ranks; raise GangError if the gang ends first."""


class ThreadChannel:
    """Connects ranks that are threads of one process."""

    def __init__(self, hub: Hub, rank: int, abort: Abort):
        self._hub, self._rank, self._abort, self._number = hub, rank, abort, 0

    def exchange(self, operation: str, array: np.ndarray) -> np.ndarray:
        self._number += 1
        return self._abort.wait_for(self._hub.put(self._rank, self._number, operation, array))


NO_BYTES = np.empty(0, np.uint8)


class HostCommunicator(Communicator):
    """Sums through host memory. A gang of one rank exchanges nothing and may also use CuPy arrays."""

    def __init__(self, channel: Channel, rank: int, size: int, abort: Abort):
        self.rank, self.size, self._channel, self._abort = rank, size, channel, abort

    def all_reduce_async(self, array: Any, out: Any = None) -> Pending:
        target = checked_target(array, out, self.size)
        if self.size > 1:
            target[...] = self._channel.exchange("all_reduce", array)
        elif target is not array:
            target[...] = array
        return self._done(target)

    def reduce_scatter_async(self, array: Any) -> Pending:
        check_array(array, self.size, "reduce_scatter")
        total = self._channel.exchange("reduce_scatter", array) if self.size > 1 else array
        return self._done(total[self.rank].copy())

    def all_gather_async(self, array: Any) -> Pending:
        check_array(array, self.size, "all_gather")
        both = self._channel.exchange("all_gather", array) if self.size > 1 else array[None]
        return self._done(both.copy())

    def barrier(self) -> None:
        self.check()
        if self.size > 1:
            self._channel.exchange("barrier", NO_BYTES)

    def check(self) -> None:
        self._abort.check()

    def _done(self, array: Any) -> Pending:
        self.check()
        return _Done(array)


class _Done:
    """A collective that has ended."""

    def __init__(self, array: Any):
        self._array = array

    def wait(self) -> Any:
        return self._array

    hold_stream = wait


def run_in_threads(fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]]) -> list[Future[Any]]:
    """Run fn(comm, *args) for all ranks in threads of this process; return their results as finished futures.

    The first error of a rank is raised when all ranks have ended.
    """
    size, abort, errors = len(args_by_rank), Abort(), list[BaseException]()
    hub = Hub(size)

    def run(rank: int) -> Any:
        channel = ThreadChannel(hub, rank, abort)
        try:
            result = fn(HostCommunicator(channel, rank, size, abort), *args_by_rank[rank])
            channel.exchange("end", NO_BYTES)
            return result
        except BaseException as error:
            errors.append(error)
            abort.set(f"rank {rank} failed: {error!r}")
            raise

    with ThreadPoolExecutor(size, "mgpu-ngram-rank") as threads:
        try:
            futures = [threads.submit(run, rank) for rank in range(size)]
            while wait(futures, POLL_SECONDS).not_done:  # a Ctrl-C just before a wait does not end the wait
                pass
        except BaseException:
            abort.set("the gang was interrupted")
            raise
    if errors:
        raise errors[0]
    return futures
