"""Numbers of the rows of all parts of a model together, by which n-grams name their suffixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.estimate.part import Estimated
from mgpu_ngram.kernels.dispatch import array_module


@dataclass(frozen=True)
class PartRows:
    """How many n-grams each part of a model has.

    symbols  V, words of the vocabulary
    split    rising words whose bigrams are suffixes in any part
    rows     {n: number of n-grams of each part}, orders 2 to N
    """

    symbols: int
    split: tuple[int, ...]
    rows: dict[int, list[int]]

    def suffix_rows(self, suffixes: Sequence[Any], places: Sequence[Any], n: int) -> Any:
        """Return (G,) the suffixes of the nodes of order n, as rows of the order below: those of the first part, of the
        second part, and so on. Places of split bigrams follow.

        suffixes  `Estimated.suffixes` of each part
        places    the node of each of these n-grams
        """
        xp, rows = array_module(suffixes[0]), self.rows[n - 1]
        is_split = n == 3 and len(self.split) > 0
        number = node_dtype(sum(rows) + is_split * len(self.split) * self.symbols)
        suffix_G = xp.empty(sum(map(len, places)), number)
        for p, (suffix_R, place_R) in enumerate(zip(suffixes, places, strict=True)):
            number_R = suffix_R.astype(number) + number.type(sum(rows[:p]))
            if is_split:
                number_R += (suffix_R >= rows[p]) * number.type(sum(rows[p + 1 :]))
            suffix_G[place_R] = number_R
        return suffix_G


def rows_of(part: Estimated) -> dict[int, int]:
    """Return the number of n-grams of each order of a part."""
    return {n: len(log10_R) for n, log10_R in part.probabilities.items()}


def rows_of_parts(rows: Sequence[dict[int, int]], symbols: int, split: Sequence[int] = ()) -> PartRows:
    """Return how many n-grams each part has, from `rows_of` each."""
    return PartRows(symbols, tuple(split), {n: [of_part[n] for of_part in rows] for n in (rows[0] if rows else ())})
