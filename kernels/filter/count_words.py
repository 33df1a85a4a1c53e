"""Count the words of sentences between all white space of Unicode, as CCNet does."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .normalize_text import code_point, is_white


def count_words(text_B: Any, ends_S: Any) -> Any:
    """Return words_S (S,) int32, the length of Python's str.split of each sentence.

    text_B  (B,) uint8, UTF-8
    ends_S  (S,) int64, where each sentence ends
    """
    check.dtype(text_B, np.uint8)
    check.dtype(ends_S, np.int64)
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B, ends_S=ends_S)(text_B, ends_S)


@njit(nogil=True, cache=True)
def _cpu(text_B, ends_S):
    words_S = np.empty(len(ends_S), np.int32)
    i = 0
    for s in range(len(ends_S)):
        words, inside = 0, False
        while i < ends_S[s]:
            c, size = code_point(text_B, i)
            white = is_white(c)
            words += (not inside) & (not white)
            inside = not white
            i += size
        words_S[s] = words
    return words_S


def _cuda(text_B, ends_S):
    import cupy

    S = len(ends_S)
    words_S = cupy.empty(S, np.int32)
    if S:
        launch(kernel("filter/count_words", "count_words"), grid_for(S, 128), 128, (text_B, ends_S, S, words_S))
    return words_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences with white space of many kinds."""
    letters = [*"aaaaaaaa     \t\n\x1f", "\x85", "\xa0", "é", "\u2003", "\u200b", "\u3000", "中"]
    parts = ["".join(rng.choice(letters, n)).encode() for n in rng.integers(0, 40, size // 20)]
    return {
        "text_B": np.frombuffer(b"".join(parts), np.uint8),
        "ends_S": np.cumsum([len(part) for part in parts], dtype=np.int64),
    }
