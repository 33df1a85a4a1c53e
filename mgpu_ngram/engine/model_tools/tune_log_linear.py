"""Find the weights of a log-linear mixture for which a text is most probable, as KenLM's `interpolate` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes
from mgpu_ngram.engine.model_tools.mix import LEAST_LOG10, Tuned, open_mixture, row_masses, spread_logs
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.find_codes import find_codes
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings

NEWTON_PRECISION = 1e-6  # Newton's method ends when every weight moves by less
MAX_NEWTON_ITERATIONS = 50
MAX_HALVINGS = 20  # halvings of a step that would make the text less probable
LONG_STEP = 0.01  # if the last step is longer, the log probability has no maximum
MOST_WEIGHT = 100.0  # nor if a weight is greater: there all values are rounded, and a step may be 0
KENLM_STEPS, KENLM_SHARE = 10, 0.7  # number of KenLM's steps, and their length in Newton steps


def tune_log_linear(models: Sequence[tuple[Trie, Words]], log10_MT: Any, text: TextWords) -> Tuned:
    """Return the weights, at least 0, that maximise the probability of a text under the log-linear mixture.

    models    as for `engine.model_tools.mix.mix_log_linear`
    log10_MT  (M, T) float32, the tokens' probabilities in each model; unknown words have the probability of <unk>
    text      the words of the text in the mixture

    Newton's method from equal weights, each 1 / M. The logarithm of a text's probability is concave in the weights: its
    slope is the sum over tokens of log p_i(w | h) - E[log p_i(. | h)], its curvature the negative sum of the
    covariances of the log p_i(. | h) under the mixture. These follow, like Z(h) in `mix_log_linear`, from those of the
    shorter history: a word that is not listed after h has p_i(w | h) = b_i(h) p_i(w | h without its first word). If the
    text has no greatest probability, the weights are those of KenLM's ten steps.
    """
    xp, (M, tokens) = array_module(log10_MT), log10_MT.shape
    if not tokens:
        raise InputError("the text to tune on is empty; give a text with one sentence per line")
    moments = _Moments(models)
    context_T = text.contexts(moments.nodes, moments.words)
    used_U, inverse = xp.unique(context_T, return_inverse=True)
    count_U = xp.bincount(inverse, minlength=len(used_U)).astype(np.float64)
    given_M = xp.maximum(log10_MT.astype(np.float64), LEAST_LOG10).sum(axis=1) * LN_10
    given_M = np.array([float(value) for value in given_M])

    def at(weights: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return (log probability of the text, its slope, the negative of its curvature)."""
        of_U = [stat_M[used_U] for stat_M in moments.at(weights)]
        log_z_U, means, seconds = of_U[0], of_U[1 : M + 1], iter(of_U[M + 1 :])
        log = float(weights @ given_M) - float((count_U * log_z_U).sum())
        slope = given_M - np.array([float((count_U * mean).sum()) for mean in means])
        curvature = np.zeros((M, M))
        for i, j in combinations_with_replacement(range(M), 2):
            covariance_U = next(seconds) - means[i] * means[j]
            curvature[i, j] = curvature[j, i] = float((count_U * covariance_U).sum())
        return log, slope, curvature

    start = np.full(M, 1 / M)
    found, has_maximum = _newton(at, start)
    if not has_maximum:
        found = _kenlm_steps(at, start)
    return Tuned([w.tolist() for w, _ in found], [float(np.exp(-log / tokens)) for _, log in found], tokens, 0)


Function = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]
Steps = list[tuple[np.ndarray, float]]  # weights, and the log probability of the text


def _newton(at: Function, start: np.ndarray) -> tuple[Steps, bool]:
    """Return (the steps of Newton's method to the weights with the greatest log probability, whether it has a maximum).

    Without a maximum, as for a few words of the training text, the weights grow without end and the steps stay long.
    """
    weights, (log, slope, curvature) = start, at(start)
    found, distance = [(weights, log)], 0.0
    while len(found) <= MAX_NEWTON_ITERATIONS:
        free = (weights > 0) | (slope > 0)
        step = np.zeros(len(weights))
        step[free] = _solved(curvature[np.ix_(free, free)], slope[free])
        for _ in range(MAX_HALVINGS):
            moved = np.maximum(weights + step, 0)
            there = at(moved)
            if there[0] >= log and np.isfinite(there[2]).all():
                break
            step /= 2
        else:
            break
        distance = float(abs(moved - weights).max())
        weights, (log, slope, curvature) = moved, there
        found.append((weights, log))
        if distance < NEWTON_PRECISION:
            break
    return found, distance < LONG_STEP and weights.max() <= MOST_WEIGHT


def _kenlm_steps(at: Function, start: np.ndarray) -> Steps:
    """Return the ten steps, each 0.7 times Newton's, that KenLM takes (lm/interpolate/tune_weights.cc)."""
    weights, (log, slope, curvature) = start, at(start)
    found = [(weights, log)]
    for _ in range(KENLM_STEPS):
        weights = np.maximum(weights + KENLM_SHARE * _solved(curvature, slope), 0)
        log, slope, curvature = at(weights)
        if not (np.isfinite(log) and np.isfinite(curvature).all()):
            break
        found.append((weights, log))
    return found


def _solved(curvature: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(curvature, slope, rcond=None)[0]


class _Moments:
    """The nodes of a mixture, and after each history h log Z(h) and the means of l_i and l_i l_j over all words:
    l_i(w | h) is the logarithm of model i's probability.
    """

    def __init__(self, models: Sequence[tuple[Trie, Words]]):
        self.words, parts, self.nodes = open_mixture(models)
        self.begin = self.words.id("<s>")
        pairs = [spread_logs(part, trie, self.nodes) for part, (trie, _) in zip(parts, models, strict=True)]
        self.logs, self.weights = ([pair[i] for pair in pairs] for i in (0, 1))

    def at(self, weights: np.ndarray) -> list[Any]:
        """Return arrays over histories, (M + 1,) float64 each; the last value is that of the empty history: log Z, then
        the mean of l_i for each i, then that of l_i l_j for each i <= j.
        """
        nodes, xp = self.nodes, array_module(self.nodes.word_G)
        log_G, backoff_M = _weighted(weights, self.logs), _weighted(weights, self.weights)
        M, level = len(backoff_M), nodes.level(1)
        log_V = log_G[level].copy()
        log_V[self.begin] = -np.inf
        greatest = log_V.max()
        prob_V = xp.exp(log_V - greatest)
        log_z = greatest + xp.log(prob_V.sum())
        log_G[level] -= log_z
        found = []
        for values in _moments(prob_V / prob_V.sum(), [log[level] for log in self.logs]):
            found.append(xp.empty(M + 1))
            found[-1][M] = values.sum()
        found[0][M] = log_z
        for n in range(1, nodes.order):
            contexts, children = nodes.level(n), nodes.level(n + 1)
            parent, suffix = nodes.parent_G[children], nodes.suffix_G[children]
            first_child_M = nodes.first_child_M[contexts.start : contexts.stop + 1]
            shorter = slice(M, M + 1) if n == 1 else nodes.suffix_G[contexts]
            backed = backoff_M[contexts] + found[0][shorter]
            kept, rest, scale = row_masses(nodes, n, log_G, backed)
            found[0][contexts] = scale + xp.log(kept + rest)
            log_G[children] -= found[0][parent]
            listed_C = nodes.listed_G[children]
            own_C, lower_C = (xp.where(listed_C, xp.exp(log_G[of]), 0.0) for of in (children, suffix))
            mine = _moments(own_C, [log[children] for log in self.logs])
            lower = _moments(lower_C, [log[suffix] for log in self.logs])
            next(mine)
            left = [1 - sum_siblings(next(lower), first_child_M)]
            left += [
                mean_M[shorter] - sum_siblings(values, first_child_M)
                for mean_M, values in zip(found[1:], lower, strict=True)
            ]
            share = xp.where(rest > 0, xp.exp(backed - found[0][contexts]), 0.0)
            unlisted = self._backed_off(left, contexts)
            for mean_M, values, other in zip(found[1:], mine, unlisted, strict=True):
                mean_M[contexts] = sum_siblings(values, first_child_M) + share * other
        return found

    def _backed_off(self, left: list[Any], contexts: slice) -> Iterator[Any]:
        """Yield the sums of l_i, then of l_i l_j, over words that are not listed, weighted by P(w | shorter history).

        left  the sums of 1, l_i and l_i l_j after the shorter history; here l_i is greater by the backoff of model i
        """
        logs = [w_M[contexts] for w_M in self.weights]
        mass, M = left[0], len(logs)
        firsts, seconds = left[1 : M + 1], iter(left[M + 1 :])
        for i in range(M):
            yield firsts[i] + logs[i] * mass
        for i, j in combinations_with_replacement(range(M), 2):
            yield next(seconds) + logs[i] * firsts[j] + logs[j] * firsts[i] + logs[i] * logs[j] * mass


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
