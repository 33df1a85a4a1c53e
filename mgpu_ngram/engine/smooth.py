"""Plain counts of one part of a model, and single words: Witten-Bell, absolute, Good-Turing and additive smoothing.

Parts and their rows are those of `engine.estimate`. Plain counts need no vector of the words before each word: parts
exchange counts of counts, the probabilities of single words, and those of split bigrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_ngram.core.smoothing import Smoothing
from mgpu_ngram.core.tables import Table
from mgpu_ngram.engine.adjust import orders_of
from mgpu_ngram.engine.part import START_ID, UNK_ID, EstimateOptions, Part, Unigrams, word_ids
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.smooth_contexts import MIN_MASS, Rule, weigh


def plain_counts(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, smoothing: Smoothing, split: Sequence[int] = (),
    threads: int = 1, whole: bool = False,
) -> Part:  # fmt: skip
    """Return a part with plain counts.

    tables  of orders 2 to N, each sorted by key; counts of marked text
    split   words that are split
    threads  as of `side_by_side`, one order each
    whole    whether the part is the whole model

    A closed vocabulary drops n-grams with <unk>. Counts of counts include those whose context has <unk>, as in SRILM.
    """
    counts_of_counts, kept = dict[int, list[int]](), dict[int, Table]()
    for n, table in sorted(tables.items()):
        counts, kept[n] = table.counts, table
        if smoothing.closed:
            counts = counts[word_ids(table.keys, n, table.bits, n - 1) != UNK_ID]
            kept[n] = _without_unknowns(table)
        counts_of_counts[n] = count_counts(counts, smoothing.counted(n))
    xp = array_module(tables[2].keys)
    nothing = xp.zeros(0, np.int64)
    orders = orders_of(kept, symbols, options, None, split, threads, whole)
    part = Part(orders, nothing, nothing, counts_of_counts)
    for n, order in part.orders.items():
        order.count_R = order.raw_R
        pruned = 0 if order.marked_R is None else int(order.marked_R.sum())
        part.sizes[n] = len(order) - pruned, len(order)
    return part


def _without_unknowns(table: Table) -> Table:
    """Return the n-grams without <unk>."""
    xp = array_module(table.keys)
    has_R = xp.zeros(len(table), bool)
    for position in range(table.order):
        has_R |= word_ids(table.keys, table.order, table.bits, position) == UNK_ID
    if not bool(has_R.any()):
        return table
    rows = xp.flatnonzero(~has_R)
    return replace(table, keys=table.keys[:, rows], counts=table.counts[rows])


def plain_unigrams(counts_V: Any, closed: bool) -> tuple[Any, Any]:
    """Return (counts (V,) int64, kept (V,) bool) of single words. All words stay in the model, also unseen ones."""
    count_V = counts_V.copy()
    count_V[START_ID] = 0
    if closed:
        count_V[UNK_ID] = 0
    return count_V, array_module(counts_V).ones(len(counts_V), bool)


def smooth_unigrams(count_V: Any, rule: Rule, threshold: int, closed: bool) -> Unigrams:
    """Return probabilities of single words, which interpolate with the uniform distribution.

    threshold  words that occur at most that often count as unseen

    Unseen words share the mass that is left; without unseen words, all words do. <s> gets 0, and so does <unk> if the
    vocabulary is closed. Sums are sums of whole numbers, so every device gives the same bits.
    """
    xp, K = array_module(count_V), len(rule.masses)
    seen_V, most = count_V > threshold, count_V > K
    mass, size = 0.0, int(seen_V.sum())
    for count, of_count in enumerate(rule.masses, 1):
        mass += of_count * int((seen_V & (count_V == count)).sum())
    mass += int(count_V[seen_V & most].sum()) + rule.shift * int((seen_V & most).sum())
    uniform, total = 1 / rule.words, int(count_V.sum())
    Z, gamma = weigh(mass, total, int((count_V > 0).sum()), size * uniform, rule)
    masses_K = xp.array([0.0, *rule.masses])
    mass_V = xp.where(most, count_V + rule.shift, masses_K[xp.minimum(count_V, K)])
    prob_V = xp.where(seen_V, mass_V / Z + gamma * uniform, 0)
    left = 1 - (mass / Z + gamma * uniform * size)
    shares_V = ~seen_V if size < rule.words else seen_V.copy()
    shares_V[START_ID] = False
    if closed:
        shares_V[UNK_ID] = False
    prob_V += xp.where(shares_V, (left if left >= MIN_MASS else 0.0) / max(1, int(shares_V.sum())), 0)
    return Unigrams(prob_V.astype(np.float32), xp.ones(len(count_V), bool), finite=True)
