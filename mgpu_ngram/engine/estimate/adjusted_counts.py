"""Compute the adjusted counts of a model from counts of text with sentence markers: of one part, and of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import END_ID, START_ID
from mgpu_ngram.engine.count.sorted_runs import where_it_fits
from mgpu_ngram.engine.estimate.part import EstimateOptions, Order, Part, word_ids
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.engine.memory.spill import result_to_device
from mgpu_ngram.kernels.common.count_ids import count_ids
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.find_suffixes import find_suffixes
from mgpu_ngram.kernels.estimate.link_histories import link_histories

MAX_COUNTED = 4  # counts of counts cover counts 1 to 4


def adjust_counts(part: Part, symbols: int) -> Part:
    """Return the part that is the whole model with adjusted counts.

    The adjusted count of an n-gram of the highest order is its raw count. Below, it is the number of distinct words
    before the n-gram, or its raw count if the n-gram begins with <s>, because no word precedes <s>.

    part  a result of `with_suffixes`
    """
    N, orders = max(part.orders), {n: replace(order) for n, order in part.orders.items()}
    part = replace(part, orders=orders, left_V=count_ids(orders[2].suffix_R, symbols), counts_of_counts={}, sizes={})

    for n, order in orders.items():
        if n < N:
            rows = _rows_of_start(orders, n)
            if order.raw_R.dtype != order.count_R.dtype:
                order.count_R = order.count_R.astype(np.int64)
            order.count_R[rows] = order.raw_R[rows]
        part.counts_of_counts[n] = count_counts(order.count_R, MAX_COUNTED)
        part.sizes[n] = order.sizes()
    return part


def linked_part(tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any = None) -> Part:
    """Return the part that is the whole model, with raw counts and `Links`, but without the rows of suffixes.

    tables  tables of orders 2 to N, each sorted by key, of text with sentence markers; may be `narrowed`. It is
            emptied, the highest order first, to free the keys, which take half of the memory
    bad_V   (V,) bool, words outside a limited vocabulary; None: the vocabulary is not limited

    If an order does not fit the device, it is linked in host memory, and the whole part is returned there.
    """
    bits = tables[2].bits

    def linked(n: int) -> Order:
        def link(table: Table, *below: Table) -> Order:
            xp = array_module(table.keys)
            if below:
                histories = below[0].keys
            else:
                histories = (xp.arange(1, symbols + 1, dtype=np.uint64) << np.uint64(64 - bits))[None]
            links = link_histories(histories, table.keys, n, bits)
            raw_R = narrow(table.counts)
            bad_here_V = None if bad_V is None else move_to(bad_V, device_of(table.keys))
            marked_R = marked(table, raw_R, options.thresholds[n - 1], bad_here_V)
            return Order(
                n=n,
                bits=bits,
                keys=None,
                raw_R=raw_R,
                suffix_R=links.word_R if n == 2 else None,
                count_R=raw_R,
                marked_R=marked_R,
                links=links,
            )

        return where_it_fits(link, *(tables[m] for m in (n, n - 1) if m in tables))

    orders = {}
    for n in sorted(tables, reverse=True):
        orders[n] = linked(n)
        del tables[n]
    part = _raw_part(dict(sorted(orders.items())))
    return part if all(map(on_gpu, part.arrays().values())) else result_to_device(part, "cpu")


def with_suffixes(part: Part) -> Part:
    """Return the part of `linked_part` with the rows of suffixes; counts of orders below the highest are the numbers of
    words before the n-grams.
    """
    orders = {n: replace(order) for n, order in part.orders.items()}
    for n in sorted(orders)[1:]:
        order, below = orders[n], orders[n - 1]
        word_R, history_R, _ = order.links
        word_M, _, first_L1 = below.links
        order.suffix_R, below.count_R = find_suffixes(word_R, history_R, word_M, first_L1, below.suffix_R)
    return replace(part, orders=orders)


def _raw_part(orders: dict[int, Order]) -> Part:
    return Part(orders, array_module(orders[2].raw_R).empty(0, np.int64))


def _rows_of_start(orders: dict[int, Order], n: int) -> slice:
    """Return the rows of the n-grams of a whole model that begin with <s>."""
    first, last = START_ID, START_ID + 1
    for m in range(2, n + 1):
        first_M1 = orders[m].links.first_M1
        first, last = int(first_M1[first]), int(first_M1[last])
    return slice(first, last)


def narrowed(table: Table) -> Table:
    """Return the table with counts of uint32 if they fit, to halve their memory."""
    return replace(table, counts=narrow(table.counts))


def narrow(counts: Any) -> Any:
    """Return counts of uint32 if they fit."""
    if counts.dtype == np.uint32 or (len(counts) and int(counts.max()) >= 1 << 32):
        return counts
    return counts.astype(np.uint32)


def places_in_text(first_source_V: np.ndarray, first_offset_V: np.ndarray) -> np.ndarray:
    """Return (V,) int64, numbers in the order of lmplz's ids: specials first, then words by first occurrence."""
    place_V = np.arange(len(first_source_V))
    words = slice(END_ID + 1, None)
    bytes_at_most = np.int64(first_offset_V.max(initial=0)) + 1  # of a source, as far as words begin
    place_V[words] = END_ID + 1 + first_source_V[words].astype(np.int64) * bytes_at_most + first_offset_V[words]
    return place_V


class LastNgram(NamedTuple):
    """An n-gram whose first word has the greatest place of `places_in_text`, its adjusted count and its raw count."""

    place: int
    first: int
    adjusted: int
    raw: int


def last_ngrams(part: Part, n: int, suffix: int, place_V: np.ndarray, split: Sequence[int] = ()) -> list[LastNgram]:
    """Return the last n-grams of orders n to N - 1, in the order of lmplz's ids from the last word back.

    The first of them is the last n-gram with the suffix in row `suffix` of the order below; each other one is the last
    whose suffix is the one before it. They end where a word is <s> or, at bigrams, split.
    """
    found = list[LastNgram]()
    while n < max(part.orders):
        order = part.orders[n]
        rows = (order.suffix_R == suffix).nonzero()[0]
        if not len(rows):
            break
        first_K = to_host(_first_words(part, n, rows))
        best = int(place_V[first_K].argmax())
        suffix, first = int(rows[best]), int(first_K[best])
        if first <= START_ID:  # no word precedes <s>
            break
        found.append(LastNgram(int(place_V[first]), first, int(order.count_R[suffix]), int(order.raw_R[suffix])))
        if n == 2 and first in split:
            break
        n += 1
    return found


def row_of_split(part: Part, place: int) -> int | None:
    """Return the row by which suffixes of order 3 name a split bigram; None if the part does not have it."""
    assert part.split_left is not None
    place_P = part.split_left.place_P
    xp = array_module(place_P)
    row = int(xp.searchsorted(place_P, xp.asarray([place]))[0])
    is_here = row < len(place_P) and int(place_P[row]) == place
    return len(part.orders[2]) + row if is_here else None


def _first_words(part: Part, n: int, rows: Any) -> Any:
    """Return the ids of the first words of some n-grams of order n, of a whole model or of a part in suffix order."""
    order = part.orders[n]
    if not order.links:
        return word_ids(order.keys[:, rows], n, order.bits, 0 if n == 2 else n - 1)
    for m in range(n, 1, -1):
        rows = part.orders[m].links.history_R[rows]
    return rows


def split_places(first_G: Any, second_G: Any, split: Sequence[int], symbols: int) -> Any:
    """Return (G,) int64: the places of bigrams among split bigrams, -1 for other bigrams."""
    xp = array_module(first_G)
    words_H = xp.asarray(split)
    index_G = xp.minimum(xp.searchsorted(words_H, first_G), len(split) - 1)
    return xp.where(words_H[index_G] == first_G, index_G * symbols + second_G, -1)


def marked(table: Table, raw_R: Any, threshold: int, bad_V: Any) -> Any:
    """Return which n-grams are pruned; None if none is."""
    marked_R = raw_R <= threshold if threshold else None
    if bad_V is not None:
        outside_R = array_module(table.keys).zeros(len(table), bool)
        for position in range(table.order):
            outside_R |= bad_V[word_ids(table.keys, table.order, table.bits, position)]
        marked_R = outside_R if marked_R is None else marked_R | outside_R
    return marked_R


def adjust_unigrams(left_V: Any, counts_V: Any, options: EstimateOptions, bad_V: Any) -> tuple[Any, Any]:
    """Return (adjusted counts (V,) int64, kept (V,) bool) of single words.

    left_V    summed over all parts
    counts_V  raw counts
    """
    xp = array_module(left_V)
    count_V = (counts_V if options.order == 1 else left_V).copy()
    count_V[START_ID] = 0
    kept_V = counts_V > (options.thresholds[0] or -1)  # words of a given vocabulary may not occur
    if bad_V is not None:
        kept_V &= ~bad_V
    kept_V[: END_ID + 1] = True
    return count_V, xp.ascontiguousarray(kept_V)
