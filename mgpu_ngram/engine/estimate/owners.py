"""Which part of a model has which n-grams, and which rows of all parts are their suffixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.estimate.part import Estimated, word_ids
from mgpu_ngram.kernels.dispatch import array_module


@dataclass(frozen=True)
class Owners:
    """Which part has which n-grams.

    part_V  (V,) uint16: the part of the n-grams whose last context word is each word
    split   rising words: the word before such a last context word selects the part of n-grams of order 3 and more
    rows    {n: number of n-grams of each part}, orders 2 to N
    """

    part_V: Any
    split: tuple[int, ...]
    rows: dict[int, list[int]]

    def part_of(self, histories: Any, words_M: Any, n: int, bits: int) -> Any:
        """Return (M,) uint16: the part of the n-grams of order n that continue each history.

        histories  keys of n-grams of order n - 1, and
        words_M    their last words
        """
        part_M = self.part_V[words_M]
        for word in self.split if n > 2 else ():
            rows = (words_M == word).nonzero()[0]
            part_M[rows] = self.part_V[word_ids(histories.take(rows, axis=1), n - 1, bits, n - 3)]
        return part_M

    def suffix_rows(self, suffixes: Sequence[Any], places: Sequence[Any], n: int) -> Any:
        """Return (G,) the suffixes of the nodes of order n, as rows of the order below: those of the first part, of the
        second part, and so on. Places of split bigrams follow.

        suffixes  `Estimated.suffixes` of each part
        places    the node of each of these n-grams
        """
        xp, rows = array_module(suffixes[0]), self.rows[n - 1]
        is_split = n == 3 and len(self.split) > 0
        number = node_dtype(sum(rows) + is_split * len(self.split) * len(self.part_V))
        suffix_G = xp.empty(sum(map(len, places)), number)
        for p, (suffix_R, place_R) in enumerate(zip(suffixes, places, strict=True)):
            number_R = suffix_R.astype(number) + number.type(sum(rows[:p]))
            if is_split:
                number_R += (suffix_R >= rows[p]) * number.type(sum(rows[p + 1 :]))
            suffix_G[place_R] = number_R
        return suffix_G


def context_words(part: Estimated, bits: int) -> Any:
    """Return (C,) int64: the words that are last context words of the bigrams of a part."""
    return word_ids(part.backoffs[1].columns, 1, bits, 0)


def rows_of(part: Estimated) -> dict[int, int]:
    """Return the number of n-grams of each order of a part."""
    return {n: len(weights.values) for n, weights in part.probabilities.items()}


def owners_of(words: Sequence[Any], rows: Sequence[dict[int, int]], symbols: int, split: Sequence[int] = ()) -> Owners:
    """Return which part has which n-grams, from `context_words` and `rows_of` of each part."""
    part_V = (array_module(words[0]) if words else np).zeros(symbols, np.uint16)
    for p, words_C in enumerate(words):
        part_V[words_C] = p
    return Owners(part_V, tuple(split), {n: [of_part[n] for of_part in rows] for n in (rows[0] if rows else ())})
