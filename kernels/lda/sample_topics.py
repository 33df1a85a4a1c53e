"""Draw a topic for every token: one sweep of collapsed Gibbs sampling, with the counts after the previous sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int64, uint32, uint64

from .. import check
from ..common.philox import DRAWS, fill_random_bits
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_high, prefetch
from ..launch import current_limits, kernel, launch
from .examples import corpus
from .layout import MAX_PAIR_TOKENS
from .weights import (
    ALIGN,
    BLOCK,
    ENTRY_TYPES,
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

LANES = {"u16": 4, "u32": 8}  # lanes of a warp that read one row together, by type of entry
PARTS = 8  # parts of a row whose sums a GPU keeps, as in sample_topics.cu
VARIANTS = tuple(
    {"ENTRY": entry, "LANES": LANES[entry], "THREADS": threads, "WEIGHTS_IN_SHARED": shared}
    for entry, threads, shared in (("u16", 128, 1), ("u16", 256, 1), ("u32", 512, 1), ("u32", 512, 0))
)
BATCH = 64  # pairs: a CPU fetches their memory and draws their random numbers at once
SHORT = 512  # entries of a row that a CPU searches from end to end
THREADS = ((2048, 128), (4096, 256), (65536, 512))  # topics at most, and threads of a block: more share large weights


class Draw(NamedTuple):
    """The inputs that select the random numbers of a sweep.

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
    pairs      pairs of these documents, or some of their slots
    words      counts after the previous sweep, over all documents of the corpus
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
    draw = draw._replace(seed=np.uint64(draw.seed))
    words = words._replace(beta=float32(words.beta))
    changed = _sample(rows_D2, topics_T, entries_T, bits, pairs, words, new_VZ, draw)
    return np.array([changed], np.int64)


@njit(nogil=True, cache=True)
def _sample(rows_D2, topics_T, entries_T, bits, pairs, words, new_VZ, draw):
    slots_S3, document_P, token_P, count_P = pairs
    counts_VZ, inverse_Z, less_Z, alpha_Z, beta, seeds_V, beta_KZ = words
    seed, sweep, first, exclude_self = draw
    Z = len(inverse_Z)
    share_Z, weight_Z, beta_Z = np.empty(Z, np.float32), np.empty(Z, np.int32), np.full(Z, beta, np.float32)
    priors_B = np.empty((Z + BLOCK - 1) // BLOCK, np.uint64)
    through_B = np.empty((Z + (1 << 16)) // BLOCK, np.uint64)  # running sums of a document's weights
    document_M, position_M = np.empty(BATCH * MAX_PAIR_TOKENS, np.int64), np.empty(BATCH * MAX_PAIR_TOKENS, np.uint32)
    bits_M = np.empty(BATCH * MAX_PAIR_TOKENS, np.uint64)
    shift, mask = uint64(bits), uint64((1 << bits) - 1)
    changed = 0
    for s in range(len(slots_S3)):
        w = slots_S3[s, 0]
        count_Z, new_Z = counts_VZ[w], new_VZ[w]
        beta_of(w, beta, seeds_V, beta_KZ, beta_Z)
        scale, all_prior = weigh_word(count_Z, inverse_Z, alpha_Z, beta_Z, share_Z, weight_Z, priors_B)
        for batch in range(slots_S3[s, 1], slots_S3[s, 2], BATCH):
            end = min(batch + BATCH, slots_S3[s, 2])
            m = 0
            for p in range(batch, end):  # fetch memory, and draw the numbers of all tokens
                row = int64(rows_D2[document_P[p], 0]) * ALIGN
                prefetch(topics_T, int64(token_P[p]))
                prefetch(entries_T, row)
                prefetch(entries_T, row + 32)
                for i in range(count_P[p]):
                    document_M[m] = first + int64(document_P[p])
                    position_M[m] = int64(token_P[p]) + i - row
                    m += 1
            fill_random_bits(seed, DRAWS, sweep, document_M[:m], position_M[:m], bits_M[:m])
            m = 0
            for p in range(batch, end):
                d = document_P[p]
                row = uint64(rows_D2[d, 0]) * uint64(ALIGN), uint64(rows_D2[d, 1]), shift, mask
                if row[1] > uint64(len(through_B) * BLOCK):
                    through_B = np.empty(2 * row[1] // BLOCK, np.uint64)
                total = _sum_row(entries_T, row, weight_Z, through_B)
                for t in range(uint64(token_P[p]), uint64(token_P[p]) + uint64(count_P[p])):
                    z = uint64(topics_T[t])
                    low, theta = _find_topic(entries_T, row, z)
                    weight = weight_Z[z]
                    here = theta * uint64(weight)
                    prior = prior_weight(weight, alpha_Z[z])
                    if exclude_self:
                        less = word_weight((float32(count_Z[z] - uint32(1)) + beta_Z[z]) * less_Z[z], scale)
                        own = ((theta - uint64(1)) * uint64(less) << uint64(PRIOR_BITS)) + prior_weight(
                            less, alpha_Z[z]
                        )
                    else:
                        own = (here << uint64(PRIOR_BITS)) + prior
                    others = (total - here) << uint64(PRIOR_BITS)
                    x = multiply_high(bits_M[m], own + others + all_prior - prior)
                    m += 1
                    if x < own:
                        continue
                    x -= own
                    if x < others:
                        x >>= uint64(PRIOR_BITS)
                        if x >= _sum_before(entries_T, row, low, weight_Z, through_B):
                            x += here
                        new = _by_row(x, entries_T, row, weight_Z, through_B)
                    else:
                        new = _by_prior(x - others, z, prior, weight_Z, alpha_Z, priors_B)
                    topics_T[t] = new
                    new_Z[z] -= uint32(1)
                    new_Z[new] += uint32(1)
                    changed += 1
    return changed


# Below, `row` is (first entry, number of entries, bits of a count, their mask) of a document. Zeros fill its last
# block and weigh nothing. Loops over a block are unrolled, without branches: on short rows they beat binary searches.


@njit(nogil=True, cache=True, inline="always")
def _sum_row(entries_T, row, weight_Z, through_B):
    """Fill through_B with the weights of all entries up to the end of each block; return the last of them."""
    begin, size, shift, mask = row
    total = uint64(0)
    for b in range((size + uint64(BLOCK - 1)) // uint64(BLOCK)):
        for i in range(BLOCK):
            entry = uint64(entries_T[begin + b * uint64(BLOCK) + uint64(i)])
            total += (entry & mask) * uint64(uint32(weight_Z[entry >> shift]))
        through_B[b] = total
    return total


@njit(nogil=True, cache=True, inline="always")
def _find_topic(entries_T, row, z):
    """Return the first entry of topic z, counted from the row's first, and the topic's count."""
    begin, size, shift, mask = row
    if size <= uint64(SHORT):
        kind = entries_T.dtype.type
        bound, before = kind((z << shift) - uint64(z > uint64(0))), kind(0)
        for e in range(begin, begin + (size + uint64(BLOCK - 1)) // uint64(BLOCK) * uint64(BLOCK)):
            before = kind(before + kind(kind(entries_T[e] - kind(1)) < bound))  # a zero wraps around: it is not less
        low = uint64(before)
    else:
        low, left = uint64(0), size
        while left > uint64(1):
            half = left >> uint64(1)
            low += half * uint64(uint64(entries_T[begin + low + half - uint64(1)]) < z << shift)
            left -= half
    theta = uint64(entries_T[begin + low]) & mask
    if theta == mask:  # other entries of the topic may follow
        e = low + uint64(1)
        while e < size and uint64(entries_T[begin + e]) >> shift == z:
            theta += uint64(entries_T[begin + e]) & mask
            e += uint64(1)
    return low, theta


@njit(nogil=True, cache=True, inline="always")
def _sum_before(entries_T, row, e, weight_Z, through_B):
    """Return the weights of all entries before entry e."""
    begin, _, shift, mask = row
    b = e // uint64(BLOCK)
    total = through_B[b - uint64(1)] if b else uint64(0)
    for i in range(BLOCK):
        entry = uint64(entries_T[begin + b * uint64(BLOCK) + uint64(i)])
        product = (entry & mask) * uint64(uint32(weight_Z[entry >> shift]))
        total += product if b * uint64(BLOCK) + uint64(i) < e else uint64(0)
    return total


@njit(nogil=True, cache=True, inline="always")
def _by_row(x, entries_T, row, weight_Z, through_B):
    """Return the topic of the first entry whose running sum is above x."""
    begin, size, shift, mask = row
    b = _count_through(x, through_B, (size + uint64(BLOCK - 1)) // uint64(BLOCK))
    total = through_B[b - uint64(1)] if b else uint64(0)
    e = begin + b * uint64(BLOCK)
    found = e
    for i in range(BLOCK):
        entry = uint64(entries_T[e + uint64(i)])
        total += (entry & mask) * uint64(uint32(weight_Z[entry >> shift]))
        found += uint64(total <= x)
    return uint64(entries_T[found]) >> shift


@njit(nogil=True, cache=True, inline="always")
def _count_through(x, through_B, size):
    """Return how many of the first `size` running sums are at most x."""
    found = uint64(0)
    if size <= uint64(SHORT // BLOCK):
        for b in range(size):
            found += uint64(through_B[b] <= x)
        return found
    left = size
    while left > uint64(1):
        half = left >> uint64(1)
        found += half * uint64(through_B[found + half - uint64(1)] <= x)
        left -= half
    return found


@njit(nogil=True, cache=True)
def _by_prior(x, z, prior, weight_Z, alpha_Z, priors_B):
    """Return the topic other than z whose prior weight contains x; `prior` is the prior weight of z."""
    own = z // uint64(BLOCK)
    b, left = uint64(0), uint64(len(priors_B))
    while left > uint64(1):
        half = left >> uint64(1)
        at = b + half - uint64(1)
        b += half * uint64(priors_B[at] - (prior if at >= own else uint64(0)) <= x)
        left -= half
    total = priors_B[b - uint64(1)] - (prior if b > own else uint64(0)) if b else uint64(0)
    last, found = uint64(len(weight_Z) - 1), b * uint64(BLOCK)
    for i in range(BLOCK):
        k = min(b * uint64(BLOCK) + uint64(i), last)
        total += uint64(0) if k == z else prior_weight(weight_Z[k], alpha_Z[k])
        found += uint64(total <= x)
    return found


def _cuda(documents, pairs, words, new_VZ, draw):
    import cupy

    rows_D2, _, topics_T, entries_T = documents
    Z, S = len(words.inverse_Z), len(pairs.slots_S3)
    changed = cupy.zeros(1, np.int64)
    if not S:
        return changed
    place = weights_place(Z, S, thread_bytes=8 * (PARTS - 1))
    entry = ENTRY_TYPES[entries_T.dtype]
    fn = kernel(
        "lda/sample_topics", "sample_topics", ENTRY=entry, LANES=LANES[entry], THREADS=place.threads,
        WEIGHTS_IN_SHARED=int(place.in_shared),
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


class WeightPlace(NamedTuple):
    """The place of the weights of a block's word: shared memory, or the block's part of scratch."""

    in_shared: bool
    shared_bytes: int
    threads: int
    blocks: int
    scratch: Any


def weights_place(num_topics: int, slots: int, thread_bytes: int = 0) -> WeightPlace:
    """Return the place of weights, and the launch for it; weights of many topics do not fit shared memory.

    thread_bytes  further bytes of shared memory for each thread
    """
    import cupy

    threads = next(threads for most, threads in THREADS if num_topics <= most)
    sums_bytes = 8 * (-(-num_topics // GROUP) + 1) + thread_bytes * threads
    in_shared = sums_bytes + 4 * num_topics + 1024 <= current_limits()[1]
    blocks = min(slots, 2**31 - 1) if in_shared else min(slots, 2 * current_limits()[0])
    scratch = cupy.empty(0 if in_shared else blocks * num_topics, np.uint32)
    return WeightPlace(in_shared, sums_bytes + 4 * num_topics * in_shared, threads, blocks, scratch)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words with random topics; by size, few topics or many, and words with priors."""
    documents, pairs, words = corpus(rng, size)
    draw = Draw(seed=size << 40, sweep=size % 5, first=size << 30, exclude_self=size % 2 == 0)
    return {"documents": documents, "pairs": pairs, "words": words, "new_VZ": words.counts_VZ.copy(), "draw": draw}
