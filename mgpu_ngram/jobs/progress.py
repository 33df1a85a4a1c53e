"""What a job tells whoever watches it."""

from __future__ import annotations


class Progress:
    """Hears of a job's phases. This one keeps silent; the command line shows bars."""

    def start(self, phase: str, total: int, unit: str = "") -> None:
        """A phase of `total` units begins."""

    def advance(self, done: int) -> None:
        """`done` more units of the phase are finished."""

    def finish(self) -> None:
        """The phase is over."""
