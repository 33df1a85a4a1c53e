"""Find the suffix of each n-gram (without its first word) among the children of the suffix of its history."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import int64, uint32

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch

PREFETCHED_HISTORIES = 16  # histories of a CPU whose suffixes' children are fetched ahead


def find_suffixes(word_R: Any, history_R: Any, word_M: Any, first_L1: Any, suffix_M: Any) -> tuple[Any, Any]:
    """Return the row of the suffix of each n-gram in the order below, and the number of n-grams with each suffix.

    word_R, history_R  (R,) uint32, from `link_histories`, for the n-grams of order n, at least 3
    word_M, first_L1   (M,) and (L + 1,) uint32, the same for order n - 1
    suffix_M           (M,) uint32, the rows in order n - 2 of the suffixes of the n-grams of order n - 1

    Returns suffix_R (R,) uint32, and left_M (M,) uint32: the number of distinct words before each n-gram of order
    n - 1. The suffix of an n-gram is the child, by the n-gram's last word, of the suffix of its history. Raises
    ValueError if an n-gram's suffix is missing.
    """
    arrays = {
        "word_R": word_R, "history_R": history_R, "word_M": word_M, "first_L1": first_L1, "suffix_M": suffix_M
    }  # fmt: skip
    for array in arrays.values():
        check.dtype(array, np.uint32)
    suffix_R, left_M, missing = pick(cpu=_cpu, cuda=_cuda, **arrays)(*arrays.values())
    if missing:
        raise ValueError(f"{missing} of {len(suffix_R)} n-grams lack their suffix; the counts are incomplete")
    return suffix_R, left_M


@njit(nogil=True, cache=True)
def _cpu(word_R, history_R, word_M, first_L1, suffix_M):
    R, M, missing = len(word_R), len(word_M), 0
    suffix_R, left_M = np.empty(R, np.uint32), np.zeros(M, np.uint32)
    history, at, end = int64(-1), int64(0), int64(0)
    for r in range(R):
        far, near = r + 2 * PREFETCHED_HISTORIES, r + PREFETCHED_HISTORIES
        if far < R:
            prefetch(first_L1, int64(suffix_M[history_R[far]]))
        if near < R:
            prefetch(word_M, int64(first_L1[suffix_M[history_R[near]]]))
        word = word_R[r]
        if int64(history_R[r]) != history:
            history = int64(history_R[r])
            lower = suffix_M[history]
            at, end = int64(first_L1[lower]), int64(first_L1[lower + 1])
        # Words of a history rise, so the next one is from here on: search with doubling steps.
        step, high = int64(1), at
        while high < end and word_M[high] < word:
            at, high, step = high + 1, high + step, 2 * step
        high = min(high, end)
        while at < high:
            middle = (at + high) // 2
            if word_M[middle] < word:
                at = middle + 1
            else:
                high = middle
        if at < end and word_M[at] == word:
            suffix_R[r] = uint32(at)
            left_M[at] += uint32(1)
        else:
            missing += 1
    return suffix_R, left_M, missing


def _cuda(word_R, history_R, word_M, first_L1, suffix_M):
    import cupy

    R = len(word_R)
    suffix_R, left_M = cupy.empty(R, np.uint32), cupy.zeros(len(word_M), np.uint32)
    missing = cupy.zeros(1, np.uint32)
    if R:
        fn = kernel("estimate/find_suffixes", "find_suffixes")
        args = (word_R, history_R, R, word_M, first_L1, suffix_M, suffix_R, left_M, missing)
        launch(fn, grid_for(R, 256), 256, args)
    return suffix_R, left_M, int(missing[0])


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the links of the trigrams and bigrams of a random text, one word of which is in a third of all places."""
    V = 2 + size // 10
    text = rng.integers(0, V, size + 2)
    text[rng.random(len(text)) < 0.3] = V // 2
    bigrams, trigrams = (sorted({*zip(*(text[i:].tolist() for i in range(n)), strict=False)}) for n in (2, 3))
    rows = {bigram: row for row, bigram in enumerate(bigrams)}

    word_M = np.array([last for _, last in bigrams], np.uint32)
    return {
        "word_R": np.array([last for *_, last in trigrams], np.uint32),
        "history_R": np.array([rows[first, second] for first, second, _ in trigrams], np.uint32),
        "word_M": word_M,
        "first_L1": np.searchsorted([first for first, _ in bigrams], np.arange(V + 1)).astype(np.uint32),
        "suffix_M": word_M,
    }
