"""Count the words of sentences, separated by Unicode white space, as CCNet does."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.ascii import HIGH_BITS
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import load_u64
from ..launch import grid_for, kernel, launch
from .normalize_text import code_point, is_white


def count_words(text_B: Any, ends_S: Any, ascii_S: Any) -> Any:
    """Return words_S (S,) int32: the length of Python's str.split of each sentence; ascii_S for ASCII sentences.

    text_B   (B,) uint8, UTF-8
    ends_S   (S,) int64, where each sentence ends
    ascii_S  (S,) int32, number of words of sentences in ASCII, which the caller has counted
    """
    check.dtype(text_B, np.uint8)
    check.dtype(ends_S, np.int64)
    check.dtype(ascii_S, np.int32)
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B, ends_S=ends_S, ascii_S=ascii_S)(text_B, ends_S, ascii_S)


@njit(nogil=True, cache=True)
def _cpu(text_B, ends_S, ascii_S):
    words_S = np.empty(len(ends_S), np.int32)
    i = 0
    for s in range(len(ends_S)):
        first, end = i, ends_S[s]
        while i + 8 <= end and not load_u64(text_B, i) & HIGH_BITS:
            i += 8
        while i < end and text_B[i] < 0x80:
            i += 1
        if i == end:
            words_S[s] = ascii_S[s]
            continue
        i = first
        words, inside = 0, False
        while i < end:
            c, size = code_point(text_B, i)
            white = is_white(c)
            words += (not inside) & (not white)
            inside = not white
            i += size
        words_S[s] = words
    return words_S


def _cuda(text_B, ends_S, ascii_S):
    import cupy

    S = len(ends_S)
    words_S = cupy.empty(S, np.int32)
    if S:
        fn = kernel("filter/count_words", "count_words")
        launch(fn, grid_for(32 * S, 128), 128, (text_B, ends_S, S, ascii_S, words_S))
    return words_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences with white space of many kinds."""
    letters = [*"aaaaaaaa     \t\n\x1f", "\x85", "\xa0", "é", "\u2003", "\u200b", "\u3000", "中"]
    parts = ["".join(rng.choice(letters[: rng.integers(9, 99)], n)).encode() for n in rng.integers(0, 40, size // 20)]
    return {
        "text_B": np.frombuffer(b"".join(parts), np.uint8),
        "ends_S": np.cumsum([len(part) for part in parts], dtype=np.int64),
        "ascii_S": rng.integers(0, 9, len(parts), np.int32),
    }
