"""Assign n-grams to shards: a function of the corpus, never of the workers."""

from __future__ import annotations

import bisect
import heapq
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

SHARD_TOKENS = {"word": 4 << 20, "id": 4 << 20, "byte": 1 << 30}  # tokens of the corpus per shard
MAX_SHARDS = 1024
SPECIAL_WORDS = 3  # ids 0 to 2
MAX_SPLIT = 16  # words whose n-grams are spread over several shards
# Memory of a part for an n-gram of all orders, over that for a bigram alone, with the windows beside it.
BIGRAMS_SHARE = 4
USUAL_KEY = 5, 25  # order and bits of a word, for which sizes of parts are measured
DEALT_PER_SHARD = 16  # words dealt singly, and bundles of words
RANKS_AT_ONCE = 1 << 18  # words that are dealt at once in host memory


def num_shards(tokens: int, unit: str) -> int:
    """Return the number of shards of a corpus of `tokens` words, ids or bytes, 1 to 1024."""
    if unit not in SHARD_TOKENS:
        raise ValueError(f"unit {unit!r} is not one of {', '.join(SHARD_TOKENS)}")
    return min(max(-(-tokens // SHARD_TOKENS[unit]), 1), MAX_SHARDS)


def sort_bytes_per_token(order: int, bits: int) -> int:
    """Return the peak device bytes per token of one sort that counts orders 1..order, if all n-grams are distinct."""
    keys = 2 * 8 * check.num_columns(order, bits)  # the keys and the sort's other buffer
    tables = sum(8 * check.num_columns(n, bits) + 8 for n in range(1, order + 1))
    return keys + tables + 2


@dataclass(frozen=True)
class PartLimits:
    """Limits of the sizes of the parts of a model, in words of its corpus.

    least         least number of parts
    workers       several parts are a multiple of it, unless they are 1024
    part_tokens   size of one of several parts
    alone_tokens  size of the only part of a model, with keys up to `USUAL_KEY`
    order         highest order
    """

    least: int
    workers: int
    part_tokens: int
    alone_tokens: int
    order: int

    def num_parts(self, tokens: int, symbols: int) -> int:
        """Return the number of parts of a corpus of `tokens` words, `symbols` of them distinct: one, or as many for
        each worker, up to 1024.
        """
        longer = sort_bytes_per_token(self.order, check.code_bits(symbols)) / sort_bytes_per_token(*USUAL_KEY)
        if self.least == 1 and tokens * max(1, longer) <= self.alone_tokens:
            return 1
        parts = max(self.least, -(-tokens // self.part_tokens))
        return min(-(-parts // self.workers) * self.workers, MAX_SHARDS)


def deal_words(counts_V: Any, S: int, unordered: int | None = None, split: Sequence[int] = ()) -> Any:
    """Deal words to S shards by mass: heaviest first, each to the lightest shard so far.

    counts_V    (V,) int64, occurrences of each word, NumPy or CuPy
    S           shards, 1 to 1024
    unordered   number of first counts that may be in any order; the other counts fall, which saves memory. None: all
                counts may be in any order
    split       words among the unordered ones of which a shard has only the bigrams: they weigh 1 / BIGRAMS_SHARE

    Returns shard_V (V,) uint16 on the device of the counts. The heaviest 16 S words are dealt singly. The
    others are dealt in 16 S bundles, for speed: bundle b takes every 16 S-th word by falling count, so
    bundles weigh about the same. Ties: words by rising id, words before bundles, shards by rising number.
    So the result depends on the counts alone.
    """
    if not 1 <= S <= MAX_SHARDS:
        raise ValueError(f"{S} shards are outside 1..{MAX_SHARDS}")
    xp = array_module(counts_V)
    V, alone = len(counts_V), DEALT_PER_SHARD * S
    shard_V = xp.zeros(V, np.uint16)
    if S == 1:
        return shard_V
    ranks = _Ranks(counts_V, V if unordered is None else min(unordered, V), split)
    step = -(-(V if on_gpu(counts_V) else RANKS_AT_ONCE) // alone) * alone
    mass_I = xp.zeros(2 * alone, np.int64)  # a bundle is a column below the first row of `rounds`
    for first in range(0, V, step):
        mass_R = ranks.words(first, min(first + step, V))[1]
        rounds = xp.zeros((-(-len(mass_R) // alone), alone), np.int64)
        rounds.reshape(-1)[: len(mass_R)] = mass_R
        if first == 0:
            mass_I[:alone] = rounds[0]
        mass_I[alone:] += rounds[first == 0 :].sum(axis=0)
    shard_I = xp.asarray(_deal(to_host(mass_I), S))
    for first in range(0, V, step):
        words_R = ranks.words(first, min(first + step, V))[0]
        item_R = xp.arange(first, first + len(words_R))
        shard_V[words_R] = shard_I[xp.where(item_R < alone, item_R, item_R % alone + alone)]
    return shard_V


class _Ranks:
    """Words by falling mass, ties by rising id; see `deal_words`."""

    def __init__(self, counts_V: Any, unordered: int, split: Sequence[int]):
        xp = array_module(counts_V)
        mass_U = counts_V[:unordered].copy()
        mass_U[xp.asarray(split, np.int64)] //= BIGRAMS_SHARE
        self._words_U = xp.argsort(-mass_U, kind="stable")  # of the unordered words
        self._mass_U = mass_U[self._words_U]
        self._rank_U = xp.arange(unordered) + _larger(counts_V[unordered:], self._mass_U)
        self._counts_V, self._falls = counts_V, unordered < len(counts_V)

    def words(self, first: int, last: int) -> tuple[Any, Any]:
        """Return the words of ranks `first` to `last` - 1, and their masses."""
        if not self._falls:
            return self._words_U[first:last], self._mass_U[first:last]
        xp, U = array_module(self._counts_V), len(self._rank_U)
        words_R = xp.arange(first, last)
        words_R += U - xp.searchsorted(self._rank_U, words_R)  # less those of the unordered words before each
        here_U = (self._rank_U >= first) & (self._rank_U < last)
        places_U = self._rank_U[here_U] - first
        words_R[places_U] = self._words_U[here_U]
        mass_R = self._counts_V[words_R]
        mass_R[places_U] = self._mass_U[here_U]
        return words_R, mass_R


def _larger(falling_C: Any, mass_U: Any) -> Any:
    """Return (U,) int64: how many of some counts, which fall, are larger than each mass."""
    if on_gpu(falling_C):
        return array_module(falling_C).searchsorted(-falling_C, -mass_U)
    if not len(falling_C):
        return np.zeros(len(mass_U), np.int64)
    return np.array([bisect.bisect_left(falling_C, -m, key=operator.neg) for m in mass_U.tolist()], np.int64)


def split_words(counts_V: Any, S: int) -> tuple[int, ...]:
    """Return the words that are heavier than one of S shards: rising ids, at most 16, without specials.

    counts_V  (V,) int64, falling from the first word after the special ones

    `cut_shards` and `deal_words` take them as `split`: the word before a split word selects the shard of its n-grams of
    order 3 and more.
    """
    heavy = counts_V[: SPECIAL_WORDS + MAX_SPLIT] > counts_V.sum() // S
    return tuple(v for v in heavy.nonzero()[0].tolist() if v >= SPECIAL_WORDS)


def _deal(mass_I: np.ndarray, S: int) -> np.ndarray:
    """Deal items to S shards, heaviest first, each to the lightest so far.

    Plain Python, because items are few and a compiled loop would take a quarter of a second to load.
    """
    by_mass_I = np.argsort(-mass_I, kind="stable")
    shards = list(range(S))  # a heap of mass * MAX_SHARDS + shard: integers compare faster than pairs
    lightest_I = [heapq.heapreplace(shards, shards[0] + mass * MAX_SHARDS) for mass in mass_I[by_mass_I].tolist()]
    shard_I = np.empty(len(mass_I), np.uint16)
    shard_I[by_mass_I] = np.array(lightest_I) % MAX_SHARDS
    return shard_I


def words_at(keys: Any, order: int, bits: int, position: int) -> Any:
    """Return the code at one position of every key.

    keys      (C, G) uint64, NumPy or CuPy; see `Table`
    order     words per key
    bits      bits per code
    position  0 for the first word, order - 1 for the last

    Returns codes_G (G,) uint64 on the device of the keys.
    """
    check.dtype(keys, np.uint64)
    if not 0 <= position < order:
        raise ValueError(f"position {position} is outside 0..{order - 1} of an order-{order} key")
    column, spare = check.code_place(position, bits)
    mask = np.uint64((1 << bits) - 1)
    if spare >= 0:
        return (keys[column] >> np.uint64(spare)) & mask
    return ((keys[column] << np.uint64(-spare)) | (keys[column + 1] >> np.uint64(64 + spare))) & mask
