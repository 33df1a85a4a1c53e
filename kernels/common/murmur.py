"""MurmurHash64A, by which KenLM's binary files know words."""

from __future__ import annotations

import numpy as np
from numpy import int64, uint64

from ..compile import njit
from .words import word_chunk

M = 0xC6A4A7935BD1E995


@njit(nogil=True, cache=True)
def murmur_hash(text, start, stop):
    """Return the hash of the bytes text[start:stop], with seed 0."""
    m, h = uint64(M), uint64(stop - start) * uint64(M)
    whole = start + (stop - start) // 8 * 8
    for i in range(start, whole, 8):
        k = word_chunk(text, i, stop) * m
        h = (h ^ (k ^ (k >> uint64(47))) * m) * m
    if whole < stop:
        h = (h ^ word_chunk(text, whole, stop)) * m
    h = (h ^ (h >> uint64(47))) * m
    return h ^ (h >> uint64(47))


@njit(nogil=True, cache=True)
def murmur_hashes(offsets_V, data):
    """Return (V,) uint64: the hashes of words; word v is data[offsets_V[v]:offsets_V[v + 1]]."""
    hash_V = np.empty(len(offsets_V) - 1, np.uint64)
    for v in range(len(hash_V)):
        hash_V[v] = murmur_hash(data, int64(offsets_V[v]), int64(offsets_V[v + 1]))
    return hash_V
