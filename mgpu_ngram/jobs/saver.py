"""Saves finished work of a phase now and then, so that a run that ends early can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mgpu_ngram.cluster.executor import Executor, Handle


class Saver:
    """Collects the finished results of a phase; every `seconds` each worker saves its own together.

    save(results, items, *shared)  writes a list of results to the checkpoint, on the worker that holds
                                   them; items are the numbers of what they cover
    """

    def __init__(self, executor: Executor, seconds: float, save: Callable, *shared: Any):
        self.executor, self.seconds, self.save, self.shared = executor, seconds, save, shared
        self.waiting: dict[Handle, int] = {}
        self._last = time.monotonic()

    def add(self, handle: Handle, item: int) -> list[Handle]:
        """Take a finished result; returns the saves that begin now, if any."""
        self.waiting[handle] = item
        return self.flush() if time.monotonic() - self._last >= self.seconds else []

    def flush(self) -> list[Handle]:
        """Save all that waits; returns the saves."""
        self._last = time.monotonic()
        waiting, self.waiting = self.waiting, {}
        return [
            self.executor.call(
                self.save, group, [waiting[h] for h in group], *self.shared, label="a checkpoint", priority=True
            )
            for group in self.executor.groups(list(waiting))
        ]
