"""Search for the weights of features with which the best hypotheses of lists have the best metric.

Och 2003, "Minimum error rate training in statistical machine translation": along a line in the space of weights, the
best hypothesis of a list changes at a few points only, and all of them are found exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.engine.rescore.rescore_chunk import weighted_sums
from mgpu_ngram.kernels.compile_cpu import njit, read_only

MIN_GAIN = 1e-9  # least gain of a metric in percent: a smaller gain is rounding
MAX_ROUNDS = 50  # over all weights; a search ends after a few
MIN_WIDTH = 1e-5  # least width of an interval relative to its ends: narrower ones are not safe in float32
BEYOND = 1.0  # how far a weight goes past the first or last point at which a hypothesis changes

Quality = Callable[[np.ndarray], np.ndarray]


@dataclass
class Lists:
    """N hypotheses of lists.

    values_NC  float32, C features
    first_L    int64, the first hypothesis of each list
    stats_NK   int64, rows of a metric (`engine.rescore.text_metrics`)
    quality    quality(sums (S, K)) returns (S,): greater is better
    """

    values_NC: np.ndarray
    first_L: np.ndarray
    stats_NK: np.ndarray
    quality: Quality

    def quality_of(self, weights: Sequence[float]) -> float:
        """Return the quality of the best hypotheses; the first of those with equal totals."""
        total_N = weighted_sums(list(self.values_NC.T), weights)
        best_L = first_maxima(total_N, self.first_L)
        return float(self.quality(self.stats_NK[best_L].sum(axis=0)[None])[0])


def first_maxima(value_N: np.ndarray, first_L: np.ndarray) -> np.ndarray:
    """Return the position of the first greatest value of each segment; first_L (L,) are the starts of the segments."""
    most_L = np.maximum.reduceat(value_N, first_L)
    list_N = np.repeat(np.arange(len(first_L)), np.diff(first_L, append=len(value_N)))
    at = np.flatnonzero(value_N == most_L[list_N])
    return at[np.searchsorted(list_N[at], np.arange(len(first_L)))]


def best_on_line(lists: Lists, weights: Sequence[float], column: int) -> tuple[float, float]:
    """Return the best (quality, weight of a column) with the other weights fixed; exact except for rounding.

    The weight is the middle of the best interval; of several best intervals, the widest one.
    """
    others = [0.0 if c == column else w for c, w in enumerate(weights)]
    base_N = np.zeros(len(lists.values_NC))
    for c, weight in enumerate(others):
        base_N += weight * lists.values_NC[:, c].astype(np.float64)
    slope_N = lists.values_NC[:, column].astype(np.float64)
    N = len(base_N)
    list_N = np.repeat(np.arange(len(lists.first_L)), np.diff(lists.first_L, append=N))
    order_N = np.lexsort((np.arange(N), -base_N, slope_N, list_N))
    line_H, cut_H = np.empty(N, np.int64), np.empty(N, np.float64)
    H = _envelopes(*map(read_only, (base_N, slope_N, order_N, lists.first_L)), line_H, cut_H)
    line_H, cut_H = line_H[:H], cut_H[:H]
    first_H = np.isneginf(cut_H)
    changes = np.flatnonzero(~first_H)
    changes = changes[np.argsort(cut_H[changes], kind="stable")]
    steps_HK = lists.stats_NK[line_H[changes]] - lists.stats_NK[line_H[changes - 1]]
    start_K = lists.stats_NK[line_H[first_H]].sum(axis=0)
    sum_SK = np.concatenate([start_K[None], start_K + np.cumsum(steps_HK, axis=0)])
    if not len(changes):
        return float(lists.quality(sum_SK)[0]), weights[column]
    cut = cut_H[changes]
    left_S = np.concatenate([[min(cut[0], weights[column]) - 2 * BEYOND], cut])
    right_S = np.concatenate([cut, [max(cut[-1], weights[column]) + 2 * BEYOND]])
    wide_S = right_S - left_S > MIN_WIDTH * np.maximum(1, np.maximum(abs(left_S), abs(right_S)))
    quality_S = np.where(wide_S, lists.quality(sum_SK), -np.inf)
    best = quality_S.max()
    candidates = np.flatnonzero(quality_S >= best - MIN_GAIN)
    s = candidates[np.argmax((right_S - left_S)[candidates])]
    if left_S[s] < weights[column] < right_S[s]:  # no other weight of the interval is better
        return float(best), weights[column]
    return float(best), float((left_S[s] + right_S[s]) / 2)


@njit(nogil=True, cache=True)
def _envelopes(base_N, slope_N, order_N, first_L, line_H, cut_H):
    """Write the upper envelope of the lines base + x * slope of each list; return its size H.

    order_N  the lines of each list in order of slope, those of equal slope best first
    line_H   receives the lines of the envelopes, from small to great x
    cut_H    receives the x from which each line is the greatest of its list; -inf for the first of a list
    """
    H = 0
    for l in range(len(first_L)):  # noqa: E741
        begin = H
        stop = first_L[l + 1] if l + 1 < len(first_L) else len(order_N)
        for i in range(first_L[l], stop):
            n = order_N[i]
            if H > begin and slope_N[line_H[H - 1]] == slope_N[n]:
                continue  # an earlier line of this slope is no worse
            x = -np.inf
            while H > begin:
                top = line_H[H - 1]
                x = (base_N[top] - base_N[n]) / (slope_N[n] - slope_N[top])
                if x > cut_H[H - 1]:
                    break
                H -= 1
                x = -np.inf
            line_H[H], cut_H[H] = n, x
            H += 1
    return H


def search(
    lists: Lists,
    start: Sequence[float],
    columns: Sequence[int],
    restarts: int,
    seed: int,
    tell: Callable[[float], None] = lambda quality: None,
) -> tuple[float, list[float]]:
    """Return (quality, weights) of a coordinate search: exact line searches along all columns until no column gains.

    columns   columns to search; the others keep their weights
    restarts  number of further searches from random weights in [-1, 1); the first best result is returned
    tell      called with the best quality after each search
    """
    rng = np.random.default_rng(seed)
    best, found = lists.quality_of(start), list(map(float, start))
    for k in range(restarts + 1):
        weights = list(map(float, start))
        if k:
            for column in columns:
                weights[column] = float(rng.uniform(-1, 1))
        quality, weights = _climb(lists, weights, columns)
        if quality > best + MIN_GAIN:
            best, found = quality, weights
        tell(best)
    return best, found


def _climb(lists: Lists, weights: list[float], columns: Sequence[int]) -> tuple[float, list[float]]:
    """Search from one point."""
    quality = lists.quality_of(weights)
    for _ in range(MAX_ROUNDS):
        before = quality
        for column in columns:
            expected, weight = best_on_line(lists, weights, column)
            if expected <= quality + MIN_GAIN or weight == weights[column]:
                continue
            moved = [weight if c == column else w for c, w in enumerate(weights)]
            reached = lists.quality_of(moved)  # totals are float32
            if reached > quality + MIN_GAIN:
                quality, weights = reached, moved
        if quality <= before + MIN_GAIN:
            break
    return quality, weights


def grid(
    lists: Lists, start: Sequence[float], values: Mapping[int, Sequence[float]], tell: Callable[[float], None]
) -> tuple[float, list[float]]:
    """Return (quality, weights) of the first best point of a grid.

    values  the weights to try, by column; the other columns keep their weights
    tell    called with the best quality after each point
    """
    best, found = -np.inf, list(map(float, start))
    for weights in _points(start, values):
        quality = lists.quality_of(weights)
        if quality > best + MIN_GAIN or not np.isfinite(best):
            best, found = quality, weights
        tell(best)
    return best, found


def _points(start: Sequence[float], values: Mapping[int, Sequence[float]]) -> Iterator[list[float]]:
    for point in itertools.product(*values.values()):
        chosen = dict(zip(values, point, strict=True))
        yield [float(chosen.get(c, weight)) for c, weight in enumerate(start)]
