"""Make one of several parts of a model, from n-grams that are sorted in suffix order (engine.count.suffix_order).

The rows of all n-grams with one suffix are neighbours, and their number is the number of distinct words before that
suffix. So one sort gives the n-grams of all orders, their suffixes and their adjusted counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import START_ID
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.count.suffix_order import to_suffix_order, with_column
from mgpu_ngram.engine.estimate.adjusted_counts import MAX_COUNTED, marked, narrow, split_places
from mgpu_ngram.engine.estimate.part import EstimateOptions, Order, Part, SplitLeft, word_ids
from mgpu_ngram.kernels.common.count_ids import count_ids
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.link_histories import link_histories


def in_suffix_order(table: Table) -> Table:
    """Return a table with its n-grams in suffix order."""
    n, bits = table.order, table.bits
    if n == 2:  # the same in both orders
        return table
    columns = with_column(reorder_words(table.keys, bits, to_suffix_order(n)), table.counts)
    columns = radix_sort(columns, n * bits)
    return replace(table, keys=columns[:-1], counts=columns[-1].astype(table.counts.dtype))


def part_of_tables(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any = None, split: Sequence[int] = (),
    elsewhere: Sequence[int] = (),
) -> Part:  # fmt: skip
    """Return a part in suffix order, with adjusted counts: see `adjusted_counts.adjust_counts`.

    tables     tables of orders 2 to N in suffix order, of text with sentence markers
    bad_V      (V,) bool, words outside a limited vocabulary; None: the vocabulary is not limited
    split      words that are split; their bigrams have count 0 here
    elsewhere  split words whose bigrams belong to another part; their rows of order 2 are left out
    """
    N, orders, first_M = options.order, dict[int, Order](), None
    part = Part(orders, None)
    for n in range(2, N + 1):
        table = tables[n]
        keys, raw_R, bits = table.keys, narrow(table.counts), table.bits
        xp = array_module(keys)
        if n == 2:
            first_R, suffix_R = (word_ids(keys, 2, bits, place).astype(np.uint32) for place in (0, 1))
        else:
            first_R, suffix_R, first_M1 = link_histories(tables[n - 1].keys, keys, n, bits)
            below = orders[n - 1]
            below.count_R = narrow(xp.where(first_M == START_ID, below.raw_R, xp.diff(first_M1)))
        orders[n] = Order(n, bits, keys, raw_R, suffix_R, raw_R, marked(table, raw_R, options.thresholds[n - 1], bad_V))
        if n == 3 and split:
            part.split_left = _take_out_split(orders, first_M, symbols, split, elsewhere)
        first_M = first_R
    part.left_V = count_ids(orders[2].suffix_R, symbols)
    for n, order in orders.items():
        part.counts_of_counts[n] = count_counts(order.count_R, MAX_COUNTED)
        part.sizes[n] = order.sizes()
    return part


def _take_out_split(
    orders: dict[int, Order], first_M: Any, symbols: int, split: Sequence[int], elsewhere: Sequence[int]
) -> SplitLeft:
    """Leave the bigrams of `elsewhere` out of order 2, set the counts of the other split bigrams to 0, and let the
    suffixes of order 3 be rows of the result, behind all rows of order 2. Return the adjusted counts of split bigrams.
    """
    order, above = orders[2], orders[3]
    xp = array_module(order.keys)
    place_M = split_places(first_M, order.suffix_R, split, symbols)
    is_split_M = place_M >= 0
    mine_P = is_split_M.nonzero()[0]
    split_left = SplitLeft(place_M[mine_P], order.count_R[mine_P].astype(np.int64))
    order.count_R = xp.where(is_split_M, 0, order.count_R).astype(order.count_R.dtype)
    stays_M = xp.ones(len(order), bool)
    for word in elsewhere:
        stays_M &= first_M != word
    rows = stays_M.nonzero()[0]
    new_M = xp.where(is_split_M, len(rows) + xp.cumsum(is_split_M), xp.cumsum(stays_M)) - 1
    above.suffix_R = new_M.astype(node_dtype(len(rows) + len(mine_P)))[above.suffix_R]
    if len(rows) < len(order):
        orders[2] = order.taken(rows)
    return split_left
