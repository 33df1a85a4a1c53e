"""Draw a topic for every token: one sweep of collapsed Gibbs sampling, with the counts after the sweep before."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int64, uint32, uint64

from .. import check
from ..common.products import upper_product
from ..compile import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import current_limits, kernel, launch
from .examples import corpus
from .philox import DRAWS, random_bits
from .weights import (
    ALIGN,
    ENTRIES,
    GROUP,
    PRIOR_BITS,
    Documents,
    Pairs,
    WordTopics,
    beta_of,
    count_bits,
    prior_weight,
    weigh_word,
    word_weight,
)

VARIANTS = tuple(
    {"ENTRY": entry, "LANES": lanes, "THREADS": threads, "WEIGHTS_IN_SHARED": shared}
    for entry, lanes, threads, shared in (("u16", 4, 256, 1), ("u32", 8, 1024, 1), ("u32", 8, 1024, 0))
)
LANES = 4  # of a warp, for one pair
AHEAD = 6  # pairs: their memory is fetched while the pairs before are worked on
SMALL, LARGE = 256, 1024  # threads of a block: few where the weights of many words fit a multiprocessor
SMALL_TOPICS = 4096


class Draw(NamedTuple):
    """What selects the random numbers of a sweep.

    seed          0 to 2^64 - 1
    sweep         0 to 2^32 - 1
    first         number of document 0 in the corpus, below 2^46
    exclude_self  leave a token's own count out, as collapsed Gibbs sampling does; False: the rule of CuLDA_CGS
    """

    seed: int
    sweep: int
    first: int = 0
    exclude_self: bool = True


def sample_topics(documents: Documents, pairs: Pairs, words: WordTopics, new_VZ: Any, draw: Draw) -> Any:
    """Draw a new topic for each token of `pairs` and return the number of tokens whose topic changes.

    documents  topics_T is changed in place; entries_T must be those of `count_topics`
    pairs      of these documents, or some of their slots
    words      counts after the sweep before, over all documents of the corpus
    new_VZ     (V, Z) uint32, changed in place: each changed token moves 1 from its old topic to its new one

    Returns changed (1,) int64.

    Topic k is drawn with probability proportional to (n_dk + alpha_k) (n_wk + beta_w) / (n_k + sum of word priors). Its
    counts n lack the token itself if exclude_self (Xie et al., "CuLDA_CGS", 2018, equation 1). Weights are
    integers (weights.py), so the same topics come out on any device and for any split into slots and documents.

    A draw is x = upper 64 bits of total * `random_bits`. The first values of x, as many as the old topic weighs, keep
    it. The next values select another topic of the document, in the order of its entries. The last values select any
    other topic by its prior weight, in the order of topics.
    """
    for group in (documents, pairs, words):
        group.check()
    check.dtype(new_VZ, np.uint32)
    if not 0 <= draw.seed < 2**64:
        raise ValueError(f"seed is {draw.seed} but must be 0 to 2^64 - 1")
    arrays = documents._asdict() | pairs._asdict() | words._asdict() | {"new_VZ": new_VZ}
    del arrays["beta"]
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    check.contiguous(
        rows_D2=documents.rows_D2, slots_S3=pairs.slots_S3, counts_VZ=words.counts_VZ, beta_KZ=words.beta_KZ,
        new_VZ=new_VZ,
    )  # fmt: skip
    return run(documents, pairs, words, new_VZ, draw)


def _cpu(documents, pairs, words, new_VZ, draw):
    rows_D2, _, topics_T, entries_T = documents
    bits = count_bits(len(words.inverse_Z))[1]
    seed, sweep, first = np.uint64(draw.seed), draw.sweep, draw.first
    words = words._replace(beta=float32(words.beta))
    changed = _sample(rows_D2, topics_T, entries_T, bits, pairs, words, new_VZ, (seed, sweep, first), draw.exclude_self)
    return np.array([changed], np.int64)


@njit(nogil=True, cache=True)
def _sample(rows_D2, topics_T, entries_T, bits, pairs, words, new_VZ, counter, exclude_self):
    slots_S3, document_P, token_P, count_P = pairs
    counts_VZ, inverse_Z, less_Z, alpha_Z, beta, seeds_V, beta_KZ = words
    seed, sweep, first = counter
    Z = len(inverse_Z)
    share_Z, weight_Z, beta_Z = np.empty(Z, np.float32), np.empty(Z, np.int32), np.full(Z, beta, np.float32)
    prior_G = np.empty((Z + GROUP - 1) // GROUP, np.uint64)
    through_E = np.empty(Z + (1 << 16), np.uint64)  # running sums of a document's weights
    shift, mask = uint32(bits), uint32((1 << bits) - 1)
    changed = 0
    for s in range(len(slots_S3)):
        w = slots_S3[s, 0]
        beta_of(w, beta, seeds_V, beta_KZ, beta_Z)
        scale, all_prior = weigh_word(counts_VZ[w], inverse_Z, alpha_Z, beta_Z, share_Z, weight_Z, prior_G)
        for p in range(slots_S3[s, 1], slots_S3[s, 2]):
            ahead = min(p + AHEAD, slots_S3[s, 2] - 1)
            prefetch(topics_T, int64(token_P[ahead]))
            row = int64(rows_D2[document_P[ahead], 0]) * ALIGN
            prefetch(entries_T, row)
            prefetch(entries_T, row + 32)
            d = document_P[p]
            begin = int64(rows_D2[d, 0]) * ALIGN
            size = int64(rows_D2[d, 1])
            if size > len(through_E):
                through_E = np.empty(2 * size, np.uint64)
            total = uint64(0)
            for e in range(size):
                entry = uint32(entries_T[begin + e])
                total += uint64(entry & mask) * uint64(weight_Z[entry >> shift])
                through_E[e] = total
            for t in range(int64(token_P[p]), int64(token_P[p]) + int64(count_P[p])):
                z = int64(topics_T[t])
                low, high, theta = _entries_of(entries_T, begin, size, shift, mask, uint32(z))
                before = through_E[low - 1] if low else uint64(0)
                here = through_E[high - 1] - before
                weight = weight_Z[z]
                prior = prior_weight(weight, alpha_Z[z])
                if exclude_self:
                    less = word_weight((float32(counts_VZ[w, z] - uint32(1)) + beta_Z[z]) * less_Z[z], scale)
                    own = ((theta - uint64(1)) * uint64(less) << uint64(PRIOR_BITS)) + prior_weight(less, alpha_Z[z])
                else:
                    own = (here << uint64(PRIOR_BITS)) + prior
                others = total - here
                x = upper_product(
                    random_bits(seed, DRAWS, sweep, first + int64(d), t - begin),
                    own + (others << uint64(PRIOR_BITS)) + all_prior - prior,
                )
                if x < own:
                    continue
                x -= own
                if x < others << uint64(PRIOR_BITS):
                    x >>= uint64(PRIOR_BITS)
                    if x >= before:
                        x += here
                    e, left = int64(0), size  # the first running sum above x; a step without a branch is faster
                    while left > 1:
                        half = left >> 1
                        e += half * int64(through_E[e + half - 1] <= x)
                        left -= half
                    new = int64(uint32(entries_T[begin + e]) >> shift)
                else:
                    x -= others << uint64(PRIOR_BITS)
                    new = _by_prior(x, z, prior, weight_Z, alpha_Z, prior_G)
                topics_T[t] = new
                new_VZ[w, z] -= uint32(1)
                new_VZ[w, new] += uint32(1)
                changed += 1
    return changed


@njit(nogil=True, cache=True, inline="always")
def _entries_of(entries_T, begin, size, shift, mask, z):
    """Return the first and the end of the entries of topic z, counted from `begin`, and their count."""
    low, left, bound = int64(0), size, z << shift
    while left > 1:
        half = left >> 1
        low += half * int64(uint32(entries_T[begin + low + half - 1]) < bound)
        left -= half
    high, theta = low, uint64(0)
    while high < size and uint32(entries_T[begin + high]) >> shift == z:
        theta += uint64(uint32(entries_T[begin + high]) & mask)
        high += 1
    return low, high, theta


@njit(nogil=True, cache=True)
def _by_prior(x, z, prior, weight_Z, alpha_Z, prior_G):
    """Return the topic but z whose prior weight holds x."""
    for g in range(len(prior_G)):
        total = prior_G[g] - prior if g == z // GROUP else prior_G[g]
        if x < total:
            k = g * GROUP
            while True:
                here = uint64(0) if k == z else prior_weight(weight_Z[k], alpha_Z[k])
                if x < here:
                    return k
                x -= here
                k += 1
        x -= total
    return z  # never: x is below the sum


def _cuda(documents, pairs, words, new_VZ, draw):
    import cupy

    rows_D2, _, topics_T, entries_T = documents
    Z, S = len(words.inverse_Z), len(pairs.slots_S3)
    changed = cupy.zeros(1, np.int64)
    if not S:
        return changed
    place = weights_place(Z, S)
    fn = kernel(
        "lda/sample_topics", "sample_topics", ENTRY=ENTRIES[entries_T.dtype], LANES=LANES if Z <= SMALL_TOPICS else 8,
        THREADS=place.threads, WEIGHTS_IN_SHARED=int(place.in_shared),
    )  # fmt: skip
    seeds_V = words.seeds_V if len(words.seeds_V) else np.uintp(0)
    args = (
        rows_D2, topics_T, entries_T, np.uint64(draw.first), np.uint32(count_bits(Z)[1]), pairs.slots_S3, S,
        pairs.document_P, pairs.token_P, pairs.count_P, words.counts_VZ, words.inverse_Z, words.less_Z, words.alpha_Z,
        float32(words.beta), seeds_V, words.beta_KZ, Z, new_VZ, np.uint64(draw.seed), np.uint32(draw.sweep),
        np.uint32(draw.exclude_self), place.scratch, changed,
    )  # fmt: skip
    launch(fn, place.blocks, place.threads, args, shared_bytes=place.shared_bytes)
    return changed


class Place(NamedTuple):
    """Where the blocks of a launch keep the weights of their word: in shared memory, or in their part of scratch."""

    in_shared: bool
    shared_bytes: int
    threads: int
    blocks: int
    scratch: Any


def weights_place(num_topics: int, slots: int) -> Place:
    """Return the place of weights, and the launch that fits it; weights of many topics exceed shared memory."""
    import cupy

    prior_bytes = 8 * (-(-num_topics // GROUP) + 1)
    in_shared = prior_bytes + 4 * num_topics + 1024 <= current_limits()[1]
    threads = SMALL if num_topics <= SMALL_TOPICS else LARGE
    blocks = min(slots, 2**31 - 1) if in_shared else min(slots, 2 * current_limits()[0])
    scratch = cupy.empty(0 if in_shared else blocks * num_topics, np.uint32)
    return Place(in_shared, prior_bytes + 4 * num_topics * in_shared, threads, blocks, scratch)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words with random topics; by size, few topics or many, and words with priors."""
    documents, pairs, words = corpus(rng, size)
    draw = Draw(seed=size << 40, sweep=size % 5, first=size << 30, exclude_self=size % 2 == 0)
    return {"documents": documents, "pairs": pairs, "words": words, "new_VZ": words.counts_VZ.copy(), "draw": draw}
