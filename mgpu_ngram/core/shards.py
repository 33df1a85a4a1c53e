"""Assign n-grams to shards: a function of the corpus, never of the workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.tables import Table
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import array_module, to_host

SHARD_TOKENS = {"word": 4 << 20, "id": 4 << 20, "byte": 1 << 30}  # tokens of the corpus per shard
MAX_SHARDS = 1024
SPECIAL_WORDS = 3  # ids 0 to 2
MAX_SPLIT = 16  # words whose n-grams are spread over several shards
DEALT_PER_SHARD = 16  # words dealt singly, and bundles of words


def num_shards(tokens: int, unit: str) -> int:
    """Return the number of shards of a corpus of `tokens` words, ids or bytes, 1 to 1024."""
    if unit not in SHARD_TOKENS:
        raise ValueError(f"unit {unit!r} is none of {', '.join(SHARD_TOKENS)}")
    return min(max(-(-tokens // SHARD_TOKENS[unit]), 1), MAX_SHARDS)


@dataclass(frozen=True)
class PartLimits:
    """How large the parts of a model may be, in words of its corpus.

    least         least number of parts
    workers       least number of parts where `least` do not fit
    part_tokens   size of a part while others wait on the same worker
    alone_tokens  size of a part if its worker has no other
    """

    least: int
    workers: int
    part_tokens: int
    alone_tokens: int

    def num_parts(self, tokens: int) -> int:
        """Return the number of parts of a corpus of `tokens` words."""
        for parts in self.least, self.workers:
            if tokens <= parts * self.alone_tokens:
                return parts
        return max(self.least, self.workers, -(-tokens // self.part_tokens))


def deal_words(counts_V: Any, S: int) -> Any:
    """Deal words to S shards by mass: heaviest first, each to the lightest shard so far.

    counts_V  (V,) int64, occurrences of each word, NumPy or CuPy
    S         shards, 1 to 1024

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
    heaviest_V = xp.argsort(-counts_V, kind="stable")
    rounds = xp.zeros((max(1, -(-V // alone)), alone), np.int64)  # a bundle is a column below the first row
    rounds.reshape(-1)[:V] = counts_V[heaviest_V]
    mass_I = to_host(xp.concatenate([rounds[0], rounds[1:].sum(axis=0)]))
    shard_I = xp.asarray(_deal(mass_I, S))
    item_V = xp.arange(V)
    item_V[alone:] = item_V[alone:] % alone + alone
    shard_V[heaviest_V] = shard_I[item_V]
    return shard_V


def split_words(counts_V: Any, S: int) -> tuple[int, ...]:
    """Return the words that are heavier than one of S shards: rising ids, at most 16, without specials.

    If `shard_of` gets them, `deal_words` gives them no mass: their n-grams follow the word before them.
    """
    heavy = (counts_V > counts_V.sum() // S).nonzero()[0].tolist()
    return tuple(v for v in heavy if v >= SPECIAL_WORDS)[:MAX_SPLIT]  # ids rise as counts fall


def _deal(mass_I: np.ndarray, S: int) -> np.ndarray:
    """Deal items to S shards, heaviest first, each to the lightest so far.

    Plain Python, because items are few and a compiled loop would take a quarter of a second to load.
    """
    shard_I = np.empty(len(mass_I), np.uint16)
    lightest = [(0, shard) for shard in range(S)]
    masses = mass_I.tolist()
    for item in np.argsort(-mass_I, kind="stable").tolist():
        mass, shard = lightest[0]
        shard_I[item] = shard
        heapq.heapreplace(lightest, (mass + masses[item], shard))
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
    column, used = divmod(position * bits, 64)
    mask = np.uint64((1 << bits) - 1)
    spare = 64 - used - bits  # bits of this column below the code; negative if the code continues in the next one
    if spare >= 0:
        return (keys[column] >> np.uint64(spare)) & mask
    return ((keys[column] << np.uint64(-spare)) | (keys[column + 1] >> np.uint64(64 + spare))) & mask


def shard_of(table: Table, shard_V: Any, split: Sequence[int] = ()) -> Any:
    """Return the shard of every row: that of its last context word w_{n-1}, or of w_{n-2} if w_{n-1} is split.

    table    order n >= 2 (unigrams are one dense vector without shards), NumPy or CuPy
    shard_V  (V,) uint16 from `deal_words`, on the host or on the device of the table
    split    words from `split_words`; bigrams have no w_{n-2}, so theirs are not split

    Returns shard_G (G,) uint64 on the device of the table.
    """
    if table.order < 2:
        raise ValueError(f"order {table.order} has no context word; only orders of 2 and more are sharded")
    xp = array_module(table.keys)
    codes_G = words_at(table.keys, table.order, table.bits, table.order - 2)
    if split and table.order > 2:
        before_G = words_at(table.keys, table.order, table.bits, table.order - 3)
        codes_G = xp.where(xp.isin(codes_G, xp.asarray(split, np.uint64) + np.uint64(1)), before_G, codes_G)
    return xp.asarray(shard_V)[codes_G.astype(np.int64) - 1].astype(np.uint64)
