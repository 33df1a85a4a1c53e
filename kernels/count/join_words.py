"""Join equal words of several vocabularies: sum their counts and find their first occurrence."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch


def join_words(
    hash_R: Any, rows_R: Any, offsets_V: Any, data: Any, counts_V: Any, first_source_V: Any, first_offset_V: Any
) -> tuple[Any, Any, int]:
    """Return the first row and the total count of each distinct hash, and the number of rows whose word differs.

    hash_R           (R,) uint64, ascending
    rows_R           (R,) int64, the row of a word with each hash, 0 to V - 1
    offsets_V, data  (V + 1,) int64 and uint8, the words
    counts_V         (V,) int64
    first_source_V   (V,) int32 and
    first_offset_V   (V,) int64: where a word first occurs; compared by source, then by offset

    Returns rows_U (U,) int64 (for equal places the first in rows_R), counts_U (U,) int64, and the number of rows that
    differ, byte for byte, from the first word of equal hash. That number is 0 unless hashes collide.
    """
    check.dtype(hash_R, np.uint64)
    check.dtype(rows_R, np.int64)
    check.dtype(counts_V, np.int64)
    check.dtype(first_source_V, np.int32)
    check.dtype(first_offset_V, np.int64)
    arrays = {
        "hash_R": hash_R, "rows_R": rows_R, "offsets_V": offsets_V, "data": data, "counts_V": counts_V,
        "first_source_V": first_source_V, "first_offset_V": first_offset_V,
    }  # fmt: skip
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(*arrays.values())


@njit(nogil=True, cache=True)
def _cpu(hash_R, rows_R, offsets_V, data, counts_V, first_source_V, first_offset_V):
    R = len(rows_R)
    rows_U, counts_U = np.empty(R, np.int64), np.empty(R, np.int64)
    u, word, mismatches = -1, np.int64(0), 0
    for r in range(R):
        row = rows_R[r]
        if r == 0 or hash_R[r] != hash_R[r - 1]:
            u, word = u + 1, row
            rows_U[u], counts_U[u] = row, counts_V[row]
            continue
        counts_U[u] += counts_V[row]
        source, known = first_source_V[row], first_source_V[rows_U[u]]
        if source < known or (source == known and first_offset_V[row] < first_offset_V[rows_U[u]]):
            rows_U[u] = row
        mismatches += not _same(offsets_V, data, word, row)
    return rows_U[: u + 1].copy(), counts_U[: u + 1].copy(), mismatches


@njit(nogil=True, cache=True, inline="always")
def _same(offsets_V, data, a, b):
    at, other, length = offsets_V[a], offsets_V[b], offsets_V[a + 1] - offsets_V[a]
    if offsets_V[b + 1] - other != length:
        return False
    i = 0
    while i < length and data[at + i] == data[other + i]:
        i += 1
    return i == length


def _cuda(hash_R, rows_R, offsets_V, data, counts_V, first_source_V, first_offset_V):
    import cupy

    R = len(rows_R)
    new_R = cupy.ones(R, bool)
    new_R[1:] = hash_R[1:] != hash_R[:-1]
    starts_U = cupy.flatnonzero(new_R)
    U = len(starts_U)
    rows_U, counts_U, mismatches = cupy.empty(U, np.int64), cupy.empty(U, np.int64), cupy.zeros(1, np.uint64)
    if U:
        words = offsets_V, data, counts_V, first_source_V, first_offset_V
        fn = kernel("count/join_words", "join_words")
        launch(fn, grid_for(U, 256), 256, (starts_U, U, rows_R, R, *words, rows_U, counts_U, mismatches))
    return rows_U, counts_U, int(mismatches[0])


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of a few hundred words; a few hashes stand for two words."""
    words = np.sort(rng.integers(0, 1 + size // 4, size))
    lengths_V = 1 + words % 5
    offsets_V = np.concatenate([[0], np.cumsum(lengths_V)]).astype(np.int64)
    data = (np.repeat(words, lengths_V) % 251).astype(np.uint8)
    rows_R = rng.permutation(size)
    rows_R = rows_R[np.argsort(words[rows_R] // 2, kind="stable")]
    return {
        "hash_R": (words[rows_R] // 2).astype(np.uint64), "rows_R": rows_R, "offsets_V": offsets_V, "data": data,
        "counts_V": rng.integers(0, 9, size), "first_source_V": rng.integers(0, 3, size).astype(np.int32),
        "first_offset_V": rng.integers(0, 9, size),
    }  # fmt: skip
