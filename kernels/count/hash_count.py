"""Count n-grams in an open-addressing hash table (strategy `hash`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..common.integer_hash import mix64
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .ngram_keys import IDENTITY, code_at, device_lut

VARIANTS = ({"TOKEN_BYTES": 1}, {"TOKEN_BYTES": 4})
MIN_CAPACITY = 1 << 16
FINGERPRINT = uint64(0xFFFFFFFF00000000)


def hash_count(tokens_T: Any, order: int, lut: Any = None) -> tuple[Any, Any]:
    """Return a position and the count of each distinct n-gram of a stream.

    tokens_T  (T,) uint32 codes (0 ends every window), or uint8 translated by `lut`; T < 2**32 - 1
    order     words per n-gram
    lut       (256,) uint16, code of each byte

    Returns positions_G (G,) int64, one of the positions of each n-gram (undefined which), and
    counts_G (G,) int64, in undefined order. The table takes 12 bytes per slot for any order and grows
    fourfold when half full.
    """
    check.dtype(tokens_T, np.uint32, np.uint8)
    check.length(tokens_T, 2**32 - 1)
    return pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T)(tokens_T, order, lut)


def _cpu(tokens_T, order, lut):
    lut = IDENTITY if lut is None else lut
    capacity = MIN_CAPACITY
    while True:
        entries_C = np.zeros(capacity, np.uint64)
        counts_C = np.zeros(capacity, np.uint32)
        if _insert(tokens_T, order, lut, tokens_T.dtype == np.uint8, entries_C, counts_C):
            used = np.flatnonzero(entries_C)
            return (entries_C[used] & uint64(0xFFFFFFFF)).astype(np.int64) - 1, counts_C[used].astype(np.int64)
        capacity *= 4
        del entries_C, counts_C  # free them before the larger ones are allocated


@njit(nogil=True, cache=True)
def _insert(tokens_T, order, lut, is_bytes, entries_C, counts_C):
    mask = uint64(len(entries_C) - 1)
    used = 0
    for t in range(len(tokens_T) - order + 1):
        h = uint64(0)
        whole = True
        for i in range(order):
            code = code_at(tokens_T, lut, is_bytes, t + i)
            if code == 0:
                whole = False
                break
            h = (h ^ code) * uint64(0x9E3779B97F4A7C15)
            h ^= h >> uint64(29)
        if not whole:
            continue
        h = mix64(h)
        entry = (h & FINGERPRINT) | uint64(t + 1)
        slot = h & mask
        while True:
            e = entries_C[slot]
            if e == 0:
                if 2 * (used + 1) > len(entries_C):
                    return False
                entries_C[slot] = entry
                used += 1
                break
            if (e ^ entry) & FINGERPRINT == 0:
                at = np.int64(e & uint64(0xFFFFFFFF)) - 1
                same = True
                for i in range(order):
                    same = same and code_at(tokens_T, lut, is_bytes, at + i) == code_at(tokens_T, lut, is_bytes, t + i)
                if same:
                    break
            slot = (slot + uint64(1)) & mask
        counts_C[slot] += 1
    return True


def _cuda(tokens_T, order, lut):
    import cupy

    T = len(tokens_T)
    if T < order:
        return cupy.empty(0, np.int64), cupy.empty(0, np.int64)
    fn = kernel("count/hash_count", "hash_count", TOKEN_BYTES=tokens_T.itemsize)
    table = device_lut(lut, tokens_T)
    capacity = 1 << 22  # threads in flight may overshoot the limit: far fewer than half of this
    while True:
        entries_C = cupy.zeros(capacity, np.uint64)
        counts_C = cupy.zeros(capacity, np.uint32)
        used = cupy.zeros(1, np.uint32)
        launch(
            fn,
            grid_for(T, 256),
            256,
            (tokens_T, T, table, np.int32(order), entries_C, counts_C, capacity, np.uint32(capacity // 2), used),
        )
        if int(used[0]) <= capacity // 2:
            break
        capacity *= 4
        del entries_C, counts_C  # free them before the larger ones are allocated
    slots = cupy.flatnonzero(entries_C)
    return (entries_C[slots] & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1, counts_C[slots].astype(np.int64)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return Zipf-distributed codes with line ends between; trigrams."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 1000).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    return {"tokens_T": tokens_T, "order": 3}
