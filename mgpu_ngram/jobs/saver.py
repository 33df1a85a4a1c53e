"""Save the finished work of a phase at intervals, so that an interrupted run can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mgpu_ngram.cluster.executor import Executor, Handle

Item = TypeVar("Item")
CHECKPOINT_SECONDS = 120.0  # between two saves, unless the run says otherwise


class Saver(Generic[Item]):
    """Collects the finished results of a phase. Every `seconds` seconds, each worker saves the results that it holds.

    save(results, items, *shared)  a task that writes a list of results to the checkpoint, on the worker that holds
                                   them; items say what they cover, such as the numbers of chunks
    """

    def __init__(self, executor: Executor, seconds: float, save: Callable[..., Any], *shared: Any):
        self.executor, self.seconds, self.save, self.shared = executor, seconds, save, shared
        self.waiting: dict[Handle, Item] = {}
        self._last = time.monotonic()

    def add(self, handle: Handle, item: Item) -> list[Handle]:
        """Add the finished result of one item; return the save tasks that this starts, if it is time."""
        self.waiting[handle] = item
        return self.flush() if time.monotonic() - self._last >= self.seconds else []

    def flush(self) -> list[Handle]:
        """Save all unsaved results; return the save tasks."""
        self._last = time.monotonic()
        waiting, self.waiting = self.waiting, {}
        return [
            self.executor.call(
                self.save, group, [waiting[h] for h in group], *self.shared, label="a checkpoint", priority=True
            )
            for group in self.executor.groups(list(waiting))
        ]
