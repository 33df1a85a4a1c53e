"""Find the weights of a log-linear mixture for which a text is most probable, as KenLM's `interpolate` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.arpa import ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes
from mgpu_ngram.engine.model_tools.mix import Tuned, open_mixture, spread
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.find_codes import find_codes
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings

NEWTON_PRECISION = 1e-6  # Newton's method ends when every weight moves by less
MAX_NEWTON_ITERATIONS = 50
MAX_HALVINGS = 20  # halvings of a step that would make the text less probable


def tune_log_linear(models: Sequence[tuple[Trie, Words]], log10_MT: Any, text: TextWords) -> Tuned:
    """Return the weights, at least 0, that maximise the probability of a text under the log-linear mixture.

    models    as for `engine.model_tools.mix.mix_log_linear`
    log10_MT  (M, T) float32, the tokens' probabilities in each model; unknown words have the probability of <unk>
    text      the words of the text in the mixture

    Newton's method from equal weights, each 1 / M. The logarithm of a text's probability is concave in the weights: its
    slope is the sum over tokens of log p_i(w | h) - E[log p_i(. | h)], its curvature the negative sum of the
    covariances of the log p_i(. | h) under the mixture. These follow, like Z(h) in `mix_log_linear`, from those of the
    shorter history: a word that is not listed after h has p_i(w | h) = b_i(h) p_i(w | h without its first word).
    """
    xp, (M, tokens) = array_module(log10_MT), log10_MT.shape
    if not tokens:
        raise InputError("the text to tune on is empty; give a text with one sentence per line")
    moments = _Moments(models)
    context_T = text.contexts(moments.nodes, moments.words)
    used_U, inverse = xp.unique(context_T, return_inverse=True)
    count_U = xp.bincount(inverse, minlength=len(used_U)).astype(np.float64)
    given_M = xp.maximum(log10_MT.astype(np.float64), ZERO_LOG10).sum(axis=1) * LN_10
    given_M = np.array([float(value) for value in given_M])

    def at(weights: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return (log probability of the text, its slope, the negative of its curvature)."""
        of_U = [stat_M[used_U] for stat_M in moments.at(weights)]
        z_U, firsts, seconds = of_U[0], of_U[1 : M + 1], iter(of_U[M + 1 :])
        log = float(weights @ given_M) - float((count_U * xp.log(z_U)).sum())
        means = [first / z_U for first in firsts]
        slope = given_M - np.array([float((count_U * mean).sum()) for mean in means])
        curvature = np.zeros((M, M))
        for i, j in combinations_with_replacement(range(M), 2):
            covariance_U = next(seconds) / z_U - means[i] * means[j]
            curvature[i, j] = curvature[j, i] = float((count_U * covariance_U).sum())
        return log, slope, curvature

    weights = np.full(M, 1 / M)
    log, slope, curvature = at(weights)
    found, logs = [weights], [log]
    while len(found) <= MAX_NEWTON_ITERATIONS:
        free = (weights > 0) | (slope > 0)
        step = np.zeros(M)
        step[free] = np.linalg.lstsq(curvature[np.ix_(free, free)], slope[free], rcond=None)[0]
        for _ in range(MAX_HALVINGS):
            moved = np.maximum(weights + step, 0)
            there = at(moved)
            if there[0] >= log:
                break
            step /= 2
        else:
            break
        distance = float(abs(moved - weights).max())
        weights, (log, slope, curvature) = moved, there
        found.append(weights)
        logs.append(log)
        if distance < NEWTON_PRECISION:
            break
    return Tuned([w.tolist() for w in found], [float(np.exp(-value / tokens)) for value in logs], tokens, 0)


class _Moments:
    """The nodes of a mixture, and after each history the sums of S, S l_i and S l_i l_j over all words: S(w | h) is the
    product of the models' probabilities to the power of their weights, l_i(w | h) the logarithm of model i's.
    """

    def __init__(self, models: Sequence[tuple[Trie, Words]]):
        self.words, parts, self.nodes = open_mixture(models)
        self.begin = self.words.id("<s>")
        pairs = [spread(part, self.nodes, lacks=0) for part in parts]
        xp = array_module(self.nodes.word_G)
        least = 10.0**ZERO_LOG10
        self.logs = [xp.log(xp.maximum(prob_G, least)) for prob_G, _ in pairs]
        self.weights = [xp.log(xp.maximum(backoff_M, least)) for _, backoff_M in pairs]

    def at(self, weights: np.ndarray) -> list[Any]:
        """Return the sums after each history, (M + 1,) float64 each; the last one is that of the empty history: S, then
        S l_i for each i, then S l_i l_j for each i <= j.
        """
        nodes, xp = self.nodes, array_module(self.nodes.word_G)
        product_G = xp.exp(_weighted(weights, self.logs))
        backoff_M = xp.exp(_weighted(weights, self.weights))
        M = len(backoff_M)
        counted_V = xp.arange(nodes.starts[1]) != self.begin
        level = nodes.level(1)
        sums = []
        for values in _moments(product_G[level], [log_G[level] for log_G in self.logs]):
            sum_M = xp.empty(M + 1)
            sum_M[M] = values[counted_V].sum()
            sums.append(sum_M)
        for n in range(1, nodes.order):
            contexts, children = nodes.level(n), nodes.level(n + 1)
            parent, suffix = nodes.parent_G[children], nodes.suffix_G[children]
            first_child_M = nodes.first_child_M[contexts.start : contexts.stop + 1]
            unlisted_C = ~nodes.listed_G[children]
            shorter = slice(M, M + 1) if n == 1 else nodes.suffix_G[contexts]
            backed = self._backed([sum_M[shorter] for sum_M in sums], contexts, backoff_M[contexts])
            mine = _moments(product_G[children], [log_G[children] for log_G in self.logs])
            others = _moments(
                backoff_M[parent] * product_G[suffix],
                [w_M[parent] + log_G[suffix] for w_M, log_G in zip(self.weights, self.logs, strict=True)],
            )
            for sum_M, whole, own_C, other_C in zip(sums, backed, mine, others, strict=True):
                more_C = own_C - other_C
                more_C[unlisted_C] = 0
                sum_M[contexts] = whole + sum_siblings(more_C, first_child_M)
        return sums

    def _backed(self, shorter: list[Any], contexts: slice, backoff_M: Any) -> Iterator[Any]:
        """Yield the sums over all words as if none were listed, from those of the shorter history."""
        logs = [w_M[contexts] for w_M in self.weights]
        first, M = shorter[0], len(logs)
        firsts, seconds = shorter[1 : M + 1], iter(shorter[M + 1 :])
        yield backoff_M * first
        for i in range(M):
            yield backoff_M * (firsts[i] + logs[i] * first)
        for i, j in combinations_with_replacement(range(M), 2):
            cross = logs[i] * firsts[j] + logs[j] * firsts[i] + logs[i] * logs[j] * first
            yield backoff_M * (next(seconds) + cross)


def _weighted(weights: np.ndarray, logs: Sequence[Any]) -> Any:
    total = float(weights[0]) * logs[0]
    for weight, log in zip(weights[1:], logs[1:], strict=True):
        total += float(weight) * log
    return total


def _moments(product: Any, logs: Sequence[Any]) -> Iterator[Any]:
    """Yield S, then S l_i, then S l_i l_j for i <= j."""
    yield product
    for log in logs:
        yield product * log
    for first, second in combinations_with_replacement(logs, 2):
        yield product * first * second


class TextWords:
    """The words of a text, in sentences, to look up in a mixture.

    text_B       (B,) uint8 on the device; every line ends with a newline
    positions_T  (T,) uint32, where tokens start; T is at least 1
    """

    def __init__(self, text_B: Any, positions_T: Any):
        self.text_B, self.positions_T = text_B, positions_T

    def contexts(self, nodes: BackoffNodes, words: Words) -> Any:
        """Return (T,) int64, the node of the longest history before each token; M, the number of histories, if none."""
        xp, V, M = array_module(self.text_B), len(words), len(nodes.backoff_M)
        offsets_V, data, slots_C = words.table
        table = [to_device(array, device_of(self.text_B)) for array in (slots_C, offsets_V, data)]
        codes_T = find_codes(self.text_B, self.positions_T, *table).astype(np.int64)
        begin = words.id("<s>")
        # The word before each token: <s> at the start of a line.
        word_T = xp.concatenate([xp.full(1, begin), xp.where(codes_T == 0, begin, codes_T - 1)[:-1]])
        longest = word_T.copy() if nodes.order > 1 else xp.full(len(word_T), M)
        node = word_T
        for n in range(2, nodes.order):
            level, before = nodes.level(n), nodes.starts[n - 2]
            key_G = (nodes.parent_G[level] - before) * V + nodes.word_G[level]
            history = xp.concatenate([xp.full(1, -1), node[:-1]])  # of the token before
            wanted = xp.where((history >= 0) & (word_T != begin), (history - before) * V + word_T, -1)
            place = xp.minimum(xp.searchsorted(key_G, wanted), max(0, len(key_G) - 1))
            found = (key_G[place] == wanted) if len(key_G) else xp.zeros(len(wanted), bool)
            node = xp.where(found, place + level.start, -1)
            longest = xp.where(found, node, longest)
        return longest
