"""Estimate a model of one part, and single words, by modified Kneser-Ney or `plain_count_smoothing`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import START_ID, UNK_ID
from mgpu_ngram.core.models.arpa import ZERO_LOG10
from mgpu_ngram.core.ngrams.kneser_ney_discounts import Discounts
from mgpu_ngram.engine.estimate.part import (
    Contexts,
    Estimated,
    EstimateOptions,
    Order,
    OrderNodes,
    Part,
    Unigrams,
)
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts
from mgpu_ngram.kernels.estimate.sum_contexts import sum_contexts
from mgpu_ngram.kernels.estimate.weigh_contexts import weigh_contexts

CONTEXTS_AT_ONCE = 1 << 24  # contexts whose counts are summed together
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


def estimate_part(part: Part, rules: Mapping[int, Discounts | Rule], unigrams: Unigrams) -> Estimated:
    """Return probabilities and backoffs of the part that is the whole model.

    rules  order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    """
    made, lower_L = Estimated({}, {}, {}), probs_of_words(unigrams.prob_V, rules[1])
    for n, order in sorted(part.orders.items()):
        lower_L, values_C = _estimated(order, rules[n], lower_L)
        made.contexts[n - 1] = Contexts(None, values_C)
        made.probabilities[n] = lower_L if isinstance(rules[n], Rule) else log10_values(lower_L)
        suffix_R = None if n == 2 else order.suffix_R
        made.nodes[n] = OrderNodes(order.links.word_R, order.links.first_M1, suffix_R, order.marked_R)
    return made


def probs_of_words(prob_V: Any, rule: Discounts | Rule) -> Any:
    """Return the probabilities of single words as an estimator needs them."""
    if isinstance(rule, Rule):
        return array_module(prob_V).maximum(log10_values(prob_V), np.float32(ZERO_LOG10))
    return prob_V


def log10_backoffs(gamma_C: Any) -> Any:
    """Return the log10 backoffs of contexts from the mass that they leave to the lower order; overwrites it."""
    return log10_values(array_module(gamma_C).maximum(gamma_C, MIN_BACKOFF, out=gamma_C))


def _estimated(order: Order, rule: Discounts | Rule, lower_L: Any) -> tuple[Any, Any]:
    """Return (probabilities of the n-grams of one order of a whole model, log10 backoffs of their contexts).

    Probabilities, also those of the lower order, are log10 values if `rule` is a Rule.
    """
    if isinstance(rule, Rule):
        first_M1 = order.links.first_M1.astype(np.int64)
        return smooth_contexts(order.count_R, order.marked_R, order.suffix_R, lower_L, first_M1, rule)
    context_R, contexts = order.links.history_R, len(order.links.first_M1) - 1
    total_C, gamma_C = weighed(context_R, order.count_R, order.marked_R, contexts, rule)
    prob_R = interpolate(order.count_R, context_R, order.suffix_R, total_C, gamma_C, lower_L, rule)
    return prob_R, log10_backoffs(gamma_C)


def weighed(
    context_R: Any, count_R: Any, marked_R: Any, contexts: int, rule: Discounts, pruned_C: Any = None
) -> tuple[Any, Any]:
    """Return (the sum of adjusted counts, the mass left to the lower order) of each context, (C,) float32.

    context_R  (R,) uint32, rising: the context of each n-gram
    count_R, marked_R  as in `Order`
    pruned_C   (C,) sum of the counts of pruned n-grams that are no rows; None if there are none
    """
    xp = array_module(context_R)
    total_C, gamma_C = xp.empty(contexts, np.float32), xp.empty(contexts, np.float32)
    for part, (total_P, kinds_P3, pruned_P) in _sums(context_R, count_R, marked_R, contexts):
        if pruned_C is not None:
            pruned_P = pruned_C[part].astype(np.int64)
            total_P += pruned_P
        weigh_contexts(total_P, kinds_P3, pruned_P, rule, out=(total_C[part], gamma_C[part]))
    return total_C, gamma_C


def sums_of_pruned(context_R1: Any, count_R: Any, marked_R: Any) -> Any:
    """Return (C,) int64, the sum of the counts of the pruned n-grams of each context.

    context_R1  (R + 1,) uint32, rising: the context of each n-gram, and the number of contexts
    """
    contexts = int(context_R1[-1])
    pruned_C = array_module(count_R).empty(contexts, np.int64)
    for part, (_, _, pruned_P) in _sums(context_R1[:-1], count_R, marked_R, contexts):
        pruned_C[part] = pruned_P
    return pruned_C


def _sums(context_R: Any, count_R: Any, marked_R: Any, contexts: int) -> Iterator[tuple[slice, tuple[Any, Any, Any]]]:
    """Yield `sum_contexts` of some contexts after others, because exact sums take 20 bytes a context."""
    cuts = [*range(0, contexts, CONTEXTS_AT_ONCE), contexts]
    rows = to_host(array_module(context_R).searchsorted(context_R, array_module(context_R).asarray(cuts, np.uint32)))
    for (first, last), (begin, end) in zip(pairwise(cuts), pairwise(rows.tolist()), strict=True):
        marked_P = None if marked_R is None else marked_R[begin:end]
        yield slice(first, last), sum_contexts(context_R[begin:end], count_R[begin:end], marked_P, last - first, first)
