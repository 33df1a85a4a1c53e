"""Select the windows of some shards from a text, and pack them into sortable keys, last context word first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..launch import kernel, launch

THREADS, ITEMS = 256, 16
TILE = {"THREADS": THREADS, "ITEMS": ITEMS}
VARIANTS = (TILE,)
MAX_SELECTED = 1024  # shards of one call; as in select_windows.cu
SPLIT = 0x8000  # added to the shard of a split word; as in select_windows.cu


def select_windows(
    tokens_T: Any, shard_V: Any, ends: tuple[int, int], order: int, bits: int, shards: tuple[int, int]
) -> tuple[Any, np.ndarray]:
    """Return one key for each position of a text whose n-grams belong to some shards.

    tokens_T  (T,) uint32 codes; 0 ends every window
    shard_V   (V,) uint16: the shard of the n-grams whose last context word has code v + 1. With SPLIT added, the word
              before it selects the shard of the n-grams of order 3 and more; if that is not the shard of the bigram,
              the bigram has a row of its own
    ends      (first, past the last) position where windows end
    order     most words of a window, N, at least 2
    bits      bits per code
    shards    (first, past the last) shard; at most MAX_SELECTED

    Returns (columns (C, R) uint64, starts_S1 (S + 1,) int64 in host memory): C = ceil(order * bits / 64), and the rows
    of the s-th selected shard are starts_S1[s] to starts_S1[s + 1] - 1, in any order. A row has, for position t, the
    codes of t - 1, t, t - 2, t - 3, ..., t - order + 1, up to the first code 0. All n-grams that end at t are prefixes
    of its key: the prefix of n codes is the n-gram of order n. So sorted keys have each n-gram below its suffix.
    """
    check.dtype(tokens_T, np.uint32)
    check.dtype(shard_V, np.uint16)
    if order < 2:
        raise ValueError(f"order {order} has no context word; only windows of 2 words and more are selected")
    if not 0 <= shards[1] - shards[0] <= MAX_SELECTED:
        raise ValueError(f"{shards[1] - shards[0]} shards are outside 0..{MAX_SELECTED}; select them in several calls")
    first, last = max(1, ends[0]), min(ends[1], len(tokens_T))
    run = pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T, shard_V=shard_V)
    check.contiguous(tokens_T=tokens_T, shard_V=shard_V)
    return run(tokens_T, shard_V, (first, max(first, last)), order, bits, shards)


def _cpu(tokens_T, shard_V, ends, order, bits, shards):
    tokens_T, (first, last) = read_only(tokens_T), ends
    whole_E, bigram_E = np.empty((2, last - first), np.int16)
    starts_S1 = np.zeros(shards[1] - shards[0] + 1, np.int64)
    bigrams = _find(tokens_T, read_only(shard_V), first, shards, whole_E, bigram_E, starts_S1[1:])
    starts_S1 = starts_S1.cumsum()
    columns, next_S = np.empty((check.num_columns(order, bits), starts_S1[-1]), np.uint64), starts_S1[:-1].copy()
    _pack(tokens_T, first, whole_E, order, bits, next_S, columns)
    if bigrams:
        _pack(tokens_T, first, bigram_E, 2, bits, next_S, columns)
    return columns, starts_S1


@njit(nogil=True, cache=True)
def _find(tokens_T, shard_V, begin, shards, whole_E, bigram_E, rows_S):
    """Find the shards, among the selected ones or -1, of the windows that end from `begin` >= 1 on, and of bigrams that
    need a row of their own; add up the rows of each shard. Return the number of these bigrams.
    """
    first, S = shards[0], len(rows_S)
    bigrams = 0
    for e in range(len(whole_E)):
        t = begin + e
        context, whole, bigram = tokens_T[t - 1], np.int64(-1), np.int64(-1)
        if context and tokens_T[t]:
            whole = np.int64(shard_V[np.int64(context) - 1])
            if whole >= SPLIT:
                bigram = whole - SPLIT - first
                before = tokens_T[t - 2] if t >= 2 else np.uint32(0)
                whole = np.int64(shard_V[np.int64(before) - 1]) % SPLIT if before else np.int64(-1)
                if bigram != whole - first and 0 <= bigram < S:
                    rows_S[bigram] += 1
                    bigrams += 1
                else:
                    bigram = np.int64(-1)
            whole -= first
            if 0 <= whole < S:
                rows_S[whole] += 1
            else:
                whole = np.int64(-1)
        whole_E[e], bigram_E[e] = whole, bigram
    return bigrams


@njit(nogil=True, cache=True)
def _pack(tokens_T, begin, shard_E, words, bits, next_S, columns):
    """Write the rows of the windows of selected shards. One loop with `_find` took three times as long."""
    C = len(columns)
    for e in range(len(shard_E)):
        if shard_E[e] < 0:
            continue
        t, r = begin + e, next_S[shard_E[e]]
        next_S[shard_E[e]] = r + 1
        column, used, c = uint64(0), 0, 0
        for n in range(words):
            at = t - 1 if n == 0 else t if n == 1 else t - n
            code = uint64(tokens_T[at]) if at >= 0 else uint64(0)
            if code == 0:
                break
            shift = 64 - used - bits
            if shift > 0:
                column |= code << uint64(shift)
                used += bits
            else:
                columns[c, r] = column | (code >> uint64(-shift))
                c += 1
                used = -shift
                column = code << uint64(64 - used) if used else uint64(0)
        if c < C:
            columns[c, r] = column
            c += 1
        while c < C:
            columns[c, r] = 0
            c += 1


def _cuda(tokens_T, shard_V, ends, order, bits, shards):
    import cupy

    first, last = ends
    C, S, tiles = check.num_columns(order, bits), shards[1] - shards[0], -(-(last - first) // (THREADS * ITEMS))
    if not tiles or not S:
        return cupy.empty((C, 0), np.uint64), np.zeros(S + 1, np.int64)
    rows_SW = cupy.empty((S, tiles), np.int64)
    text = tokens_T, shard_V, first, last, np.int32(shards[0]), np.int32(S)
    launch(kernel("count/select_windows", "count_windows", **TILE), tiles, THREADS, (*text, rows_SW))
    ends_SW = cupy.cumsum(rows_SW).reshape(S, tiles)
    starts_S1 = np.concatenate([[0], ends_SW[:, -1].get()])
    R = int(starts_S1[-1])
    columns = cupy.empty((C, R), np.uint64)
    sizes = np.int32(order), np.int32(bits), np.int32(C), R
    fn = kernel("count/select_windows", "select_windows", **TILE)
    ends_SW -= rows_SW
    launch(fn, tiles, THREADS, (*text, ends_SW, *sizes, columns))
    return columns, starts_S1


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text of lines of about 20 words, three of nine shards, and two frequent words that are split."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 5_000).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    shard_V = rng.integers(0, 9, 5_000).astype(np.uint16)
    shard_V[[0, 3]] += SPLIT
    return {
        "tokens_T": tokens_T, "shard_V": shard_V, "ends": (size % 5, size - size % 3), "order": 2 + size % 5,
        "bits": 19, "shards": (1, 4),
    }  # fmt: skip
