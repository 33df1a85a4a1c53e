"""Smoothings of plain counts: the rule of each order, with the defaults and limits of SRILM's ngram-count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mgpu_ngram.core.errors import InputError

if TYPE_CHECKING:
    from mgpu_ngram.kernels.estimate.smooth_contexts import Rule

KNESER_NEY = "kneser-ney"
METHODS = {
    KNESER_NEY: "Modified Kneser-Ney",  # lmplz's words
    "witten-bell": "Witten-Bell",
    "absolute": "Absolute discounting",
    "good-turing": "Good-Turing (Katz)",
    "additive": "Additive",
}
DELTA = (1.0,)
GT_MAX = (1, 7)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Smoothing:
    """A smoothing of plain counts. The last value of each tuple also holds for all higher orders.

    name         a key of METHODS other than Kneser-Ney
    interpolate  interpolate with the lower order, Witten-Bell and absolute; False: back off
    discount     absolute: the amount that is subtracted from each count, by order; empty: n1 / (n1 + 2 n2)
    delta        additive: the amount that is added to each count, by order
    gt_max       good-turing: the highest count that is discounted, by order
    closed       the vocabulary has no <unk>
    """

    name: str
    interpolate: bool = False
    discount: tuple[float, ...] = ()
    delta: tuple[float, ...] = DELTA
    gt_max: tuple[int, ...] = GT_MAX
    closed: bool = False

    def counted(self, n: int) -> int:
        """Return the highest count whose count of counts the rule of order n needs, at least 4."""
        return max(4, of_order(self.gt_max, n) + 1) if self.name == "good-turing" else 4

    def rule(
        self, n: int, counts_of_counts: Sequence[int], words: int, threshold: int
    ) -> tuple[Rule, list[float], list[str]]:
        """Return (the rule of order n, its parameters, warnings).

        counts_of_counts  number of n-grams with count 1, 2, ...
        words             number of words of the vocabulary without <s>
        threshold         n-grams with this count or less are pruned

        The parameters are the discount, delta, or the discount coefficients of counts 1, 2, ... Raises InputError if
        no discount can be computed.
        """
        from mgpu_ngram.kernels.estimate.smooth_contexts import Rule  # imports NumPy, which `--help` does not need

        if self.name == "witten-bell":
            return Rule(per_word=1.0, lower=float(self.interpolate), words=words), [], []
        if self.name == "absolute":
            discount = of_order(self.discount, n) if self.discount else absolute_discount(n, counts_of_counts)
            lower = discount if self.interpolate else 0.0
            reserves = bool(discount or threshold)
            return Rule(shift=-discount, lower=lower, reserves=reserves, words=words), [discount], []
        if self.name == "additive":
            delta = of_order(self.delta, n)
            reserves = bool(delta or threshold)
            return Rule(shift=delta, added=words * delta, reserves=reserves, words=words), [delta], []
        coefficients, warnings = good_turing(n, counts_of_counts, of_order(self.gt_max, n))
        masses = tuple(count * coefficient for count, coefficient in enumerate(coefficients, 1))
        return Rule(masses, reserves=bool(masses or threshold), words=words), coefficients, warnings


def of_order(values: Sequence[Number], n: int) -> Number:
    """Return the value of order n; the last one also holds for all higher orders."""
    return values[min(n, len(values)) - 1]


def absolute_discount(n: int, counts_of_counts: Sequence[int]) -> float:
    """Return n1 / (n1 + 2 n2) (Ney, Essen and Kneser, 1994). Raises InputError if n1 or n2 is 0."""
    ones, twos = counts_of_counts[:2]
    if not ones or not twos:
        which = "once" if not ones else "twice"
        raise InputError(
            f"no discount can be computed for {n}-grams, because none occurs {which}; give the discounts of all orders "
            "with --discount (discount: [0.5, 0.7])"
        )
    return ones / (ones + 2 * twos)


def good_turing(n: int, counts_of_counts: Sequence[int], most: int) -> tuple[list[float], list[str]]:
    """Return (discount coefficients of counts 1 to at most `most`, warnings); [] if no count is discounted.

    Katz (1987). As in SRILM, `most` is lowered if no n-gram has count most + 1, and a coefficient out of range becomes
    1.
    """
    counts, warnings = [0, *counts_of_counts], list[str]()

    def warn(what: str) -> None:
        warnings.append(f"Good-Turing discounts of {n}-grams: {what}")

    if most and not counts[1]:
        warn("none occurs once, so no count is discounted")
        return [], warnings
    lowered = next((m for m in range(most, 0, -1) if counts[m + 1]), 0)
    if lowered < most:
        what = f"only counts up to {lowered} are" if lowered else "no count is"
        warn(f"none occurs {lowered + 2} times, so {what} discounted")
    from mgpu_ngram.kernels.estimate.smooth_contexts import MIN_MASS

    common = (lowered + 1) * counts[lowered + 1] / counts[1] if lowered else 0.0
    found = list[float]()
    for count in range(1, lowered + 1):
        value = math.nan
        if counts[count]:
            ratio = (count + 1) * counts[count + 1] / (count * counts[count])
            value = (ratio - common) / (1 - common) if common != 1 else math.nan
            if ratio > 1:
                value = math.nan
        fits = MIN_MASS < value <= 1  # False for nan; above 1 the probabilities would sum to more than 1
        if not fits and lowered > 1:  # the coefficient of a single count is always 0
            warn(f"the coefficient of count {count} is out of range, so this count is not discounted")
        found.append(value if fits else 1.0)
    return found, warnings


def check_values(name: str, values: Sequence[float], least: float, below: float) -> None:
    """Raise InputError unless the setting `name` has values from `least` to below `below`."""
    for value in values:
        if not least <= value < below:
            limit = f"at least {least:g}" + ("" if below == math.inf else f" and below {below:g}")
            raise InputError(f"{name} has {value:g} but must be {limit}; correct it")
