"""Write n-grams as text without the words that they share with the n-gram before (DELTA_BYTE_ARRAY), for pages of
Parquet files. https://github.com/apache/parquet-format, Encodings.md, describes the format.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..intrinsics import load_u64, store_u64
from ..launch import grid_for, kernel, launch

JOINED_ROWS = 64  # rows whose words are looked up before they are copied
STRING_BYTES = 2**31 - 1  # limit of 32-bit offsets


class Texts(NamedTuple):
    """R texts, each a prefix of the text before and a suffix.

    prefix_R, suffix_R  (R,) int64, contiguous: bytes of both; the first prefix has none
    data                uint8, the suffixes
    """

    prefix_R: Any
    suffix_R: Any
    data: Any


def suffix_texts(keys_CR: Any, order: int, bits: int, offsets_V: Any, data_V: Any, starts_P1: Any) -> Texts:
    """Return n-grams as text, their words separated by spaces.

    keys_CR    (C, R) uint64, sorted within each page: n-grams of `order` codes of `bits` bits, as in
               `core.tables.Table`; code v + 1 is word v
    offsets_V  (V + 1,) int64 and
    data_V     uint8: word v is data_V[offsets_V[v]:offsets_V[v + 1]]
    starts_P1  (P + 1,) int64, rising: page p has the rows starts_P1[p] to starts_P1[p + 1] - 1; its first row has no
               prefix

    A prefix is the leading words of the row before, each with the space after it, but never all words. Raises
    ValueError if a code is not 1 to V.
    """
    check.dtype(keys_CR, np.uint64)
    check.dtype(offsets_V, np.int64)
    check.dtype(data_V, np.uint8)
    check.dtype(starts_P1, np.int64)
    run = pick(cpu=_cpu, cuda=_cuda, keys_CR=keys_CR, offsets_V=offsets_V, data_V=data_V, starts_P1=starts_P1)
    return run(keys_CR, order, bits, offsets_V, data_V, starts_P1)


def _cpu(keys_CR, order, bits, offsets_V, data_V, starts_P1):
    R = keys_CR.shape[1]
    ids_NR = np.empty((order, R), np.uint32)
    _check_ids(unpack_ids(keys_CR, bits, ids_NR), len(offsets_V) - 1)
    shared_R, prefix_R, suffix_R = np.empty(R, np.uint16), np.empty(R, np.int64), np.empty(R, np.int64)
    for start, end in zip(starts_P1[:-1].tolist(), starts_P1[1:].tolist(), strict=True):
        ids = np.ascontiguousarray(ids_NR[:, start:end])
        arrays = shared_R[start:end], prefix_R[start:end], suffix_R[start:end]
        place_suffixes(ids, offsets_V, np.iinfo(np.int64).max, *arrays)
    offsets_R = np.zeros(R + 1, np.int64)
    np.cumsum(suffix_R, out=offsets_R[1:])
    data = np.empty(offsets_R[-1], np.uint8)
    join_suffixes(ids_NR, offsets_V, data_V, shared_R, offsets_R, data)
    return Texts(prefix_R, suffix_R, data)


def _check_ids(greatest, V):
    if greatest >= V:
        raise ValueError(f"n-grams have codes outside 1..{V}, the codes of their vocabulary")


@njit(nogil=True, cache=True)
def unpack_ids(keys, bits, ids_NR):
    """Set the ids of all words of keys (their codes less 1); return the greatest, 2**32 - 1 for a code of 0.

    Does the work of `words_at` in one call: otherwise many writing threads would wait for the GIL after each step.
    """
    mask, largest = uint64((1 << bits) - 1), np.uint32(0)
    for n in range(len(ids_NR)):
        column, used = divmod(n * bits, 64)
        spare = 64 - used - bits  # bits of this column below the code; negative if the code continues in the next one
        for r in range(ids_NR.shape[1]):
            code = keys[column, r] >> uint64(spare) if spare >= 0 else (
                (keys[column, r] << uint64(-spare)) | (keys[column + 1, r] >> uint64(64 + spare)))  # fmt: skip
            ids_NR[n, r] = np.uint32(code & mask) - np.uint32(1)
            largest = max(largest, ids_NR[n, r])
    return largest


@njit(nogil=True, cache=True)
def place_suffixes(ids_NR, offsets_V, limit_bytes, shared_R, prefix_R, suffix_R):
    """Set how many words each row shares with the row before, not all, and the bytes of these and of the others.

    The space after a shared word belongs to the prefix. Returns how many rows fit the limit of whole texts, at least
    one that fits a string.
    """
    N, R = ids_NR.shape
    ends_N = np.zeros(N + 1, np.int64)  # of the words of a row, each with a space
    total = np.int64(0)
    for r in range(R):
        shared = 0
        while r and shared < N - 1 and ids_NR[shared, r] == ids_NR[shared, r - 1]:
            shared += 1
        for n in range(shared, N):
            v = uint64(ids_NR[n, r])
            ends_N[n + 1] = ends_N[n] + offsets_V[v + uint64(1)] - offsets_V[v] + 1
        total += ends_N[N] - 1
        if total > limit_bytes and (r > 0 or total > STRING_BYTES):
            return r
        shared_R[r], prefix_R[r], suffix_R[r] = shared, ends_N[shared], ends_N[N] - 1 - ends_N[shared]
    return R


@njit(nogil=True, cache=True)
def join_suffixes(ids_NR, offsets_V, data_V, shared_R, offsets_R, data):
    """Write the text of every row without its first shared words, separated by spaces, to `data`, which ends with the
    last row.

    Looks up JOINED_ROWS rows before it copies them, and copies words 16 bytes at once, so that no copy waits for the
    length of a word: 3 times as fast as byte by byte.
    """
    N, R = len(ids_NR), len(offsets_R) - 1
    starts, lengths = np.empty((JOINED_ROWS, N), np.int64), np.empty((JOINED_ROWS, N), np.int64)
    for first in range(0, R, JOINED_ROWS):
        rows = min(JOINED_ROWS, R - first)
        for r in range(rows):
            for n in range(shared_R[first + r], N):
                v = uint64(ids_NR[n, first + r])
                starts[r, n] = offsets_V[v]
                lengths[r, n] = offsets_V[v + uint64(1)] - offsets_V[v]
        at = offsets_R[first]
        for r in range(rows):
            shared = shared_R[first + r]
            for n in range(shared, N):
                if n > shared:
                    data[at] = 32
                    at += 1
                start, length, copied = starts[r, n], lengths[r, n], 0
                if start + 16 <= len(data_V) and at + 16 <= len(data):  # the next copy overwrites the excess
                    store_u64(data, at, load_u64(data_V, start))  # type: ignore[call-arg]
                    store_u64(data, at + 8, load_u64(data_V, start + 8))  # type: ignore[call-arg]
                    copied = 16
                for i in range(copied, length):
                    data[at + i] = data_V[start + i]
                at += length


def _cuda(keys_CR, order, bits, offsets_V, data_V, starts_P1):
    import cupy

    R, V = keys_CR.shape[1], len(offsets_V) - 1
    prefix_R, suffix_R, most = cupy.empty(R, np.int64), cupy.empty(R, np.int64), cupy.zeros(1, np.uint32)
    if R == 0:
        return Texts(prefix_R, suffix_R, cupy.empty(0, np.uint8))
    keys_CR, stride = check.column_stride(keys_CR)
    args = keys_CR, stride, len(keys_CR), R, bits, order, starts_P1, len(starts_P1) - 1, offsets_V
    blocks = grid_for(R, 256)
    launch(kernel("count/suffix_texts", "suffix_lengths"), blocks, 256, (*args, V, prefix_R, suffix_R, most))
    _check_ids(int(most[0]), V)
    ends_R = cupy.cumsum(suffix_R)
    data = cupy.empty(int(ends_R[-1]), np.uint8)
    launch(kernel("count/suffix_texts", "suffix_texts"), blocks, 256, (*args, data_V, suffix_R, ends_R, data))
    return Texts(prefix_R, suffix_R, data)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return trigrams of words of 0 to 19 bytes, sorted, in pages of 1, 2, 5 and more rows."""
    V, order, bits = 1 + size // 3, 3, 25
    lengths_V = rng.integers(0, 20, V)
    offsets_V = np.concatenate([[0], np.cumsum(lengths_V)]).astype(np.int64)
    codes_NR = rng.integers(1, 1 + np.minimum(V, [[5], [9], [V]]), (order, size), np.uint64)
    codes_NR = codes_NR[:, np.lexsort(codes_NR[::-1])]
    keys_CR = np.zeros((2, size), np.uint64)
    keys_CR[0] = codes_NR[0] << uint64(39) | codes_NR[1] << uint64(14) | codes_NR[2] >> uint64(11)
    keys_CR[1] = codes_NR[2] << uint64(53)
    starts = [0, *(int(n) for n in np.cumsum([1, 2, 5, 129, 300]) if n < size), size]
    return {
        "keys_CR": keys_CR, "order": order, "bits": bits, "offsets_V": offsets_V,
        "data_V": rng.integers(0, 256, offsets_V[-1], np.uint8),
        "starts_P1": np.array(starts if size else [0], np.int64),
    }  # fmt: skip
