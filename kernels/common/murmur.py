"""MurmurHash64A, the hash of words in KenLM's binary files."""

from __future__ import annotations

import numpy as np
from numpy import int64, uint64

from ..compile_cpu import njit
from .load_bytes import word_chunk

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


def index_hashes(hash_V: np.ndarray) -> np.ndarray:
    """Return slots_C (C,) uint64, an open-addressing table of (hash, id) pairs.

    hash_V  (V,) uint64, hashes of words; word 0 has no slot, and of equal hashes the first one is found
    """
    slots_C = np.zeros(2 << (3 * len(hash_V) // 2).bit_length(), np.uint64)  # at most two thirds are used
    _fill_slots(hash_V, slots_C)
    return slots_C


@njit(nogil=True, cache=True)
def _fill_slots(hash_V, slots_C):
    for v in range(1, len(hash_V)):
        slot = uint64(2) * hash_V[v] & uint64(len(slots_C) - 1)
        while slots_C[slot + uint64(1)]:
            slot = (slot + uint64(2)) & uint64(len(slots_C) - 1)
        slots_C[slot], slots_C[slot + uint64(1)] = hash_V[v], uint64(v)


@njit(nogil=True, cache=True)
def find_hash(hash, slots_C):
    """Return the id of the word of a hash, or 0 if the table lacks it."""
    slot = uint64(2) * hash & uint64(len(slots_C) - 1)
    while slots_C[slot + uint64(1)] and slots_C[slot] != hash:
        slot = (slot + uint64(2)) & uint64(len(slots_C) - 1)
    return slots_C[slot + uint64(1)]
