"""Mix backoff models by linear or log-linear interpolation, and tune linear weights on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.arpa import ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes, logs_of, nodes_of, subtrie
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.sum_sentences import UNKNOWN_CODE
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings

EM_PRECISION = 1e-6  # EM ends when every weight moves by less
MAX_EM_ITERATIONS = 1000
LEAST_LOG10 = -1000.0  # log10 values of log-linear mixtures are raised to this, so that -inf stays finite
ROUNDING = 1e-12  # a remaining mass below this is a rounding error of 1 - sum


@dataclass
class Component:
    """A model of the mixture, and the nodes of the mixture that correspond to its nodes."""

    nodes: BackoffNodes
    place_G: Any


def mix(
    models: Sequence[tuple[Trie, Words]], weights: Sequence[float], bayes: int = 0, bayes_scale: float = 1.0
) -> tuple[Trie, Words, int]:
    """Return (the trie of the mixture, its words, the number of histories whose probabilities sum to more than 1).

    models   tries that are not quantised and have backoffs, all on one device, and their words
    weights  one for each model, at least 0; they sum to 1
    bayes    if above 0, the weights after each history are proportional to `weights` times P(last `bayes` words of
             the history) ** bayes_scale in each model (`posteriors`)

    The n-grams are those of all models. The probability of each is the weighted sum of P(word | history) in the models,
    where a model without the n-gram backs off, and a model without the word has probability 0. All backoffs are
    computed anew (`BackoffNodes.normalise`). `<s>` has the greatest of its values in the models.
    """
    words, parts, nodes = open_mixture(models)
    if nodes.order == 1:
        bayes = 0  # no histories
    if bayes:
        weights_M = posteriors([spread(part, nodes) for part in parts], nodes, words, weights, bayes, bayes_scale)
    for i, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        prob_G = spread(part, nodes)
        if bayes:
            V = len(words)
            prob_G[:V] *= weight
            prob_G[V:] *= weights_M[i][nodes.parent_G[V:]]
        else:
            prob_G *= weight
        nodes.prob_G += prob_G
    _set_begin(models, parts, nodes, words)
    overfull = nodes.normalise()
    trie = subtrie(nodes, logs_of(nodes.prob_G), logs_of(nodes.backoff_M), models[0][0].fanout)
    return trie, words, overfull


def posteriors(
    probs: Sequence[Any], nodes: BackoffNodes, words: Words, weights: Sequence[float], length: int, scale: float
) -> list[Any]:
    """Return the weights of each model after each history, (M,) float64 each, as SRILM's BayesMix weighs models.

    probs   (G,) float64 of each model: P(word | history) of every node
    length  number of the last words of a history that count

    A model's weight is proportional to its prior weight times P(words) ** scale. P(words) is the product of the model's
    probabilities of the words, each after the previous words; P(<s>) is that of </s>. If all products are 0, the
    prior weights are used.
    """
    xp, logs, begin, end = array_module(nodes.word_G), [], words.id("<s>"), words.id("</s>")
    M = len(nodes.backoff_M)
    for prob_G in probs:
        log_M = xp.log(xp.where(prob_G[:M] > 0, prob_G[:M], 1))
        log_M[prob_G[:M] <= 0] = -xp.inf
        log_M[begin] = log_M[end]
        for n in range(2, nodes.order):
            level = nodes.level(n)
            if n <= length:
                log_M[level] += log_M[nodes.parent_G[level]]
            else:
                log_M[level] = log_M[nodes.suffix_G[level]]
        logs.append(scale * log_M)
    greatest_M = xp.stack(logs).max(axis=0)
    greatest_M = xp.where(greatest_M == -xp.inf, 0, greatest_M)
    found = [weight * xp.exp(log_M - greatest_M) for weight, log_M in zip(weights, logs, strict=True)]
    total_M = sum(found[1:], start=found[0].copy())
    return [
        xp.where(total_M > 0, weight_M / xp.where(total_M > 0, total_M, 1), weight)
        for weight, weight_M in zip(weights, found, strict=True)
    ]


def mix_log_linear(models: Sequence[tuple[Trie, Words]], weights: Sequence[float]) -> tuple[Trie, Words]:
    """Return (the trie of the log-linear mixture, its words), as KenLM's `interpolate` makes it.

    models, weights  as for `mix`; weights need not sum to 1. Raises InputError for weights whose powers have logarithms
                     beyond float64

    Values of -99 and below are small here and not 0, as in KenLM: a word that one model excludes keeps its share.

    P(w | h) = S(w | h) / Z(h). S is the product of the models' probabilities to the power of their weights, Z(h) its
    sum over all words except <s>. To a model, a word that it lacks is <unk>. The n-grams are those of `mix`. Let C(h)
    be the product of the backoffs to the power of their weights. Then Z(h) is the sum of S(w | h) over the listed
    n-grams, and C(h) times the rest of Z(h without its first word): the S of the words that are not listed after h.
    """
    words, parts, nodes = open_mixture(models)
    xp = array_module(nodes.word_G)
    product_G, backoff_M = xp.zeros(len(nodes.prob_G)), xp.zeros(len(nodes.backoff_M))  # natural logarithms
    for part, (trie, _), weight in zip(parts, models, weights, strict=True):
        log_G, log_M = spread_logs(part, trie, nodes)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            product_G += weight * log_G
            backoff_M += weight * log_M
    if not (xp.isfinite(product_G).all() and xp.isfinite(backoff_M).all()):
        raise InputError(f"the products of the powers {list(weights)} are beyond float64; give smaller weights")
    V, total_M = len(words), xp.empty(len(backoff_M))
    of_words = product_G[:V].copy()
    of_words[words.id("<s>")] = -xp.inf
    whole = of_words.max() + xp.log(xp.exp(of_words - of_words.max()).sum())
    product_G[:V] -= whole
    for n in range(1, nodes.order):
        contexts, children = nodes.level(n), nodes.level(n + 1)
        backed = backoff_M[contexts] + (whole if n == 1 else total_M[nodes.suffix_G[contexts]])
        kept, rest, scale = row_masses(nodes, n, product_G, backed)
        total_M[contexts] = scale + xp.log(kept + rest)
        product_G[children] -= total_M[nodes.parent_G[children]]
        weight = backed - total_M[contexts]
        backoff_M[contexts] = xp.where((rest == 0) & (weight > 0), -xp.inf, weight)
    log10_G, log10_M = (xp.maximum(logs / LN_10, ZERO_LOG10).astype(np.float32) for logs in (product_G, backoff_M))
    log10_G[words.id("<s>")] = max(float(trie.prob_G[own.id("<s>")]) for trie, own in models)
    return subtrie(nodes, log10_G, log10_M, models[0][0].fanout), words


def row_masses(nodes: BackoffNodes, n: int, log_G: Any, backed: Any) -> tuple[Any, Any, Any]:
    """Return, for each history of order n, the S of its listed words, that of its other words, and the natural
    logarithm of the unit of both, which keeps them within float64.

    log_G   log P(w | h) of nodes up to order n, log S(w | h) of those of order n + 1
    backed  log C(h) Z(h without its first word) of each history
    """
    xp, children = array_module(nodes.word_G), nodes.level(n + 1)
    first_child_M = nodes.first_child_M[nodes.starts[n - 1] : nodes.starts[n] + 1]
    here_C = nodes.parent_G[children] - nodes.starts[n - 1]
    log_C, scale = xp.where(nodes.listed_G[children], log_G[children], -xp.inf), backed.copy()
    xp.maximum.at(scale, here_C, log_C)
    lower_C = xp.where(nodes.listed_G[children], xp.exp(log_G[nodes.suffix_G[children]]), 0.0)
    rest = 1 - sum_siblings(lower_C, first_child_M)
    rest = xp.where(rest > ROUNDING, rest, 0.0) * xp.exp(backed - scale)
    return sum_siblings(xp.exp(log_C - scale[here_C]), first_child_M), rest, scale


def open_mixture(models: Sequence[tuple[Trie, Words]]) -> tuple[Words, list[Component], BackoffNodes]:
    """Return (the words of all models, the models, the nodes of the mixture with probabilities 0)."""
    words = models[0][1]
    for _, more in models[1:]:
        words = _joined(words, more)
    parts = []
    for trie, of_model in models:
        ids_V = words.ids(of_model.offsets_V, of_model.data).astype(np.int64)
        parts.append(Component(nodes_of(trie), to_device(ids_V, device_of(trie.word_G))))
    return words, parts, _union(parts, len(words))


def _set_begin(models: Sequence[tuple[Trie, Words]], parts: list[Component], nodes: BackoffNodes, words: Words) -> None:
    """Give <s> the greatest of its values."""
    values = [part.nodes.prob_G[own.id("<s>")] for part, (_, own) in zip(parts, models, strict=True)]
    nodes.prob_G[words.id("<s>")] = max(map(float, values))


def _joined(words: Words, more: Words) -> Words:
    """Return words, and after them other words that are new."""
    new_V = words.ids(more.offsets_V, more.data) == 0
    new_V[0] = False  # <unk>
    starts, lengths = more.offsets_V[:-1], np.diff(more.offsets_V)
    ends = words.offsets_V[-1] + np.cumsum(lengths[new_V])
    data = more.data[starts[0] : more.offsets_V[-1]][np.repeat(new_V, lengths)]
    return Words(np.concatenate([words.offsets_V, ends]), np.concatenate([words.data[: words.offsets_V[-1]], data]))


def _union(parts: Sequence[Component], V: int) -> BackoffNodes:
    """Return the nodes of all models, with probabilities 0; sets the places of their nodes.

    place_G  on entry (V,) int64: the words of each model among all V words
    """
    xp = array_module(parts[0].nodes.word_G)
    order = max(part.nodes.order for part in parts)
    parent = suffix = xp.full(V, -1)
    word, starts = xp.arange(V), [0, V]
    key_G = word  # of the order before: (parent within its order) * V + word
    levels, first_children = [(word, parent, suffix)], []
    for n in range(2, order + 1):
        keys = []
        for part in parts:
            here = part.nodes.level(n) if n <= part.nodes.order else slice(0, 0)
            parents = part.place_G[part.nodes.parent_G[here]] - starts[n - 2]
            keys.append(parents * V + part.place_G[part.nodes.word_G[here]])
        key_R = xp.sort(xp.concatenate(keys))  # NumPy's unique would hash them, which takes ten times as long
        before_G, key_G = key_G, key_R[xp.diff(key_R, prepend=-1) != 0]
        for part, key in zip(parts, keys, strict=True):
            part.place_G = xp.concatenate([part.place_G, starts[n - 1] + xp.searchsorted(key_G, key)])
        inner, word = key_G // V, key_G % V  # `inner` is the parent within its order
        if n == 2:
            suffix = word
        else:
            shorter = levels[-1][2][inner] - starts[n - 3]
            suffix = starts[n - 2] + xp.searchsorted(before_G, shorter * V + word)
        first_children.append(starts[n - 1] + xp.searchsorted(inner, xp.arange(starts[n - 1] - starts[n - 2])))
        levels.append((word, inner + starts[n - 2], suffix))
        starts.append(starts[n - 1] + len(key_G))
    word_G, parent_G, suffix_G = (xp.concatenate(arrays) for arrays in zip(*levels, strict=True))
    listed_G = xp.zeros(starts[-1], bool)
    for part in parts:
        listed_G[part.place_G[part.nodes.listed_G]] = True
    first_child_M = xp.concatenate([*first_children, xp.full(1, starts[-1])])
    return BackoffNodes(
        starts=tuple(starts), word_G=word_G.astype(np.uint32), first_child_M=first_child_M, parent_G=parent_G,
        suffix_G=suffix_G, listed_G=listed_G, prob_G=xp.zeros(starts[-1]), backoff_M=xp.ones(starts[-2]),
    )  # fmt: skip


def spread(part: Component, nodes: BackoffNodes) -> Any:
    """Return a model's probabilities of all nodes of the mixture, (G,) float64; 0 for words that the model lacks."""
    xp, mine = array_module(nodes.word_G), part.nodes
    backoff_M, prob_G = xp.ones(len(nodes.backoff_M)), xp.zeros(len(nodes.prob_G))
    backoff_M[part.place_G[: len(mine.backoff_M)]] = mine.backoff_M
    for n in range(1, nodes.order + 1):
        level = nodes.level(n)
        if n > 1:
            prob_G[level] = backoff_M[nodes.parent_G[level]] * prob_G[nodes.suffix_G[level]]
        if n <= mine.order:
            prob_G[part.place_G[mine.level(n)]] = mine.prob_G[mine.level(n)]
    return prob_G


def spread_logs(part: Component, trie: Trie, nodes: BackoffNodes) -> tuple[Any, Any]:
    """Return a model's values at all nodes of the mixture: natural logarithms of probabilities (G,) and backoffs (M,).

    A word that the model lacks has the values of <unk>. Values below LEAST_LOG10 are raised to it.

    trie  the model of `part`
    """
    xp, mine = array_module(nodes.word_G), part.nodes
    own_G, own_M = (
        LN_10 * xp.maximum(log10.astype(np.float64), LEAST_LOG10) for log10 in (trie.prob_G, trie.backoff_M)
    )
    log_M, log_G = xp.zeros(len(nodes.backoff_M)), xp.empty(len(nodes.prob_G))
    log_G[nodes.level(1)] = own_G[0]
    if mine.order > 1:
        log_M[nodes.level(1)] = own_M[0]
    log_M[part.place_G[: len(own_M)]] = own_M
    for n in range(1, nodes.order + 1):
        level = nodes.level(n)
        if n > 1:
            log_G[level] = log_M[nodes.parent_G[level]] + log_G[nodes.suffix_G[level]]
        if n <= mine.order:
            listed = mine.starts[n - 1] + xp.flatnonzero(mine.listed_G[mine.level(n)])
            log_G[part.place_G[listed]] = own_G[listed]
    return log_G, log_M


@dataclass(frozen=True)
class Tuned:
    """The weights of the models after each iteration of EM, which starts with equal weights, and the perplexities.

    tokens   number of words and sentence ends that count
    skipped  number of words that no model has
    """

    weights: list[list[float]]
    perplexities: list[float]
    tokens: int
    skipped: int


def tune_weights(codes_MT: Any, log10_MT: Any) -> Tuned:
    """Return the weights that maximise the probability of a text.

    codes_MT  (M, T) uint32, the tokens' codes in each of M models: 1 for an unknown word
    log10_MT  (M, T) float32, the tokens' probabilities in each model

    Expectation maximisation: a weight becomes the mean of its model's share of each token's probability (Jelinek and
    Mercer, "Interpolated estimation of Markov source parameters", 1980). A word that a model lacks has probability 0 in
    it. Raises InputError when no token is known.
    """
    xp = array_module(log10_MT)
    prob_MT = xp.where(codes_MT == UNKNOWN_CODE, 0, 10.0 ** log10_MT.astype(np.float64))
    known_T = (prob_MT > 0).any(axis=0)
    prob_MT = prob_MT[:, known_T]
    M, tokens = prob_MT.shape
    if not tokens:
        raise InputError("no word of the text is in a model; give another text to tune on")
    weights: list[list[float]] = [[1 / M] * M]
    perplexities: list[float] = []
    while True:
        share_MT = prob_MT * xp.asarray(weights[-1])[:, None]
        sum_T = share_MT.sum(axis=0)
        perplexities.append(10.0 ** -float(xp.log10(sum_T).mean()))
        moved = len(weights) == 1 or max(abs(np.subtract(weights[-1], weights[-2]))) >= EM_PRECISION
        if not moved or len(weights) > MAX_EM_ITERATIONS:
            return Tuned(weights, perplexities, tokens, len(known_T) - tokens)
        weights.append((share_MT / sum_T).mean(axis=1).tolist())
