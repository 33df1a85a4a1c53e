"""Prune a backoff model by relative entropy (Stolcke, "Entropy-based Pruning of Backoff Language Models", 1998) or by
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.engine.model_tools.backoff_nodes import NODES_AT_ONCE, BackoffNodes, logs_of, nodes_of, subtrie
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module

MIN_PROB = 1e-300  # least probability of a history: 0 times infinity is not a number


def prune(trie: Trie, begin: int, end: int, entropy: float | None, max_ngrams: int | None) -> tuple[Trie, int, float]:
    """Return (the pruned trie, the number of histories whose probabilities sum to more than 1, the threshold).

    trie        not quantised, with backoffs
    begin, end  the words <s> and </s>
    entropy     the threshold: n-grams that change the perplexity by a smaller ratio are pruned
    max_ngrams  greatest number of n-grams of all orders, instead of a threshold. The least sufficient threshold is
                used; n-grams with equal changes are pruned together

    Words are kept, and so are the contexts of kept n-grams, with their suffixes. Kept probabilities do not change,
    except after a history with all words (`BackoffNodes.normalise`). All backoffs are computed anew. Raises InputError
    when there are more than max_ngrams words.
    """
    nodes = nodes_of(trie)
    keeps_G = thresholds(nodes, begin, end)
    longer = keeps_G[trie.symbols :]
    if max_ngrams is None:
        limit = float(entropy or 0)
    else:
        allowed = max_ngrams - trie.symbols
        if allowed < 0:
            raise InputError(
                f"max_ngrams is {max_ngrams:,} but the model has {trie.symbols:,} words, which are never pruned; "
                "raise max_ngrams"
            )
        limit = _least_threshold(longer[nodes.listed_G[trie.symbols :]], allowed)
        if limit == np.inf:
            fixed = trie.symbols + count_true(longer[nodes.listed_G[trie.symbols :]] == np.inf)
            raise InputError(f"max_ngrams is {max_ngrams:,} but {fixed:,} n-grams cannot be pruned; raise it")
    nodes.listed_G[trie.symbols :] &= longer >= limit
    del keeps_G, longer
    return *_renormalised(nodes, trie), limit


def prune_rare(trie: Trie, rare_G: Any) -> tuple[Trie, int]:
    """Return as `prune` does, without a threshold: (the trie without n-grams that `rare_G` (G,) bool marks, histories).

    Words, contexts of kept n-grams, and suffixes of these contexts are kept, too.
    """
    nodes = nodes_of(trie)
    keeps_G = _with_needs(nodes, lambda n: 1.0 - rare_G[nodes.level(n)])
    nodes.listed_G[trie.symbols :] &= keeps_G[trie.symbols :] > 0
    return _renormalised(nodes, trie)


def _renormalised(nodes: BackoffNodes, trie: Trie) -> tuple[Trie, int]:
    """Return (the trie of the listed n-grams with new backoffs, the result of `normalise`)."""
    overfull = nodes.normalise()
    return subtrie(nodes, logs_of(nodes.prob_G, trie.prob_G), logs_of(nodes.backoff_M), trie.fanout), overfull


def thresholds(nodes: BackoffNodes, begin: int, end: int) -> Any:
    """Return (G,) float64: the highest threshold at which each n-gram is kept; infinity for words.

    The threshold is the relative change of the perplexity without the n-gram, or, if greater, that of a longer n-gram
    that needs it as a context or as the suffix of a context. The changes depend only on the model before pruning: the
    change of an n-gram uses probabilities of lower orders, which are pruned later, and of its own context, which are
    kept until all changes have been computed.
    """
    history_M = _history_probs(nodes, begin, end) if nodes.order > 1 else None
    return _with_needs(nodes, lambda n: _changes(nodes, n, history_M))


def _with_needs(nodes: BackoffNodes, values_of: Callable[[int], Any]) -> Any:
    """Return (G,) float64: the greatest value of an n-gram and of n-grams that need it; infinity for words.

    values_of  returns the values of an order's nodes, at least 0
    """
    xp = array_module(nodes.word_G)
    keeps_G = xp.full(len(nodes.word_G), xp.inf)
    needed_M = xp.zeros(len(nodes.backoff_M))
    for n in range(nodes.order, 1, -1):
        level = nodes.level(n)
        keeps_G[level] = values_of(n)
        if n < nodes.order:
            keeps_G[level] = xp.maximum(keeps_G[level], needed_M[level])
            if n > 2:
                xp.maximum.at(needed_M, nodes.suffix_G[level], needed_M[level])
        listed = nodes.starts[n - 1] + xp.flatnonzero(nodes.listed_G[level])
        xp.maximum.at(needed_M, nodes.parent_G[listed], keeps_G[listed])
    return keeps_G


def _history_probs(nodes: BackoffNodes, begin: int, end: int) -> Any:
    """Return (M,) float64, the probability of each history's words; <s> at its start has that of </s>."""
    prob_M = nodes.prob_G[: len(nodes.backoff_M)].copy()
    prob_M[begin] = prob_M[end]
    for n in range(2, nodes.order):
        level = nodes.level(n)
        prob_M[level] *= prob_M[nodes.parent_G[level]]
    return array_module(prob_M).maximum(prob_M, MIN_PROB)


def _changes(nodes: BackoffNodes, n: int, history_M: Any) -> Any:
    """Return the relative changes of the perplexity without each n-gram of order n, at least 0."""
    xp, level, first = array_module(nodes.word_G), nodes.level(n), nodes.starts[n - 2]
    mass_C, lower_C = nodes.masses(n - 1)
    full_C = (lower_C <= 0) & (mass_C >= 0)  # no words are left to back off to
    mass_C, lower_C = xp.where(full_C, 0.0, mass_C), xp.where(full_C, 0.0, lower_C)
    changes = xp.empty(level.stop - level.start)
    for at in range(level.start, level.stop, NODES_AT_ONCE):
        rows = slice(at, min(at + NODES_AT_ONCE, level.stop))
        parent_R = nodes.parent_G[rows]
        prob_R, shorter_R = nodes.prob_G[rows], nodes.prob_G[nodes.suffix_G[rows]]
        mass_R, lower_R = mass_C[parent_R - first], lower_C[parent_R - first]
        weight_R = _divided(mass_R + prob_R, lower_R + shorter_R)  # the backoff weight without the n-gram
        log_R = _weighed(prob_R, _divided(shorter_R * weight_R, prob_R))
        log_R += _weighed(mass_R, _divided(weight_R, nodes.backoff_M[parent_R]))
        changes[rows.start - level.start : rows.stop - level.start] = xp.where(
            mass_R < 0, xp.inf, xp.maximum(xp.expm1(-history_M[parent_R] * log_R), 0)
        )
    return changes


def _divided(a: Any, b: Any) -> Any:
    """Return a / b; 0 for b = 0, so that an n-gram stays without which its word would be impossible."""
    xp = array_module(a)
    return xp.where(b > 0, a / xp.where(b > 0, b, 1), 0)


def _weighed(weight: Any, ratio: Any) -> Any:
    """Return weight * ln(ratio); 0 for weight 0."""
    xp = array_module(weight)
    finite = weight * xp.log(xp.where(ratio > 0, ratio, 1))
    return xp.where((weight > 0) & (ratio <= 0), -xp.inf, finite)


def _least_threshold(values: Any, allowed: int) -> float:
    """Return the least threshold that at most `allowed` values reach; 0 if all may stay."""
    xp = array_module(values)
    if len(values) <= allowed:
        return 0.0
    first_gone = len(values) - allowed - 1
    return float(xp.nextafter(xp.partition(values, first_gone)[first_gone], np.inf))
