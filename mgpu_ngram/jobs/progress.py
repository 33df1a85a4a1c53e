"""What a job tells whoever watches it."""

from __future__ import annotations


class Progress:
    """Hears of a job's phases. This one keeps silent; the command line shows bars."""

    def start(self, phase: str, total: int, unit: str = "", rate: str = "") -> None:
        """A phase of `total` units begins; `rate` is the unit of the amounts that `advance` tells."""

    def advance(self, done: int, amount: int = 0) -> None:
        """`done` more units of the phase are finished; they held `amount` of what the rate is of."""

    def finish(self) -> None:
        """The phase is over."""
