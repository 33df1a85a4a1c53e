"""The order of ids, for `number_symbols` and `vocabulary_ranges`: symbols by falling counts, then by bytes."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import LocalVocabulary
from mgpu_ngram.engine.count.merge_vocabularies import rows_at_once
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.count.word_keys import word_keys
from mgpu_ngram.kernels.dispatch import array_module, to_host

RADIX_BYTES = 64  # bytes by which radix sort orders words of equal count; longer ties are few
MAX_WORD_RANGES = 1 << 16  # ranges of words that are sorted one after another
SAMPLES_PER_RANGE = 64  # words for each range, from which its limits are taken
KEYS_AT_ONCE = 1 << 16  # words whose ranges are found at once


def rows_in_order(
    merged: LocalVocabulary, unit: str = "word", ids_as_words: bool = False, threads: int = 1
) -> Any:  # fmt: skip
    """Return row numbers. Words: by falling count, then by bytes. Token ids as words: by falling count, then by value.
    Bytes and other token ids: by value. Many words in host memory are sorted by several threads.
    """
    xp, V = array_module(merged.hash_V), len(merged.counts_V)
    if unit != "word":
        rows_V = xp.argsort(merged.data if unit == "byte" else merged.data.view("<u4"))
        return rows_V[xp.argsort(-merged.counts_V[rows_V], kind="stable")] if ids_as_words else rows_V
    ranges = -(-V // rows_at_once(merged.hash_V))
    if ranges <= 1:
        return _sorted_words(merged, xp.arange(V))
    ranges = min(ranges, MAX_WORD_RANGES)
    rows_V, ends = _rows_of_ranges(
        word_ranges(merged, range_limits(sample_keys(merged, ranges), ranges), threads), ranges
    )
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda r: _sorted_words(merged, rows_V[ends[r - 1] if r else 0 : ends[r]]), range(ranges)))
    return rows_V


@njit(nogil=True, cache=True)
def _rows_of_ranges(range_V, ranges):
    """Return (V,) int64, the rows by range, and (ranges,) int64, where each range ends."""
    place_R = np.zeros(ranges + 1, np.int64)
    for r in range_V:
        place_R[r + 1] += 1
    place_R = np.cumsum(place_R)[:-1].copy()
    rows_V = np.empty(len(range_V), np.int64)
    for v in range(len(range_V)):
        rows_V[place_R[range_V[v]]] = v
        place_R[range_V[v]] += 1
    return rows_V, place_R


def sample_keys(merged: LocalVocabulary, ranges: int) -> np.ndarray:
    """Return (3, S) uint64, the first keys of a sample of words, from which limits of ranges are chosen."""
    V = len(merged.counts_V)
    return _first_keys(merged, np.linspace(0, V - 1, min(V, SAMPLES_PER_RANGE * ranges)).astype(np.int64))


def range_limits(keys_S: np.ndarray, ranges: int) -> np.ndarray:
    """Return (3, ranges - 1) uint64, the limits of about equally large ranges of words in the order of their ids.

    The limits compare counts and the first 16 bytes, so words that are equal in these are in one range.
    """
    keys_S = keys_S[:, np.lexsort(keys_S[::-1])]
    return keys_S[:, np.arange(1, ranges) * keys_S.shape[1] // ranges]


def word_ranges(merged: LocalVocabulary, limits: np.ndarray, threads: int = 1) -> np.ndarray:
    """Return (V,) uint16: the range of each word."""
    V = len(merged.counts_V)
    range_V = np.empty(V, np.uint16)

    def find(first: int) -> None:
        rows_K = np.arange(first, min(first + KEYS_AT_ONCE, V))
        _find_ranges(_first_keys(merged, rows_K), limits, range_V[first : first + KEYS_AT_ONCE])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(find, range(0, V, KEYS_AT_ONCE)))
    return range_V


def _first_keys(merged: LocalVocabulary, rows_K: np.ndarray) -> np.ndarray:
    """Return (3, K) uint64 that sort words by falling count, then by their first 16 bytes."""
    counts_K = ~merged.counts_V[rows_K].view(np.uint64)
    return np.concatenate([counts_K[None], word_keys(merged.offsets_V, merged.data, rows_K, 0)])


@njit(nogil=True, cache=True)
def _find_ranges(keys, limits, range_K):
    """Set the number of limits (3, L), rising, that are not above each key (3, K)."""
    for k in range(keys.shape[1]):
        low, high = 0, limits.shape[1]
        while low < high:
            middle = (low + high) // 2
            c = 0
            while c < 2 and keys[c, k] == limits[c, middle]:
                c += 1
            if limits[c, middle] <= keys[c, k]:
                low = middle + 1
            else:
                high = middle
        range_K[k] = low


def _sorted_words(merged: LocalVocabulary, rows_V: Any) -> Any:
    """Return row numbers by the falling counts of their words, then by bytes. Overwrites `rows_V`."""
    xp = array_module(rows_V)
    # Positions in rows_V whose order is not final, and the number of the group of each: words that tie so far.
    at_K, group_K = xp.arange(len(rows_V)), ~merged.counts_V[rows_V].view(np.uint64)
    for first_byte in range(0, RADIX_BYTES, 16):
        rows_K = rows_V[at_K]
        keys = word_keys(merged.offsets_V, merged.data, rows_K, first_byte)
        columns = radix_sort(xp.concatenate([group_K[None], keys, rows_K.view(np.uint64)[None]]), 3 * 64)
        rows_V[at_K] = columns[3].view(np.int64)
        new_K = xp.ones(len(at_K), bool)
        new_K[1:] = (columns[:3, 1:] != columns[:3, :-1]).any(axis=0)
        tied_K = ~new_K
        tied_K[:-1] |= ~new_K[1:]
        at_K, group_K = at_K[tied_K], xp.cumsum(new_K)[tied_K].astype(np.uint64)
        if not len(at_K):
            return rows_V
    offsets_K, data = (to_host(a) for a in take_words(merged.offsets_V, merged.data, rows_V[at_K]))
    groups = to_host(group_K).tolist()
    words = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets_K.tolist())]
    by_word = sorted(range(len(words)), key=lambda k: (groups[k], words[k]))
    rows_V[at_K] = rows_V[at_K][xp.asarray(by_word)]
    return rows_V
