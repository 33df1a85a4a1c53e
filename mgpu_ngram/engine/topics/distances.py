"""Distances between topics, the topics nearest to each, and a map of topics in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.words import largest
from mgpu_ngram.kernels.compile_cpu import njit, read_only

MAX_COMPARED_TOPICS = 8192  # topics of a matrix of distances, 512 MiB


class Nearest(NamedTuple):
    """The n topics nearest to each topic, nearest first; equal distances by topic.

    topics_Zn     (Z, n) int64
    distances_Zn  (Z, n) float64
    """

    topics_Zn: np.ndarray
    distances_Zn: np.ndarray


def topic_distances(rows: TopicRows, threads: int = 1) -> np.ndarray:
    """Return (Z, Z) float64, the distance of every two topics' word probabilities, from 0 to 1.

    The distance is the square root of the Jensen-Shannon divergence in bits.

    Time is O(Z N) for N counts above 0: 11 ns for each word that either topic of a pair has, on one core.
    Raises InputError above MAX_COMPARED_TOPICS topics.
    """
    Z = rows.num_topics
    if Z > MAX_COMPARED_TOPICS:
        raise InputError(
            f"distances of {Z:,} topics were requested, but the limit is {MAX_COMPARED_TOPICS:,}; take only the "
            "largest topics (--limit N)"
        )
    distances_ZZ = np.zeros((Z, Z))
    given = _given(rows)

    def work(z: int) -> None:
        _distances(given, z, z + 1, distances_ZZ[z])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(Z)))
    return np.maximum(distances_ZZ, distances_ZZ.T)


def distances_from(rows: TopicRows, topic: int) -> np.ndarray:
    """Return (Z,) float64, the distance of each topic from one topic, as in `topic_distances`, in time O(N)."""
    given = _given(rows)
    distances_Z = np.empty(rows.num_topics)
    _distances(given, topic, 0, distances_Z)
    distances_Z[topic] = 0
    return distances_Z


def nearest_topics(distances_ZZ: np.ndarray, n: int) -> Nearest:
    """Return the n other topics that are nearest to each topic."""
    Z = len(distances_ZZ)
    n = max(0, min(n, Z - 1))
    topics_Zn = np.empty((Z, n), np.int64)
    for z in range(Z):
        topics_Zn[z] = _nearest(distances_ZZ[z], z, n)
    return Nearest(topics_Zn, np.take_along_axis(distances_ZZ, topics_Zn, axis=1))


def nearest_of(
    rows: TopicRows, n: int, topics: Sequence[int] | None = None, threads: int = 1
) -> dict[int, list[tuple[int, float]]]:
    """Return {topic: [(other topic, Jensen-Shannon distance)]}: the n nearest other topics, nearest first.

    topics  topics to describe, in time O(N) each; None: all, if there are at most MAX_COMPARED_TOPICS
    """
    if topics is None:
        found = nearest_topics(topic_distances(rows, threads=threads), n)
        return {z: _pairs(*row) for z, row in enumerate(zip(*found, strict=True))}
    n = max(0, min(n, rows.num_topics - 1))

    def work(topic: int) -> list[tuple[int, float]]:
        distances_Z = distances_from(rows, topic)
        topics_n = _nearest(distances_Z, topic, n)
        return _pairs(topics_n, distances_Z[topics_n])

    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(topics, pool.map(work, topics), strict=True))


def topic_map(distances_ZZ: np.ndarray) -> np.ndarray:
    """Return (Z, 2) float64, coordinates whose distances are close to those given: classical multidimensional scaling.

    The signs of the axes are such that the coordinate of largest magnitude is above 0.
    """
    Z = len(distances_ZZ)
    squares_ZZ = distances_ZZ**2
    centred_ZZ = squares_ZZ - squares_ZZ.mean(0) - squares_ZZ.mean(1)[:, None] + squares_ZZ.mean() if Z else squares_ZZ
    values, vectors_ZZ = np.linalg.eigh(-centred_ZZ / 2)
    points_Z2 = np.zeros((Z, 2))
    for axis in range(min(2, Z)):
        points = vectors_ZZ[:, -1 - axis] * np.sqrt(max(values[-1 - axis], 0.0))
        points_Z2[:, axis] = points * (np.sign(points[np.abs(points).argmax()]) or 1.0)
    return points_Z2


def _nearest(distances_Z: np.ndarray, topic: int, n: int) -> np.ndarray:
    """Return the n topics with the least distances, without `topic` itself."""
    closeness = -distances_Z
    closeness[topic] = -np.inf
    return largest(closeness, n)


def _pairs(topics_n: np.ndarray, distances_n: np.ndarray) -> list[tuple[int, float]]:
    return list(zip(topics_n.tolist(), distances_n.tolist(), strict=True))


def _given(rows: TopicRows) -> tuple[Any, ...]:
    """Return the first argument of `_distances`."""
    log_beta_V = np.log2(rows.beta_V)
    inputs = rows.starts_Z1, rows.words_N, rows.counts_N, rows.scales_Z, rows.beta_V, log_beta_V
    given = *map(read_only, inputs), rows.beta_V.sum(), (rows.beta_V * log_beta_V).sum()
    plogp_Z = np.empty(rows.num_topics)
    _sum_plogp(given, plogp_Z)
    return *given, plogp_Z


@njit(nogil=True, cache=True)
def _sum_plogp(given, plogp_Z):
    """Write the sum of p log2 p over all words, for each topic."""
    starts_Z1, words_N, counts_N, scales_Z, beta_V, log_beta_V, beta_sum, beta_log_sum = given
    for z in range(len(scales_Z)):
        scale = scales_Z[z]
        total = scale * (beta_log_sum + np.log2(scale) * beta_sum)  # as if no word had counts
        for e in range(starts_Z1[z], starts_Z1[z + 1]):
            beta = beta_V[words_N[e]]
            prob = (beta + counts_N[e]) * scale
            total += prob * np.log2(prob) - beta * scale * (log_beta_V[words_N[e]] + np.log2(scale))
        plogp_Z[z] = total


@njit(nogil=True, cache=True)
def _distances(given, a, first_b, distances_Z):
    """Write the distances from topic a to topic first_b and all after it.

    Words that neither topic has are summed in closed form; a merge of both rows corrects the sum for the others.
    """
    starts_Z1, words_N, counts_N, scales_Z, beta_V, log_beta_V, beta_sum, beta_log_sum, plogp_Z = given
    for b in range(first_b, len(scales_Z)):
        scale_a, scale_b = scales_Z[a], scales_Z[b]
        mean = (scale_a + scale_b) / 2
        log_mean = np.log2(mean)
        total = mean * (beta_log_sum + log_mean * beta_sum)
        i, j, end_i, end_j = starts_Z1[a], starts_Z1[b], starts_Z1[a + 1], starts_Z1[b + 1]
        while i < end_i or j < end_j:
            v = np.int64(words_N[i]) if i < end_i else len(beta_V)
            w = np.int64(words_N[j]) if j < end_j else len(beta_V)
            first = min(v, w)
            beta = beta_V[first]
            weight_a, weight_b = beta, beta
            if v == first:
                weight_a += counts_N[i]
                i += 1
            if w == first:
                weight_b += counts_N[j]
                j += 1
            prob = (weight_a * scale_a + weight_b * scale_b) / 2
            total += prob * np.log2(prob) - beta * mean * (log_beta_V[first] + log_mean)
        squared = (plogp_Z[a] + plogp_Z[b]) / 2 - total
        distances_Z[b] = np.sqrt(min(1.0, max(0.0, squared)))
