"""Estimate one of several parts of a model, whose n-grams are in suffix order (engine.count.suffix_order).

An order is put into text order by one sort of its first words, because the order below is already in text order, and
the n-grams with one suffix are neighbours. Keys are moved only of n-grams that are kept: often one of ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.shards import words_at
from mgpu_ngram.core.ngrams.discounts import Discounts
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.count.suffix_order import sort_by_first_word, to_text_order
from mgpu_ngram.engine.estimate.adjusted_counts import split_places
from mgpu_ngram.engine.estimate.part import Contexts, Estimated, EstimateOptions, Order, Part, word_ids
from mgpu_ngram.engine.estimate.probabilities import log10_backoffs, probs_of_words, weighed
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts


@dataclass(frozen=True)
class _Lower:
    """The order below, M n-grams, whose rows are the suffixes of an order.

    prob_L      (L,) float32, probabilities: of kept n-grams; for a Rule, log10 values of all. In text order; those of
                split bigrams of the part follow
    place_M     (M,) the row in text order of each row in suffix order; None if they are the same
    context_M1  (M + 1,) uint32, the context of each row in text order, and the number of contexts; None for words
    kept_M1     (M + 1,) the number of kept n-grams before each row in text order; None if all are kept
    split_P     (P,) places of the split bigrams of the part, whose rows follow; None if there can be none
    symbols     words of the vocabulary
    """

    prob_L: Any
    place_M: Any = None
    context_M1: Any = None
    kept_M1: Any = None
    split_P: Any = None
    symbols: int = 0

    def on(self, device: str) -> _Lower:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: move_to(a, device) for k, a in found.items() if a is not None and k != "symbols"})

    def with_split(self, place_P: Any, split_L: Any, symbols: int, device: str) -> _Lower:
        """Return the order on the device with some split bigrams behind it; the probabilities of all split bigrams stay
        where they are.
        """
        here = self.on(device)
        prob_P = move_to(split_L[move_to(place_P, device_of(split_L))], device)
        prob_L = array_module(here.prob_L).concatenate([here.prob_L, prob_P])
        return replace(here, prob_L=prob_L, split_P=move_to(place_P, device), symbols=symbols)

    def contexts_of(self, suffix_R: Any) -> Any:
        """Return the numbers of the contexts of suffixes, which are rows in text order; those of split words follow."""
        if self.split_P is None:
            return self.context_M1[suffix_R]
        contexts = self.context_M1[-1:] + (self.split_P // self.symbols).astype(np.uint32)
        return array_module(suffix_R).concatenate([self.context_M1[:-1], contexts])[suffix_R]

    def kept_rows(self, suffix_R: Any) -> Any:
        """Return suffixes that are kept as rows of kept n-grams; rows of split bigrams follow these."""
        if self.kept_M1 is None:
            return suffix_R
        xp, kept_M1 = array_module(suffix_R), self.kept_M1
        if self.split_P is not None:
            kept_M1 = xp.concatenate([kept_M1, kept_M1[-1:] + xp.arange(1, len(self.split_P) + 1, dtype=kept_M1.dtype)])
        return kept_M1[suffix_R]

    def places(self, suffix_K: Any) -> Any:
        """Return rows of kept n-grams with the places of split bigrams behind them, instead of their rows."""
        if self.split_P is None:
            return suffix_K
        M = len(self.context_M1) - 1 if self.kept_M1 is None else int(self.kept_M1[-1])
        xp = array_module(suffix_K)
        place_L = xp.concatenate([xp.arange(M), M + self.split_P])
        return place_L.astype(node_dtype(int(place_L[-1]) if len(place_L) else 0))[suffix_K]


@dataclass(frozen=True)
class _Rows:
    """The n-grams of an order in text order.

    row_R       their rows in suffix order; None if they are the same
    suffix_R    rows of their suffixes, in text order
    context_R1  (R + 1,) uint32, their contexts, and the number of contexts
    count_R, marked_R  as in `Order`
    """

    row_R: Any
    suffix_R: Any
    context_R1: Any
    count_R: Any
    marked_R: Any

    @property
    def contexts(self) -> int:
        return int(self.context_R1[-1])

    def kept(self) -> Any:
        """Return the rows that are not pruned; all as a slice if there are no others."""
        return slice(None) if self.marked_R is None else array_module(self.marked_R).flatnonzero(~self.marked_R)


def estimate_one_of_parts(
    part: Part, rules: Mapping[int, Discounts | Rule], prob_V: Any, options: EstimateOptions, split_L: Any, device: str
) -> Estimated:
    """Return probabilities and backoffs of a part in suffix order, each order in text order. Consumes the part.

    rules    order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    prob_V   (V,) float32, probabilities of words
    split_L  (H * V,) float32, probabilities of split bigrams; None if no word is split

    An order for which the device has no room is estimated in host memory.
    """
    made, N, split_left = Estimated({}, {}, {}), max(part.orders), part.split_left
    lower = _Lower(probs_of_words(prob_V, rules[1]))
    for n in sorted(part.orders):
        if n == 3 and split_left is not None:
            lower = on_device_or_host(partial(lower.with_split, split_left.place_P, split_L, len(prob_V)), device)
        fn = partial(_estimate_order, part.orders.pop(n), lower, rules[n], 3 <= n <= options.suffixed_order, n == N)
        made.contexts[n - 1], made.words[n], made.probabilities[n], suffix_K, lower = on_device_or_host(fn, device)
        del fn  # frees the order
        if suffix_K is not None:
            made.suffixes[n] = suffix_K
    return made


def split_probs(bigrams: Order, split: Sequence[int], rule: Discounts | Rule, prob_V: Any) -> tuple[Any, Any]:
    """Return (places among split bigrams, probabilities (P,) float32) of a part's split bigrams: whole contexts."""
    place_R = split_places(bigrams.word(0), bigrams.word(1), split, len(prob_V))
    rows, lower_L = _in_text_order(bigrams, _Lower(prob_V)), probs_of_words(prob_V, rule)
    context_R = rows.context_R1[:-1]
    if isinstance(rule, Rule):
        prob_R = smooth_contexts(rows.count_R, rows.marked_R, rows.suffix_R, lower_L, _first_rows(context_R), rule)[0]
    else:
        weights = weighed(context_R, rows.count_R, rows.marked_R, rows.contexts, rule)
        prob_R = interpolate(rows.count_R, context_R, rows.suffix_R, *weights, lower_L, rule)
    mine = (place_R >= 0).nonzero()[0]
    return place_R[mine], prob_R[mine]


def _estimate_order(
    order: Order, lower: _Lower, rule: Discounts | Rule, has_suffixes: bool, is_highest: bool, device: str
) -> tuple[Contexts, Any, Any, Any, _Lower]:
    """Return (contexts; of kept n-grams, the last words, log10 probabilities and, if `has_suffixes`, suffixes; the
    `_Lower` of the order above).
    """
    n, bits, lower = order.n, order.bits, lower.on(device)
    moved = order.on(device)
    keys, rows = moved.keys, _in_text_order(moved, lower)
    del moved  # frees copies of an order that is in host memory
    kept, context_R = rows.kept(), rows.context_R1[:-1]
    suffix_K, context_K = lower.kept_rows(rows.suffix_R[kept]), context_R[kept]
    if isinstance(rule, Rule):
        prob_R, backoff_C = smooth_contexts(
            rows.count_R, rows.marked_R, rows.suffix_R, lower.prob_L, _first_rows(context_R), rule
        )
        above_L, log10_K = prob_R, prob_R[kept]
    else:
        total_C, gamma_C = weighed(context_R, rows.count_R, rows.marked_R, rows.contexts, rule)
        above_L = interpolate(rows.count_R[kept], context_K, suffix_K, total_C, gamma_C, lower.prob_L, rule)
        log10_K = log10_values(above_L)
        del total_C
    above = lower if is_highest else _above(rows, above_L)
    row_K = kept if rows.row_R is None else rows.row_R[kept]
    del rows
    first_C1 = _first_rows(context_K)  # now of kept n-grams alone
    context_C, row_C = context_K[first_C1[:-1]], first_C1[:-1] if isinstance(row_K, slice) else row_K[first_C1[:-1]]
    value_C = backoff_C[context_C] if isinstance(rule, Rule) else log10_backoffs(gamma_C[context_C])
    contexts = Contexts(
        _contexts(keys.take(row_C, axis=1), n, bits), value_C, first_C1.astype(node_dtype(len(log10_K)))
    )
    last_two = keys[: check.num_columns(2, bits)]  # the first two words in suffix order
    last_two = last_two[:, row_K] if isinstance(row_K, slice) else last_two.take(row_K, axis=1)
    words_K = word_ids(last_two, 2, bits, 1).astype(np.uint32)
    return contexts, words_K, log10_K, lower.places(suffix_K) if has_suffixes else None, above


def _first_rows(context_R: Any) -> Any:
    """Return (C + 1,) int64: the first row of each context, and the number of rows; contexts rise."""
    xp, R = array_module(context_R), len(context_R)
    is_first_R1 = xp.ones(R + 1, bool)
    is_first_R1[1:R] = context_R[1:] != context_R[:-1]
    return xp.flatnonzero(is_first_R1)


def _contexts(keys: Any, n: int, bits: int) -> Any:
    """Return (B, C) uint64: the n-grams of some keys (C, R) of suffix order without their last words, in text order."""
    keys = keys if n == 2 else reorder_words(keys, bits, to_text_order(n))
    B = check.num_columns(n - 1, bits)
    columns = keys if B == len(keys) else keys[:B].copy()
    columns[-1] &= ~np.uint64(0) << np.uint64(64 * B - (n - 1) * bits)
    return columns


def _in_text_order(order: Order, lower: _Lower) -> _Rows:
    """Return the n-grams of an order of suffix order in text order."""
    n, bits, R = order.n, order.bits, len(order)
    xp = array_module(order.keys)
    row_R, suffix_R, count_R, marked_R = None, order.suffix_R, order.count_R, order.marked_R
    first_R = words_at(order.keys, n, bits, 0 if n == 2 else n - 1)
    if n > 2:  # bigrams have the same order
        row_R, first_R = sort_by_first_word(first_R, suffix_R, lower.place_M, bits)
        suffix_R, count_R = suffix_R[row_R], count_R[row_R]
        marked_R = None if marked_R is None else marked_R[row_R]
        suffix_R = suffix_R if lower.place_M is None else lower.place_M[suffix_R]
    is_new_R1 = xp.ones(R + 1, bool)
    is_new_R1[0] = False
    is_new_R1[1:R] = first_R[1:] != first_R[:-1]
    if n > 2:
        context_R = lower.contexts_of(suffix_R)
        is_new_R1[1:R] |= context_R[1:] != context_R[:-1]
    return _Rows(row_R, suffix_R, xp.cumsum(is_new_R1, dtype=np.uint32), count_R, marked_R)


def _above(rows: _Rows, prob_L: Any) -> _Lower:
    """Return the `_Lower` of the order above."""
    xp, R = array_module(rows.context_R1), len(rows.count_R)
    place_R = kept_R1 = None
    if rows.row_R is not None:
        place_R = xp.empty(R, node_dtype(R))
        place_R[rows.row_R] = xp.arange(R, dtype=place_R.dtype)
    if rows.marked_R is not None:
        kept_R1 = xp.zeros(R + 1, node_dtype(R))
        xp.cumsum(~rows.marked_R, out=kept_R1[1:])
    return _Lower(prob_L, place_R, rows.context_R1, kept_R1)
