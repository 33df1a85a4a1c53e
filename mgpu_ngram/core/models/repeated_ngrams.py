"""The warning for n-grams that a model lists more than once."""

from __future__ import annotations

from pathlib import Path

from mgpu_ngram.core.errors import warn


def warn_of_repeated(path: str | Path, repeated: dict[int, int]) -> None:
    """Warn, once, of n-grams that a model lists more than once.

    repeated  number of such n-grams after the first, by order
    """
    found = " and ".join(f"{rows:,} {n}-gram{'s' * (rows != 1)}" for n, rows in repeated.items() if rows)
    if found:
        warn(
            f"{str(path)!r} lists {found} again (<UNK> is <unk>); as in KenLM's probing models, the first line of an "
            "n-gram counts, but the last one of <unk>"
        )
