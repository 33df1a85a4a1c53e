"""Estimate the probabilities and backoffs of a part, by modified Kneser-Ney or `plain_count_smoothing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import START_ID, UNK_ID
from mgpu_ngram.core.models.arpa import ZERO_LOG10
from mgpu_ngram.core.ngrams.discounts import Discounts
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.estimate.adjusted_counts import split_places
from mgpu_ngram.engine.estimate.part import (
    Contexts,
    Estimated,
    EstimateOptions,
    Order,
    OrderNodes,
    Part,
    Unigrams,
    word_ids,
)
from mgpu_ngram.engine.memory.threads import side_by_side
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts
from mgpu_ngram.kernels.estimate.sum_contexts import sum_contexts
from mgpu_ngram.kernels.estimate.weigh_contexts import weigh_contexts

CONTEXTS_AT_ONCE = 1 << 24  # contexts whose counts are summed together
_Estimate = Callable[[Any], tuple[Any, Any, Any, Any]]  # see `_estimator`
MIN_BACKOFF = np.finfo(np.float32).tiny  # least backoff of a context: no reader accepts a log10 backoff of -inf


def estimate_unigrams(count_V: Any, kept_V: Any, discounts: Discounts, options: EstimateOptions) -> Unigrams:
    """Return probabilities of single words; <unk> gets its share of the uniform distribution.

    <s> gets 1, as in lmplz.
    """
    xp, f = array_module(count_V), np.float32
    kinds = xp.array([[count_true(kept_V & kind_V) for kind_V in (count_V == 1, count_V == 2, count_V > 2)]], np.uint32)
    total = count_V.sum().reshape(1)
    _, gamma = weigh_contexts(total, kinds, count_V[~kept_V].sum().reshape(1), discounts)
    uniform = f(1) / f(max(options.vocab_pad, count_true(kept_V) - 1))
    discount_V = xp.asarray(np.array([0, *discounts], f))[xp.minimum(count_V, 3)]
    prob_V = (count_V.astype(f) - discount_V) / total.astype(f)
    if options.interpolate_unigrams:
        prob_V = prob_V + gamma * uniform
    else:
        prob_V[UNK_ID] += gamma[0]
    prob_V[START_ID] = 1
    return Unigrams(prob_V, kept_V)


def estimate_part(
    part: Part, rules: Mapping[int, Discounts | Rule], unigrams: Unigrams, options: EstimateOptions,
    split_L: Any = None, threads: int = 1,
) -> Estimated:  # fmt: skip
    """Return probabilities and backoffs of a part.

    rules    order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    split_L  (H * V,) float32, probabilities of split bigrams
    threads  as for `side_by_side`, one order each
    """
    words, contexts, nodes = dict[int, Any](), dict[int, Contexts](), dict[int, OrderNodes]()

    def prepared(n: int) -> tuple[int, _Estimate]:
        return n, _estimator(part.orders[n], rules[n])

    def interpolated() -> Iterator[tuple[Order, Any]]:
        lower_L = _of_words(unigrams.prob_V, rules[1])
        for n, estimate in side_by_side(prepared, sorted(part.orders), threads):
            if n == 3 and split_L is not None:
                lower_L = array_module(lower_L).concatenate([lower_L, split_L])
            order = part.orders[n]
            lower_L, columns, values_C, sizes_C = estimate(lower_L)
            del estimate  # frees memory: it holds arrays of contexts
            contexts[n - 1] = Contexts(columns, values_C)
            if not order.links:
                contexts[n - 1] = _kept_contexts(order, contexts[n - 1], sizes_C)
            yield order, lower_L

    def values(made: tuple[Order, Any]) -> tuple[int, Any]:
        (order, prob_R), n = made, made[0].n
        log10_R = prob_R if isinstance(rules[n], Rule) else log10_values(prob_R)
        if not order.links:
            keys = order.keys
            if order.marked_R is not None:
                kept = array_module(log10_R).flatnonzero(~order.marked_R)
                keys, log10_R = keys.take(kept, axis=1), log10_R[kept]
            words[n] = word_ids(keys, n, order.bits, n - 1).astype(np.uint32)
        return n, log10_R

    for n, order in part.orders.items():
        if order.links:
            suffix_R = None if n == 2 else order.suffix_R
            nodes[n] = OrderNodes(order.links.word_R, order.links.first_M1, suffix_R, order.marked_R)
    probabilities = dict(side_by_side(values, interpolated(), threads))
    suffixed = range(3, options.suffixed_order + 1) if not nodes else ()
    suffixes = {n: _kept_suffixes(part.orders[n], part.orders[n - 1]) for n in suffixed}
    return Estimated(probabilities, words, contexts, nodes=nodes, suffixes=suffixes)


def _kept_contexts(order: Order, contexts: Contexts, sizes_C: Any) -> Contexts:
    """Return the contexts of kept n-grams. The backoff of other contexts is 0: all mass is left to the lower order.

    sizes_C  (C,) int64, numbers of n-grams
    """
    xp, ends_C = array_module(sizes_C), sizes_C.cumsum()
    columns, values_C, first_C1 = contexts.columns, contexts.values, xp.zeros(len(sizes_C) + 1, node_dtype(len(order)))
    if order.marked_R is None:
        first_C1[1:] = ends_C
        return Contexts(columns, values_C, first_C1)
    kept_R = xp.cumsum(~order.marked_R, dtype=first_C1.dtype)
    first_C1[1:] = kept_R[ends_C - 1]
    stays = xp.flatnonzero(first_C1[1:] > first_C1[:-1])
    first_C1 = xp.concatenate([first_C1[stays], first_C1[-1:]])
    return Contexts(columns.take(stays, axis=1), values_C[stays], first_C1)


def _kept_suffixes(order: Order, below: Order) -> Any:
    """Return `Estimated.suffixes` of an order: `Order.suffix_R` without pruned n-grams in both orders."""
    suffix_R, xp = order.suffix_R, array_module(order.suffix_R)
    if order.marked_R is not None:
        suffix_R = suffix_R[~order.marked_R]
    if below.marked_R is None:
        return suffix_R
    kept, M = below.sizes()
    new_M1 = xp.zeros(M + 1, suffix_R.dtype)
    xp.cumsum(~below.marked_R, out=new_M1[1:])
    if order.n > 3:
        return new_M1[suffix_R]
    behind_R = suffix_R >= M  # places of split bigrams
    return xp.where(behind_R, suffix_R - suffix_R.dtype.type(M - kept), new_M1[xp.where(behind_R, 0, suffix_R)])


def _of_words(prob_V: Any, rule: Discounts | Rule) -> Any:
    """Return the probabilities of single words as an estimator needs them."""
    if isinstance(rule, Rule):
        return array_module(prob_V).maximum(log10_values(prob_V), np.float32(ZERO_LOG10))
    return prob_V


def _estimator(order: Order, rule: Discounts | Rule) -> _Estimate:
    """Return a function of the probabilities of the lower order, to be called once, that returns (probabilities of the
    n-grams of one order; of their contexts, the keys, log10 backoffs and numbers of n-grams). A whole model has no keys
    and numbers of contexts.

    Probabilities, also those of the lower order, are log10 values if `rule` is a Rule.
    """
    xp = array_module(order.count_R)
    if order.links:
        contexts, sizes_C, C = None, None, len(order.links.first_M1) - 1
    else:
        [(contexts, sizes_C)] = count_prefixes(order.keys, order.bits, order.n - 1, order.n - 1)
        C = len(sizes_C)
    if isinstance(rule, Rule):
        first_C1 = xp.zeros(C + 1, np.int64)
        if order.links:
            first_C1[:] = order.links.first_M1
        else:
            xp.cumsum(sizes_C, out=first_C1[1:])

        def smooth(lower_L: Any) -> tuple[Any, Any, Any, Any]:
            arrays = order.count_R, order.marked_R, order.suffix_R, lower_L, first_C1
            prob_R, backoff_C = smooth_contexts(*arrays, rule)
            return prob_R, contexts, backoff_C, sizes_C

        return smooth
    context_R = order.links.history_R if order.links else _contexts(sizes_C, len(order))
    total_C, gamma_C = _weighed(order, context_R, C, rule)

    def estimate(lower_L: Any) -> tuple[Any, Any, Any, Any]:
        prob_R = interpolate(order.count_R, context_R, order.suffix_R, total_C, gamma_C, lower_L, rule)
        return prob_R, contexts, log10_values(xp.maximum(gamma_C, MIN_BACKOFF, out=gamma_C)), sizes_C

    return estimate


def _weighed(order: Order, context_R: Any, contexts: int, rule: Discounts) -> tuple[Any, Any]:
    """Return (the sum of adjusted counts, the mass left to the lower order) of each context, (C,) float32.

    Exact sums take 20 bytes a context, so they are made for some contexts after others.
    """
    xp = array_module(context_R)
    total_C, gamma_C = xp.empty(contexts, np.float32), xp.empty(contexts, np.float32)
    cuts = [*range(0, contexts, CONTEXTS_AT_ONCE), contexts]
    rows = to_host(xp.searchsorted(context_R, xp.asarray(np.array(cuts, np.uint32)))).tolist()
    for (first, last), (begin, end) in zip(pairwise(cuts), pairwise(rows), strict=True):
        context_P, count_P = context_R[begin:end], order.count_R[begin:end]
        marked_P = None if order.marked_R is None else order.marked_R[begin:end]
        sums = sum_contexts(context_P, count_P, marked_P, last - first, first)
        weigh_contexts(*sums, rule, out=(total_C[first:last], gamma_C[first:last]))
    return total_C, gamma_C


def split_probs(part: Part, split: Sequence[int], rule: Discounts | Rule, prob_V: Any) -> tuple[Any, Any]:
    """Return (places among split bigrams, probabilities (P,) float32) of a part's split bigrams: whole contexts."""
    bigrams = part.orders[2]
    place_R = split_places(bigrams.word(0), bigrams.word(1), split, len(prob_V))
    mine = (place_R >= 0).nonzero()[0]
    return place_R[mine], _estimator(bigrams, rule)(_of_words(prob_V, rule))[0][mine]


def _contexts(sizes_C: Any, rows: int) -> Any:
    """Return (R,) uint32, the context of each row, from the number of rows of each context."""
    starts_R = array_module(sizes_C).zeros(rows, np.uint32)
    starts_R[sizes_C.cumsum()[:-1]] = 1
    return starts_R.cumsum(dtype=np.uint32)
