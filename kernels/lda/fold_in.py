"""Find the topics of new documents, with fixed topics of words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int64

from .. import check
from ..compile_cpu import njit
from ..dispatch import array_module, pick
from ..launch import current_limits, grid_for, kernel, launch
from .examples import bags, corpus
from .layout import repeat
from .spread_entries import LANES, spread_entries
from .weights import PRIOR_BITS, WordTopics

VARIANTS = ({"IN_SHARED": 0}, {"IN_SHARED": 1})
THREADS = 128  # threads of a block
FIRST, REFRESH = 2, 6  # iterations FIRST, REFRESH, 2 REFRESH, ... read all entries; as in fold_in.cu
WORDS = 4  # partial sums over the words of a document; as in fold_in.cu
GREATEST = float32(4)  # steps that a topic moves at once; as in fold_in.cu
MOMENTUM = float32(0.5)  # share of the last move, and of the change of its step; as in fold_in.cu
GREATEST_CHANGE = float32(0.01)  # greatest change of a finished document, as a share of its sum; as in fold_in.cu
ENOUGH = float32(0.85)  # factor of both limits of change, because momentum makes steps smaller; as in fold_in.cu
NEAR = float32(12)  # limits of change: once an iteration that reads all is below, any can be the last; as in fold_in.cu
TOPIC_BITS = 16  # bits of the topic in an entry
TOPIC_MASK = np.uint32((1 << TOPIC_BITS) - 1)
HALF = np.uint32(1 << (TOPIC_BITS - 1))


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
    """Probabilities of words in topics. phi_wk is floor_Z[k], plus a share if the word has tokens of the topic.

    rows_V2    (V, 2) uint32, contiguous: word v has rows_V2[v, 1] entries from LANES * rows_V2[v, 0] on; see
               `lay_out_rows`
    entries_N  (N,) uint32, about the LANES largest shares of a word first: the lower TOPIC_BITS are the topic, and all
               bits as a float32 are the share, so a share is rounded by at most 2^-8 of it
    floor_Z    (Z,) float32, the probability of a word without tokens of the topic
    alpha_Z    (Z,) float32, the prior of each topic in a document
    """

    rows_V2: Any
    entries_N: Any
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
    entries_N = entries(words_N, topics_N, counts_N * words.inverse_Z[topics_N])
    return FixedTopics(
        *lay_out_rows(starts_V1, entries_N, words.counts_VZ.shape[1]),
        float32(words.beta) * words.inverse_Z,
        words.alpha_Z * float32(1 / (1 << PRIOR_BITS)),
    )


def entries(words_N: Any, topics_N: Any, shares_N: Any) -> Any:
    """Return entries of `FixedTopics`, the largest shares of a word first; arguments by rising word. Equal shares keep
    their order.
    """
    xp, topic_N = array_module(shares_N), topics_N.astype(np.uint64)
    bits_N = shares_N.view(np.uint32).astype(np.uint64)
    size_N = bits_N & np.uint64(0x7FFFFFFF)  # sizes of floats compare as their bits do
    order_N = xp.argsort(words_N.astype(np.uint64) << np.uint64(32) | np.uint64(0x7FFFFFFF) - size_N, kind="stable")
    half = np.uint64(1 << (TOPIC_BITS - 1))
    upper_N = (xp.maximum(bits_N + half, topic_N) - topic_N) >> np.uint64(TOPIC_BITS)
    return (upper_N << np.uint64(TOPIC_BITS) | topic_N)[order_N].astype(np.uint32)


def lay_out_rows(starts_V1: Any, entries_N: Any, num_topics: int) -> tuple[Any, Any]:
    """Return (rows_V2, entries_N) of `FixedTopics`; see `spread_entries` for the order of a word's entries.

    starts_V1  (V + 1,) int64: word v has the entries starts_V1[v] to starts_V1[v + 1] - 1
    entries_N  (n,) uint32, as `entries` returns them

    A warp of a GPU reads LANES entries, a group, at once: the first group of a row, then pairs of groups. So a row has
    an odd number of groups. A padding entry i of a group has share 0 and topic num_topics + i, at most TOPIC_MASK.
    Words without entries have row 0, a group of padding.
    """
    xp = array_module(entries_N)
    sizes_V = xp.diff(starts_V1)
    groups_V = xp.where(sizes_V > 0, 1 + (xp.maximum(sizes_V, LANES) + LANES - 1) // (2 * LANES) * 2, 0)
    rows_V = xp.where(sizes_V > 0, 1 + xp.cumsum(groups_V) - groups_V, 0)
    empty_L = xp.minimum(xp.arange(LANES) + num_topics, int(TOPIC_MASK)).astype(np.uint32)
    filled_N = xp.tile(empty_L, 1 + int(groups_V.sum()))
    places_N = repeat(LANES * rows_V - starts_V1[:-1], sizes_V) + xp.arange(len(entries_N))
    filled_N[places_N] = spread_entries(starts_V1, entries_N)
    return xp.stack([rows_V, sizes_V], 1).astype(np.uint32), filled_N


def fold_in(bag: Bag, topics: FixedTopics, max_iter: int = 100, tol: float = 1e-3) -> Any:
    """Return the expected number of tokens of each topic in each document, plus the topic's prior.

    max_iter  greatest number of iterations, 0 or more
    tol       a document is finished when the formula changes its topics by less than ENOUGH times this number of tokens
              in the mean, and by less than ENOUGH times GREATEST_CHANGE of its sum; in the last iteration that read all
              entries by less than NEAR times that

    Returns theta_DZ (D, Z) float32: about the fixed point of theta_k = alpha_k + sum over tokens of
    theta_k phi_wk / (sum of theta_j phi_wj), which is unique: CVB0 with fixed phi (Asuncion et al., "On smoothing and
    inference", 2009). Row d sums to tokens of d + sum of alpha. The result of a document does not depend on other
    documents of the call.

    An iteration applies the formula once, which gives its step. The first one starts from theta proportional to alpha
    and takes this step. Each later one first repeats MOMENTUM times the last move, and then takes the step that is to
    be expected, times 1 to GREATEST: a topic's last move divided by the change of its step (secant method). Then theta
    is scaled to its sum. Moves and steps are kept as bfloat16.

    Iterations FIRST, REFRESH, 2 REFRESH, ... read all entries of the document's words. The others read the first LANES
    entries of each word, which have about its largest shares. They reuse the sum over its other entries from the last
    iteration that read all, or 0, and add the changes of their own shares to its sums over words. Once the changes
    by iterations that read all entries stop falling, all iterations read all entries. The floor of phi needs one sum
    over all topics.

    A sum over topics or entries is made of LANES partial sums, item i in number i % LANES, which are added in pairs; a
    sum over words of WORDS partial sums. So all devices give the same bits.
    """
    check.dtype(bag.starts_D1, np.int64)
    check.dtype(bag.words_P, np.uint32)
    check.dtype(bag.counts_P, np.uint32)
    check.dtype(topics.rows_V2, np.uint32)
    check.dtype(topics.entries_N, np.uint32)
    for array in (topics.floor_Z, topics.alpha_Z):
        check.dtype(array, np.float32)
    run = pick(cpu=_cpu, cuda=_cuda, **bag._asdict(), **topics._asdict())
    check.contiguous(rows_V2=topics.rows_V2)
    return run(bag, topics, max_iter, float32(tol))


@njit(nogil=True, cache=True)
def _cpu(bag, topics, max_iter, tol):
    starts_D1, words_P, counts_P = bag
    rows_V2, entries_N, floor_Z, alpha_Z = topics
    D, Z, shares_N = len(starts_D1) - 1, len(alpha_Z), entries_N.view(np.float32)
    new_DZ = np.empty((D, Z), np.float32)
    theta_Z, found_Z, lag_Z = np.empty(Z, np.float32), np.empty(Z, np.float32), np.empty(Z, np.float32)
    past_2Z = np.empty((2, Z), np.float32)  # the last move and step
    bits_2Z = past_2Z.view(np.uint32)
    tail_P, rate_P = np.zeros(len(words_P), np.float32), np.zeros(len(words_P), np.float32)
    sums_L, floors_L, others_L = np.zeros(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    rates_W = np.empty(WORDS, np.float32)
    for k in range(Z):
        sums_L[k % LANES] += alpha_Z[k]
    prior = _sum(sums_L)
    for d in range(D):
        tokens = int64(0)
        for p in range(starts_D1[d], starts_D1[d + 1]):
            tokens += int64(counts_P[p])
        scale, total = float32(1) + float32(tokens) / prior, float32(tokens) + prior
        sums_L[:] = 0
        for k in range(Z):
            theta_Z[k] = alpha_Z[k]
            sums_L[k % LANES] += floor_Z[k] * alpha_Z[k]
        floor = _sum(sums_L)
        lag_Z[:] = 0
        past_2Z[:] = 0
        limit = ENOUGH * min(tol * float32(Z), GREATEST_CHANGE * total)
        last, always = float32(np.inf), False
        for iteration in range(max_iter):
            refresh = always or iteration == FIRST or (iteration and iteration % REFRESH == 0)
            rates_W[:] = 0
            if refresh:
                found_Z[:] = 0
            else:
                found_Z[:] = lag_Z
            for p in range(starts_D1[d], starts_D1[d + 1]):
                if counts_P[p]:
                    first = LANES * int64(rows_V2[words_P[p], 0])
                    end = first + int64(rows_V2[words_P[p], 1])
                    tail = min(first + LANES, end)
                    if refresh:
                        tail_P[p] = scale * _mass(shares_N, entries_N, tail, end, theta_Z, sums_L)
                    rest = scale * floor + tail_P[p]
                    mass = rest + scale * _mass(shares_N, entries_N, first, tail, theta_Z, sums_L)
                    rate = float32(counts_P[p]) / mass
                    rates_W[(p - starts_D1[d]) % WORDS] += rate
                    more = rate - rate_P[p]
                    if refresh:
                        more = rate_P[p] = rate
                        tail = end
                    for e in range(first, tail):
                        found_Z[entries_N[e] & TOPIC_MASK] += shares_N[e] * more
            if refresh:
                lag_Z[:] = found_Z
            rates = _sum(rates_W)
            momentum, greatest = (MOMENTUM, GREATEST) if iteration else (float32(0), float32(1))
            sums_L[:], others_L[:], floors_L[:] = 0, 0, 0
            for k0 in range(0, Z, LANES):
                for i in range(min(LANES, Z - k0)):
                    k = k0 + i
                    old = scale * theta_Z[k]
                    found = max(found_Z[k] + floor_Z[k] * rates, float32(0))  # the rounding of changes may leave less
                    step = (alpha_Z[k] + old * found) - old
                    move, before = past_2Z[0, k] + (old - theta_Z[k]), past_2Z[1, k]
                    value = max(_moved(old, move, step, before, momentum, greatest), alpha_Z[k])
                    past_2Z[0, k], past_2Z[1, k] = value - old, step
                    theta_Z[k] = value
                    sums_L[i] += value
                    floors_L[i] += floor_Z[k] * value
                    others_L[i] += abs(step)
            bits_2Z[:] = (bits_2Z + HALF) & ~TOPIC_MASK  # rounded to bfloat16
            scale, floor, change = total / _sum(sums_L), _sum(floors_L), _sum(others_L)
            if change < limit and (refresh or last < NEAR * limit):
                break
            if refresh:
                always |= change >= last
                last = change
        for k in range(Z):
            new_DZ[d, k] = scale * theta_Z[k]
    return new_DZ


@njit(nogil=True, cache=True, inline="always")
def _mass(shares_N, entries_N, first, end, theta_Z, sums_L):
    """Return the sum of shares times theta; overwrites sums_L."""
    sums_L[:] = 0
    for e0 in range(first, end, LANES):
        for i in range(min(LANES, end - e0)):
            sums_L[i] += shares_N[e0 + i] * theta_Z[entries_N[e0 + i] & TOPIC_MASK]
    return _sum(sums_L)


@njit(nogil=True, cache=True, inline="always")
def _moved(value, move, step, before, momentum, greatest):
    """Return the next value after one that is `move` away from the one before, by the secant of their steps."""
    less = before - step
    times = greatest
    if move * less > 0:
        times = min(max(move / less, float32(1)), greatest)
    return (value + momentum * move) + times * (step - momentum * less)


@njit(nogil=True, cache=True, inline="always")
def _sum(sums_L):
    """Return the sum, added in pairs; overwrites sums_L."""
    half = len(sums_L) // 2
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
        shared_bytes = 8 * (Z + LANES) * warps
        in_shared = shared_bytes <= current_limits()[1] // 2  # two blocks on a multiprocessor, at least
        blocks = grid_for(D, warps, waves=5 if in_shared else 4)
        scratch = cupy.empty((2 if in_shared else 4) * Z * blocks * warps, np.float32)
        tail_P, rate_P = cupy.zeros(len(bag.words_P), np.float32), cupy.zeros(len(bag.words_P), np.float32)
        order_D = cupy.argsort(bag.starts_D1[:-1] - bag.starts_D1[1:])  # the longest first: no warp ends late
        fn = kernel("lda/fold_in", "fold_in", IN_SHARED=int(in_shared))
        args = (
            *bag, D, order_D, cupy.zeros(1, np.uint64), *topics, Z, max_iter, tol, scratch, tail_P, rate_P, theta_DZ
        )  # fmt: skip
        launch(fn, blocks, THREADS, args, shared_bytes=shared_bytes * in_shared)
    return theta_DZ


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words and the topics of such words."""
    size = min(size, 20_000)
    _, _, words = corpus(rng, size)
    starts_D1, words_P, counts_P, _ = bags(rng, size)
    bag = Bag(starts_D1, words_P, counts_P)
    return {"bag": bag, "topics": fixed_topics(words), "max_iter": size % 13, "tol": 1e-3}
