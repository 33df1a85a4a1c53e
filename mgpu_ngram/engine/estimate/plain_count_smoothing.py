"""Plain counts of one part of a model, and single words: Witten-Bell, absolute, Good-Turing and additive smoothing.

Parts and their rows are those of `engine.estimate.part_of_tables`, or of `engine.estimate.adjusted_counts` for a model
of one part. Plain counts need no numbers of left extensions: parts exchange only counts of counts, the probabilities of
single words, and those of split bigrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import START_ID, UNK_ID
from mgpu_ngram.core.ngrams.smoothing import Smoothing
from mgpu_ngram.engine.count.sorted_runs import where_it_fits
from mgpu_ngram.engine.estimate.part import Part, Unigrams, word_ids
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.smooth_contexts import MIN_MASS, Rule, weigh


def plain_counts_of_counts(
    tables: dict[int, Table], smoothing: Smoothing, in_suffix_order: bool = False, elsewhere: Sequence[int] = ()
) -> dict[int, list[int]]:
    """Return the counts of counts of each order. In a closed vocabulary, drop n-grams with <unk> from `tables`.

    tables           tables of orders 2 to N, of text with sentence markers
    in_suffix_order  whether the predicted word of an n-gram is its second one (engine.count.suffix_order); else its
                     last one
    elsewhere        words whose bigrams another part counts

    Counts of counts include n-grams whose context has <unk>, as in SRILM.
    """
    counts_of_counts = {}
    for n in sorted(tables):
        known = partial(_known, smoothing, 1 if in_suffix_order else n - 1, elsewhere if n == 2 else ())
        counts_of_counts[n], tables[n] = where_it_fits(known, tables[n])
    return counts_of_counts


def _known(smoothing: Smoothing, predicted: int, elsewhere: Sequence[int], table: Table) -> tuple[list[int], Table]:
    counts, n, bits = table.counts, table.order, table.bits
    if elsewhere or smoothing.closed:
        counted_R = array_module(counts).ones(len(counts), bool)
        for word in elsewhere:
            counted_R &= word_ids(table.keys, n, bits, 0) != word
        if smoothing.closed:
            counted_R &= word_ids(table.keys, n, bits, predicted) != UNK_ID
            table = _without_unknowns(table)
        counts = counts[counted_R]
    return count_counts(counts, smoothing.counted(n)), table


def plain_counts(part: Part, counts_of_counts: dict[int, list[int]]) -> Part:
    """Return a part with plain counts.

    part              a result of `with_suffixes` or `part_of_tables`
    counts_of_counts  the result of `plain_counts_of_counts`
    """
    orders = {n: replace(order, count_R=order.raw_R) for n, order in part.orders.items()}
    sizes = {n: order.sizes() for n, order in orders.items()}
    return replace(part, orders=orders, counts_of_counts=counts_of_counts, sizes=sizes)


def _without_unknowns(table: Table) -> Table:
    """Return the n-grams without <unk>."""
    xp = array_module(table.keys)
    has_R = xp.zeros(len(table), bool)
    for position in range(table.order):
        has_R |= word_ids(table.keys, table.order, table.bits, position) == UNK_ID
    if not count_true(has_R):
        return table
    rows = xp.flatnonzero(~has_R)
    return replace(table, keys=table.keys[:, rows], counts=table.counts[rows])


def plain_unigrams(counts_V: Any, closed: bool) -> tuple[Any, Any]:
    """Return (counts (V,) int64, kept (V,) bool) of single words. The model keeps all words, even unseen ones."""
    count_V = counts_V.copy()
    count_V[START_ID] = 0
    if closed:
        count_V[UNK_ID] = 0
    return count_V, array_module(counts_V).ones(len(counts_V), bool)


def smooth_unigrams(count_V: Any, rule: Rule, threshold: int, closed: bool) -> Unigrams:
    """Return probabilities of single words, which interpolate with the uniform distribution.

    threshold  words with this count or less count as unseen

    Unseen words share the remaining mass; if there are none, all words share it. <s> gets 0, and so does <unk> if the
    vocabulary is closed. Sums are sums of whole numbers, so every device gives the same bits.
    """
    xp, K = array_module(count_V), len(rule.masses)
    seen_V, most = count_V > threshold, count_V > K
    mass, size = 0.0, count_true(seen_V)
    for count, of_count in enumerate(rule.masses, 1):
        mass += of_count * count_true(seen_V & (count_V == count))
    mass += int(count_V[seen_V & most].sum()) + rule.shift * count_true(seen_V & most)
    uniform, total = 1 / rule.words, int(count_V.sum())
    Z, gamma = weigh(mass, total, count_true(count_V > 0), size * uniform, rule)
    masses_K = xp.array([0.0, *rule.masses])
    mass_V = xp.where(most, count_V + rule.shift, masses_K[xp.minimum(count_V, K)])
    prob_V = xp.where(seen_V, mass_V / Z + gamma * uniform, 0)
    left = 1 - (mass / Z + gamma * uniform * size)
    shares_V = ~seen_V if size < rule.words else seen_V.copy()
    shares_V[START_ID] = False
    if closed:
        shares_V[UNK_ID] = False
    prob_V += xp.where(shares_V, (left if left >= MIN_MASS else 0.0) / max(1, count_true(shares_V)), 0)
    return Unigrams(prob_V.astype(np.float32), xp.ones(len(count_V), bool), finite=True)
