"""Count the words of each document: from word numbers to bags of words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int64, uint32, uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from .radix_sort import radix_sort


def bag_words(tokens_T: Any, num_words: int) -> tuple[Any, Any, Any]:
    """Return the bag of words of each document.

    tokens_T   (T,) uint32: word + 1, and 0 after each document; tokens after the last 0 are ignored
    num_words  number of words: tokens are at most this; T and num_words below 2**32

    Returns starts_D1 (D + 1,) int64, words_P (P,) uint32 and counts_P (P,) uint32: document d has the pairs
    starts_D1[d] to starts_D1[d + 1], its words ascending.
    """
    check.dtype(tokens_T, np.uint32)
    check.length(tokens_T, 2**32)
    return pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T)(tokens_T, num_words)


@njit(nogil=True, cache=True)
def _cpu(tokens_T, num_words):
    T, D = len(tokens_T), 0
    for token in tokens_T:
        D += token == 0
    starts_D1 = np.zeros(D + 1, np.int64)
    pairs = np.empty(T - D, np.uint64)  # word << 32 | count
    place_V = np.full(num_words, -1, np.int64)  # the pair of each word in its latest document
    one = uint64(1)
    d, p, first = 0, 0, 0
    for token in tokens_T:
        if token == 0:
            pairs[first:p].sort()
            first = p
            d += 1
            starts_D1[d] = p
            continue
        place = place_V[token - 1]
        if place >= first:
            pairs[place] += one
        else:
            place_V[token - 1] = p
            pairs[p] = uint64(token - 1) << uint64(32) | one
            p += 1
    words_P, counts_P = np.empty(first, np.uint32), np.empty(first, np.uint32)
    for i in range(first):
        words_P[i] = uint32(pairs[i] >> uint64(32))
        counts_P[i] = uint32(pairs[i] & uint64(0xFFFFFFFF))
    return starts_D1, words_P, counts_P


def _cuda(tokens_T, num_words):
    import cupy

    ends_D = cupy.flatnonzero(tokens_T == 0)
    D = len(ends_D)
    T = int(ends_D[-1]) + 1 if D else 0
    if T == D:
        return cupy.zeros(D + 1, int64), cupy.empty(0, uint32), cupy.empty(0, uint32)
    token_T = tokens_T[:T]
    document_T = cupy.zeros(T, uint64)
    document_T[1:] = cupy.cumsum(token_T[:-1] == 0)
    keys_T = (document_T << uint64(32) | token_T.astype(uint64) - uint64(1))[token_T != 0]
    keys_T = radix_sort(keys_T[None], 64)[0]
    new_T = cupy.ones(len(keys_T), bool)
    new_T[1:] = keys_T[1:] != keys_T[:-1]
    heads_P = cupy.flatnonzero(new_T)
    counts_P = cupy.diff(heads_P, append=cupy.full(1, len(keys_T), heads_P.dtype)).astype(uint32)
    pairs_P = keys_T[heads_P]
    starts_D1 = cupy.searchsorted(pairs_P >> uint64(32), cupy.arange(D + 1, dtype=uint64)).astype(int64)
    return starts_D1, pairs_P.astype(uint32), counts_P


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return documents of about 20 Zipf-distributed words."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 500).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    return {"tokens_T": tokens_T, "num_words": 500}
