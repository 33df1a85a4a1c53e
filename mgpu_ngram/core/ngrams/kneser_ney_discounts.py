"""Discounts of modified Kneser-Ney smoothing from counts of counts, with the rules and errors of lmplz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.lazy_import import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")  # `--help` does not need it

FALLBACK = (0.5, 1.0, 1.5)  # lmplz's default
WAY_OUT = (
    "is this small or artificial data? Take out repeated lines, or, as for a class-based model, give the discounts of "
    "such orders with --discount-fallback (discount_fallback: [0.5, 1, 1.5])"
)

Discounts = tuple[float, float, float]  # of adjusted counts 1, 2, and 3 or more


def discounts_of(order: int, counts_of_counts: Sequence[int], fallback: Discounts | None) -> tuple[Discounts, bool]:
    """Return (discounts of an order, whether these are the fallback).

    counts_of_counts  number of n-grams with adjusted count 1, 2, 3, 4, including those that will be pruned
    fallback          discounts to use if the counts give none; None: raise InputError with the reason

    Chen and Goodman (1998), equation 26, in float32 as in lmplz.
    """
    why = None
    n = [np.float32(count) for count in counts_of_counts]
    unseen = next((j for j in (1, 2, 3) if not n[j - 1]), None)
    if unseen is None:
        y = n[0] / np.float32(n[0] + np.float32(2) * n[1])
        found = [np.float32(j) - np.float32(j + 1) * y * n[j] / n[j - 1] for j in (1, 2, 3)]
        outside = next((j for j in (1, 2, 3) if not 0 <= found[j - 1] <= j), None)
        if outside is None:
            return (float(found[0]), float(found[1]), float(found[2])), False
        why = (
            f"the discount of {order}-grams with adjusted count {outside} would be {found[outside - 1]:g}, which is "
            f"outside 0 to {outside}"
        )
    else:
        why = (
            f"no discount can be computed for {order}-grams with adjusted count {unseen + 1}, because none has "
            f"adjusted count {unseen}"
        )
    if fallback is not None:
        return fallback, True
    seen = ", ".join(f"{count:,} with {j}" for j, count in enumerate(counts_of_counts, 1))
    raise InputError(f"{why} (seen: {seen}); {WAY_OUT}")


def check_fallback(values: Sequence[float]) -> Discounts:
    """Return three discounts from up to three values; the last value repeats. Raises InputError for invalid values."""
    if len(values) > 3:
        raise InputError(f"discount_fallback has {len(values)} values but there are only 3 discounts; give at most 3")
    if not values:
        return FALLBACK
    three = [*values, *[values[-1]] * (3 - len(values))]
    for j, value in enumerate(three, 1):
        if not 0 <= value <= j:
            raise InputError(f"discount_fallback has {value:g} for count {j} but it must be from 0 to {j}")
    return three[0], three[1], three[2]
