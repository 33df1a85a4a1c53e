"""Compute the log-likelihood of the tokens under the topics from their own counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import float64, int64, uint32, uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import kernel, launch
from .examples import corpus
from .sample_topics import LANES, VARIANTS, weights_place  # noqa: F401 (CI compiles VARIANTS)
from .weights import (
    ALIGN,
    BLOCK,
    ENTRY_TYPES,
    PRIOR_BITS,
    Documents,
    Pairs,
    WordTopics,
    beta_of,
    count_bits,
    weigh_word,
)

UNITS = 1 << 20  # units of a natural logarithm in sums


def plugin_likelihood(documents: Documents, pairs: Pairs, words: WordTopics) -> Any:
    """Return the sum of ln p(word | document) over tokens, times UNITS.

    documents  entries_T must be those of `count_topics`
    words      the counts of these topics, over all documents of the corpus

    Returns total (1,) int64. With theta = (n_dk + alpha_k) / (tokens of d + sum of alpha) and phi = (n_wk + beta_w) /
    (n_k + sum of word priors), p is the sum of theta phi over topics. Both include the token's own count: this is the
    figure that CuLDA_CGS prints, times the number of tokens. Logarithms are rounded to 1 / UNITS, so the sum does not
    depend on its order; a GPU's logarithm may differ in the last unit.
    """
    for group in (documents, pairs, words):
        group.check()
    arrays = documents._asdict() | pairs._asdict() | words._asdict()
    del arrays["beta"]
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    check.contiguous(
        rows_D2=documents.rows_D2, slots_S3=pairs.slots_S3, counts_VZ=words.counts_VZ, beta_KZ=words.beta_KZ
    )
    return run(documents, pairs, words, float(words.alpha_Z.sum(dtype=np.float64)) / (1 << PRIOR_BITS))


def _cpu(documents, pairs, words, alpha_sum):
    bits = count_bits(len(words.inverse_Z))[1]
    words = words._replace(beta=np.float32(words.beta))
    return np.array([_sum(documents, bits, pairs, words, alpha_sum)], np.int64)


@njit(nogil=True, cache=True)
def _sum(documents, bits, pairs, words, alpha_sum):
    rows_D2, lengths_D, _, entries_T = documents
    slots_S3, document_P, _, count_P = pairs
    counts_VZ, inverse_Z, _, alpha_Z, beta, seeds_V, beta_KZ = words
    Z = len(inverse_Z)
    share_Z, weight_Z, beta_Z = np.empty(Z, np.float32), np.empty(Z, np.int32), np.full(Z, beta, np.float32)
    through_B = np.empty((Z + BLOCK - 1) // BLOCK, np.uint64)
    shift, mask = uint32(bits), uint32((1 << bits) - 1)
    units = int64(0)
    for s in range(len(slots_S3)):
        w = slots_S3[s, 0]
        beta_of(w, beta, seeds_V, beta_KZ, beta_Z)
        scale, all_prior = weigh_word(counts_VZ[w], inverse_Z, alpha_Z, beta_Z, share_Z, weight_Z, through_B)
        unit = 1 / (float64(scale) * (1 << PRIOR_BITS))
        for p in range(slots_S3[s, 1], slots_S3[s, 2]):
            d = document_P[p]
            begin = int64(rows_D2[d, 0]) * ALIGN
            total = uint64(0)
            for e in range(begin, begin + int64(rows_D2[d, 1])):
                entry = uint32(entries_T[e])
                total += uint64(entry & mask) * uint64(weight_Z[entry >> shift])
            weight = float64((total << uint64(PRIOR_BITS)) + all_prior) * unit
            units += int64(count_P[p]) * int64(round(math.log(weight / (float64(lengths_D[d]) + alpha_sum)) * UNITS))
    return units


def _cuda(documents, pairs, words, alpha_sum):
    import cupy

    rows_D2, lengths_D, _, entries_T = documents
    Z, S = len(words.inverse_Z), len(pairs.slots_S3)
    total = cupy.zeros(1, np.int64)
    if not S:
        return total
    place = weights_place(Z, S)
    entry = ENTRY_TYPES[entries_T.dtype]
    fn = kernel(
        "lda/plugin_likelihood", "plugin_likelihood", ENTRY=entry, LANES=LANES[entry], THREADS=place.threads,
        WEIGHTS_IN_SHARED=int(place.in_shared),
    )  # fmt: skip
    seeds_V = words.seeds_V if len(words.seeds_V) else np.uintp(0)
    args = (
        rows_D2, lengths_D, entries_T, np.uint32(count_bits(Z)[1]), pairs.slots_S3, S, pairs.document_P, pairs.count_P,
        words.counts_VZ, words.inverse_Z, words.alpha_Z, np.float32(words.beta), seeds_V, words.beta_KZ, Z, alpha_sum,
        place.scratch, total,
    )  # fmt: skip
    launch(fn, place.blocks, place.threads, args, shared_bytes=place.shared_bytes)
    return total


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of Zipf's words with random topics."""
    documents, pairs, words = corpus(rng, size)
    return {"documents": documents, "pairs": pairs, "words": words}
