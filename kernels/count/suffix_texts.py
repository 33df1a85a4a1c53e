"""Write n-grams as text without the words that they share with the n-gram before (DELTA_BYTE_ARRAY), for pages of
Parquet files. https://github.com/apache/parquet-format, Encodings.md, describes the format.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..intrinsics import load_u64, prefetch, store_u64
from ..launch import grid_for, kernel, launch

SLOT = 16  # bytes that hold a word of less than 15 bytes and a space; the last byte is its length, 15 for a longer word
MAX_SLOTS = 1 << 20  # for the first words, the most frequent ones of a vocabulary: 16 MB
AHEAD, FETCHED = 24, 3  # a CPU fetches the last words of a row so many rows ahead
SPACE = 32
WORD_BYTES = 12  # bytes of a usual word, with room to spare
STRING_BYTES = 2**31 - 1  # limit of 32-bit offsets


class Texts(NamedTuple):
    """R texts, each a prefix of the text before and a suffix.

    prefix_R, suffix_R  (R,) int64, contiguous: bytes of both; the first prefix has none
    data                uint8, the suffixes
    """

    prefix_R: Any
    suffix_R: Any
    data: Any


class WordTexts(NamedTuple):
    """The texts of V words: offsets and bytes as `suffix_texts` has them, and slots of the first words, (S * SLOT,)
    uint8: one read of memory finds a word and its length.
    """

    slots: Any
    offsets_V: Any
    data_V: Any


def suffix_texts(keys_CR: Any, order: int, bits: int, offsets_V: Any, data_V: Any, starts_P1: Any) -> Texts:
    """Return n-grams as text, their words separated by spaces.

    keys_CR    (C, R) uint64, sorted within each page: n-grams of `order` codes of `bits` bits, as in
               `core.counts.tables.Table`; code v + 1 is word v
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
    ids_NR, words = np.empty((order, keys_CR.shape[1]), np.uint32), word_texts(offsets_V, data_V)
    _check_ids(unpack_ids(keys_CR, bits, ids_NR), len(offsets_V) - 1)
    pages = [Texts(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))]
    for start, end in pairwise(starts_P1.tolist()):
        pages.append(join_texts(np.ascontiguousarray(ids_NR[:, start:end]), words, np.iinfo(np.int64).max))
    return Texts(*map(np.concatenate, zip(*pages, strict=True)))


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


def word_texts(offsets_V: np.ndarray, data_V: np.ndarray) -> WordTexts:
    """Return the texts of words, which `join_texts` copies."""
    slots_S16 = np.zeros((min(len(offsets_V) - 1, MAX_SLOTS), SLOT), np.uint8)
    _fill_slots(slots_S16, read_only(offsets_V), read_only(data_V))
    return WordTexts(*map(read_only, (slots_S16.reshape(-1), offsets_V, data_V)))


@njit(nogil=True, cache=True)
def _fill_slots(slots_S16, offsets_V, data_V):
    for v in range(len(slots_S16)):
        start, length = offsets_V[v], offsets_V[v + 1] - offsets_V[v]
        if length < SLOT - 1:
            for i in range(length):
                slots_S16[v, i] = data_V[start + i]
            slots_S16[v, length] = SPACE
        slots_S16[v, SLOT - 1] = min(length, SLOT - 1)


def join_texts(ids_NR: np.ndarray, words: WordTexts, limit_bytes: int, share: bool = True) -> Texts:
    """Return the texts of the first rows of words, separated by spaces: as many rows as fit `limit_bytes` of whole
    texts, but at least one if it fits a string.

    ids_NR  (N, R) uint32, the words of R rows
    share   leave out the leading words that a row shares with the row before, but never all words; the space after
            them is left out with them
    """
    N, R = ids_NR.shape
    room = np.empty(WORD_BYTES * N * R + 4 * SLOT, np.uint8)  # pages that are never written take no memory
    texts = Texts(np.empty(R, np.int64), np.empty(R, np.int64), room)
    done, ends_N1 = np.zeros(3, np.int64), np.zeros(N + 1, np.int64)
    while not _join(ids_NR, words, limit_bytes, share, texts, done, ends_N1):
        texts = texts._replace(data=np.concatenate([texts.data, np.empty_like(texts.data)]))
    return Texts(texts.prefix_R[: done[0]], texts.suffix_R[: done[0]], texts.data[: done[1]])


@njit(nogil=True, cache=True)
def _join(ids_NR, words, limit_bytes, share, texts, done, ends_N1):
    """Continue to write texts. Return whether all texts are written, or all texts that fit the limit; if not,
    `texts.data` has no room for the next row.

    done     rows, bytes of `data` and bytes of whole texts so far
    ends_N1  where the words of the last row end, each with a space
    """
    slots, offsets_V, data_V = words
    prefix_R, suffix_R, data = texts
    N, R = ids_NR.shape
    first, at, total = done
    for r in range(first, R):
        if r + AHEAD < R:
            for n in range(max(N - FETCHED, 0), N):
                prefetch(slots, min(SLOT * np.int64(ids_NR[n, r + AHEAD]), len(slots) - 1))
        begin, shared = at, 0
        while share and r and shared < N - 1 and ids_NR[shared, r] == ids_NR[shared, r - 1]:
            shared += 1
        for n in range(shared, N):
            v = np.int64(ids_NR[n, r])
            last, length = uint64(0), np.int64(SLOT - 1)
            if SLOT * v < len(slots):
                last = load_u64(slots, SLOT * v + 8)
                length = np.int64(last >> uint64(56))
            held = length < SLOT - 1
            if not held:
                length, rest = offsets_V[v + 1] - offsets_V[v], np.int64(0)
                for m in range(n, N):  # a long word is copied only if the whole row fits
                    w = np.int64(ids_NR[m, r])
                    rest += offsets_V[w + 1] - offsets_V[w] + 1
                row_bytes = ends_N1[n] + rest - 1
                if total + row_bytes > limit_bytes and (r > 0 or row_bytes > STRING_BYTES):
                    return True
            if at + length + 2 * SLOT > len(data):
                return False
            if held:  # the next word overwrites the bytes after the space
                store_u64(data, at, load_u64(slots, SLOT * v))
                store_u64(data, at + 8, last)
            else:
                for i in range(length):
                    data[at + i] = data_V[offsets_V[v] + i]
                data[at + length] = SPACE
            at += length + 1
            ends_N1[n + 1] = ends_N1[n] + length + 1
        at -= 1
        if total + ends_N1[N] - 1 > limit_bytes and (r > 0 or ends_N1[N] - 1 > STRING_BYTES):
            return True
        total += ends_N1[N] - 1
        prefix_R[r], suffix_R[r] = ends_N1[shared], at - begin
        done[0], done[1], done[2] = r + 1, at, total
    return True


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
