"""Report the progress of a job."""

from __future__ import annotations

from mgpu_ngram.core.errors import InputError


class Progress:
    """Receives the progress of a job's phases. This base class does nothing; the command line shows bars."""

    def start(self, phase: str, total: int, unit: str = "", rate: str = "") -> None:
        """Begin a phase of `total` units, 0 for an unknown number.

        rate  the unit of the amounts that `advance` adds, such as "bytes"
        """

    def advance(self, done: int, amount: int = 0) -> None:
        """Report `done` more finished units, with `amount` more of the rate's unit."""

    def note(self, text: str) -> None:
        """Show a figure of the phase beside its bar, such as "perplexity 1,640"."""

    def finish(self) -> None:
        """End the phase."""


def given_progress(progress: Progress | None) -> Progress:
    """Return the object that a caller gave; for None, one that does nothing. Raises InputError for other objects."""
    if progress is None:
        return Progress()
    if not all(hasattr(progress, method) for method in ("start", "advance", "finish")):
        raise InputError(f"progress is {progress!r} but must have the methods start, advance and finish")
    return progress
