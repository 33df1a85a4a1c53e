"""Time the work of a task on its device."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mgpu_ngram.core.interrupts import end_if_interrupted
from mgpu_ngram.engine.memory.device import synchronize


@dataclass
class Stopwatch:
    """Seconds by step of the work. `lap` charges the time since the last lap to a step, or ends interrupted work."""

    device: str
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        end_if_interrupted()
        synchronize(self.device)
        now = time.perf_counter()
        self.add({step: now - self._last})
        self._last = now

    def skip(self) -> None:
        """Charge the time since the last lap to no step."""
        self._last = time.perf_counter()

    def add(self, seconds: dict[str, float]) -> None:
        """Charge seconds that were measured elsewhere."""
        self.seconds = add_seconds(self.seconds, seconds)

    def lap_shared(self, busy: dict[str, float]) -> None:
        """Charge the time since the last lap to steps, in proportion to their busy seconds."""
        now = time.perf_counter()
        total = sum(busy.values()) or 1.0
        self.add({step: (now - self._last) * s / total for step, s in busy.items()})
        self._last = now


def add_seconds(*parts: dict[str, float]) -> dict[str, float]:
    """Return the sum of several tables of seconds by step."""
    total: dict[str, float] = {}
    for part in parts:
        for step, s in part.items():
            total[step] = total.get(step, 0.0) + s
    return total
