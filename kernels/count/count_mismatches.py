"""Count tokens whose bytes differ from the word of their number, to detect all hash collisions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from mgpu_ngram.kernels.common.find_tokens import find_tokens, is_delimiter, random_text

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import load_u64
from ..launch import grid_for, kernel, launch
from .gather_words import gather_words
from .hash_words import hash_words
from .intern import WordTable, intern


def count_mismatches(text_B: Any, positions_T: Any, tokens_T: Any, offsets_V: Any, data: Any) -> int:
    """Return the number of tokens of a text that differ, byte for byte, from the word of their number.

    text_B           (B,) uint8
    positions_T      (T,) uint32, from `find_tokens`
    tokens_T         (T,) uint32, from `intern`: word number + 1, 0 for a newline
    offsets_V, data  (V + 1,) int64 and uint8, the words, from `gather_words`
    """
    check.dtype(tokens_T, np.uint32)
    run = pick(
        cpu=_cpu, cuda=_cuda, text_B=text_B, positions_T=positions_T, tokens_T=tokens_T, offsets_V=offsets_V, data=data
    )
    return int(run(text_B, positions_T, tokens_T, offsets_V, data))


@njit(nogil=True, cache=True)
def _cpu(text_B, positions_T, tokens_T, offsets_V, data):
    B, bad = len(text_B), 0
    for t in range(len(tokens_T)):
        if tokens_T[t] == 0:
            continue
        v = np.int64(tokens_T[t]) - 1
        at, start, end = np.int64(positions_T[t]), offsets_V[v], offsets_V[v + 1]
        while end - start > 8 and at + 8 <= B and load_u64(text_B, at) == load_u64(data, start):
            at, start = at + 8, start + 8
        if end - start <= 8 and at + 8 <= B and start + 8 <= len(data):  # most words: no loop
            unused = uint64(8 * (8 - end + start))
            differing = load_u64(text_B, at) ^ load_u64(data, start)
            if end > start and differing << unused == 0:
                at, start = at + end - start, end
        while start < end and at < B and text_B[at] == data[start]:
            at += 1
            start += 1
        bad += start < end or (at < B and not is_delimiter(text_B[at]))
    return bad


def _cuda(text_B, positions_T, tokens_T, offsets_V, data):
    import cupy

    T = len(tokens_T)
    mismatches = cupy.zeros(1, np.uint64)
    if T:
        launch(
            kernel("count/count_mismatches", "count_mismatches"),
            grid_for(T, 256),
            256,
            (text_B, len(text_B), positions_T, tokens_T, T, offsets_V, data, mismatches),
        )
    return mismatches[0]


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text in which a few tokens have another word's number."""
    text_B = random_text(rng, size)
    positions_T = find_tokens(text_B)
    tokens_T, new_N = intern(hash_words(text_B, positions_T), WordTable())
    offsets_V, data = gather_words(text_B, positions_T[new_N])
    if len(new_N) > 1:
        tokens_T[rng.integers(0, len(tokens_T), 5)] = 1
    return {"text_B": text_B, "positions_T": positions_T, "tokens_T": tokens_T, "offsets_V": offsets_V, "data": data}
