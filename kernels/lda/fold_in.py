"""Find the topics of new documents, with the topics of words held fixed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int64

from .. import check
from ..compile import njit
from ..dispatch import array_module, pick
from ..launch import current_limits, grid_for, kernel, launch
from .examples import bags, corpus
from .weights import PRIOR_BITS, WordTopics

VARIANTS = ({"IN_SHARED": 0}, {"IN_SHARED": 1})
THREADS = 128  # of a block
LANES = 32


class Bag(NamedTuple):
    """Documents as bags of words.

    starts_D1  (D + 1,) int64: document d has pairs starts_D1[d] to starts_D1[d + 1] - 1
    words_P    (P,) uint32
    counts_P   (P,) uint32; 0 is legal
    """

    starts_D1: Any
    words_P: Any
    counts_P: Any


class FixedTopics(NamedTuple):
    """Probabilities of words in topics. phi_wk is floor_Z[k], plus a share for each topic that the word has.

    starts_V1  (V + 1,) int64: word v has the entries starts_V1[v] to starts_V1[v + 1] - 1
    topics_N   (N,) uint16, rising within a word
    shares_N   (N,) float32
    floor_Z    (Z,) float32, the probability of a word that the topic does not have
    alpha_Z    (Z,) float32, the prior of each topic in a document
    """

    starts_V1: Any
    topics_N: Any
    shares_N: Any
    floor_Z: Any
    alpha_Z: Any


def fixed_topics(words: WordTopics) -> FixedTopics:
    """Return the topics that `fold_in` reads, from the counts and the priors; on the device of the counts."""
    xp = array_module(words.counts_VZ)
    has_VZ = words.counts_VZ > 0
    if len(words.seeds_V):
        has_VZ |= (words.seeds_V >= 0)[:, None]
    words_N, topics_N = xp.nonzero(has_VZ)
    del has_VZ
    counts_N = words.counts_VZ[words_N, topics_N].astype(np.float32)
    if len(words.seeds_V):
        row_N = words.seeds_V[words_N]
        counts_N += xp.where(row_N >= 0, words.beta_KZ[row_N, topics_N] - float32(words.beta), float32(0))
    starts_V1 = xp.searchsorted(words_N, xp.arange(len(words.counts_VZ) + 1)).astype(np.int64)
    return FixedTopics(
        starts_V1,
        topics_N.astype(np.uint16),
        counts_N * words.inverse_Z[topics_N],
        float32(words.beta) * words.inverse_Z,
        words.alpha_Z * float32(1 / (1 << PRIOR_BITS)),
    )


def fold_in(bag: Bag, topics: FixedTopics, max_iter: int = 100, tol: float = 1e-5) -> Any:
    """Return the expected number of tokens of each topic in each document, plus the topic's prior.

    max_iter  iterations at most, 0 or more
    tol       a document is done when an iteration changes less than this share of its sum

    Returns theta_DZ (D, Z) float32: the fixed point of theta_k = alpha_k + sum over tokens of
    theta_k phi_wk / (sum of theta_j phi_wj), from theta proportional to alpha on: CVB0 with fixed phi (Asuncion et al.,
    "On smoothing and inference", 2009). Row d sums to tokens of d + sum of alpha. Each document's result is the same
    for any other documents in the call.

    An iteration reads the entries of the document's words alone: the floor of phi needs one sum over all topics. A
    sum over topics or entries is made of LANES partial sums, item i in number i % LANES, which are added in pairs.
    So all devices give the same bits.
    """
    check.dtype(bag.starts_D1, np.int64)
    check.dtype(bag.words_P, np.uint32)
    check.dtype(bag.counts_P, np.uint32)
    check.dtype(topics.starts_V1, np.int64)
    check.dtype(topics.topics_N, np.uint16)
    for array in (topics.shares_N, topics.floor_Z, topics.alpha_Z):
        check.dtype(array, np.float32)
    run = pick(cpu=_cpu, cuda=_cuda, **bag._asdict(), **topics._asdict())
    return run(bag, topics, max_iter, float32(tol))


@njit(nogil=True, cache=True)
def _cpu(bag, topics, max_iter, tol):
    starts_D1, words_P, counts_P = bag
    starts_V1, topics_N, shares_N, floor_Z, alpha_Z = topics
    D, Z = len(starts_D1) - 1, len(alpha_Z)
    theta_DZ, found_Z = np.empty((D, Z), np.float32), np.empty(Z, np.float32)
    sums_L, others_L = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    sums_L[:] = 0
    for k in range(Z):
        sums_L[k % LANES] += alpha_Z[k]
    prior = _sum(sums_L)
    for d in range(D):
        theta_Z = theta_DZ[d]
        tokens = int64(0)
        for p in range(starts_D1[d], starts_D1[d + 1]):
            tokens += int64(counts_P[p])
        scale = float32(1) + float32(tokens) / prior
        for k in range(Z):
            theta_Z[k] = alpha_Z[k] * scale
        for _ in range(max_iter):
            sums_L[:] = 0
            found_Z[:] = 0
            for k0 in range(0, Z, LANES):
                for i in range(min(LANES, Z - k0)):
                    sums_L[i] += floor_Z[k0 + i] * theta_Z[k0 + i]
            floor, rates = _sum(sums_L), float32(0)
            for p in range(starts_D1[d], starts_D1[d + 1]):
                if counts_P[p] == 0:
                    continue
                first, end = starts_V1[words_P[p]], starts_V1[words_P[p] + 1]
                sums_L[:] = 0
                for e in range(first, end):
                    sums_L[(e - first) % LANES] += shares_N[e] * theta_Z[topics_N[e]]
                rate = float32(counts_P[p]) / (floor + _sum(sums_L))
                rates += rate
                for e in range(first, end):
                    found_Z[topics_N[e]] += shares_N[e] * rate
            sums_L[:] = 0
            others_L[:] = 0
            for k0 in range(0, Z, LANES):
                for i in range(min(LANES, Z - k0)):
                    k = k0 + i
                    new = alpha_Z[k] + theta_Z[k] * (found_Z[k] + floor_Z[k] * rates)
                    others_L[i] += abs(new - theta_Z[k])
                    sums_L[i] += new
                    theta_Z[k] = new
            if _sum(others_L) < tol * _sum(sums_L):
                break
    return theta_DZ


@njit(nogil=True, cache=True, inline="always")
def _sum(sums_L):
    """Return the sum, added in pairs; overwrites sums_L."""
    half = LANES // 2
    while half:
        for i in range(half):
            sums_L[i] += sums_L[i + half]
        half //= 2
    return sums_L[0]


def _cuda(bag, topics, max_iter, tol):
    import cupy

    D, Z = len(bag.starts_D1) - 1, len(topics.alpha_Z)
    theta_DZ = cupy.empty((D, Z), np.float32)
    if D:
        warps = THREADS // LANES
        shared_bytes = 8 * Z * warps
        in_shared = shared_bytes <= current_limits()[1] // 2  # two blocks on a multiprocessor, at least
        blocks = grid_for(D, warps, waves=16)
        scratch = cupy.empty(0 if in_shared else 2 * Z * blocks * warps, np.float32)
        fn = kernel("lda/fold_in", "fold_in", IN_SHARED=int(in_shared))
        args = (*bag, D, *topics, Z, max_iter, tol, scratch, theta_DZ)
        launch(fn, blocks, THREADS, args, shared_bytes=shared_bytes * in_shared)
    return theta_DZ


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words and the topics of such words."""
    size = min(size, 20_000)
    _, _, words = corpus(rng, size)
    starts_D1, words_P, counts_P, _ = bags(rng, size)
    bag = Bag(starts_D1, words_P, counts_P)
    return {"bag": bag, "topics": fixed_topics(words), "max_iter": size % 7, "tol": 1e-3}
