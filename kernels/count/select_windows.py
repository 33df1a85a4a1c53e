"""Select the windows of some shards from a text, and pack them into sortable keys, last context word first."""

from __future__ import annotations

from collections.abc import Sequence
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
MAX_SELECTED = 256  # shards of one call; as in select_windows.cu


def select_windows(
    tokens_T: Any, shard_V: Any, ends: tuple[int, int], order: int, bits: int, shards: tuple[int, int],
    split: Sequence[int] = (),
) -> tuple[Any, np.ndarray]:  # fmt: skip
    """Return one key for each position of a text whose n-grams belong to some shards.

    tokens_T  (T,) uint32 codes; 0 ends every window
    shard_V   (V,) uint16: the shard of the n-grams whose last context word has code v + 1
    ends      (first, past the last) position where windows end
    order     most words of a window, N, at least 2
    bits      bits per code
    shards    (first, past the last) shard; at most MAX_SELECTED
    split     at most 16 words. If the last context word is one of them, the word before it selects the shard of the
              n-grams of order 3 and more. If that is not the shard of the bigram, the bigram has a row of its own

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
    codes_N = np.array(split, np.uint32) + np.uint32(1)
    return run(tokens_T, shard_V, (first, max(first, last)), order, bits, shards, codes_N)


def _cpu(tokens_T, shard_V, ends, order, bits, shards, codes_N):
    text = *map(read_only, (tokens_T, shard_V, codes_N)), ends, shards
    starts_S1 = np.zeros(shards[1] - shards[0] + 1, np.int64)
    _count(*text, starts_S1[1:])
    starts_S1 = starts_S1.cumsum()
    columns = np.empty((check.num_columns(order, bits), starts_S1[-1]), np.uint64)
    _select(*text, starts_S1[:-1].copy(), (order, bits), columns)
    return columns, starts_S1


@njit(nogil=True, inline="always")
def _shards_at(tokens_T, shard_V, codes_N, t):
    """Return the shards of the window that ends at t >= 1, and of its bigram if that needs a row of its own; or -1."""
    context = tokens_T[t - 1]
    if context == 0 or tokens_T[t] == 0:
        return -1, -1
    shard = np.int64(shard_V[np.int64(context) - 1])
    for n in range(len(codes_N)):
        if context == codes_N[n]:
            before = tokens_T[t - 2] if t >= 2 else np.uint32(0)
            whole = np.int64(shard_V[np.int64(before) - 1]) if before else -1
            return whole, -1 if whole == shard else shard
    return shard, -1


@njit(nogil=True, cache=True)
def _count(tokens_T, shard_V, codes_N, ends, shards, rows_S):
    first, last = shards
    for t in range(ends[0], ends[1]):
        for shard in _shards_at(tokens_T, shard_V, codes_N, t):
            if first <= shard < last:
                rows_S[shard - first] += 1


@njit(nogil=True, cache=True)
def _select(tokens_T, shard_V, codes_N, ends, shards, next_S, sizes, columns):
    (first, last), (order, bits) = shards, sizes
    for t in range(ends[0], ends[1]):
        whole, bigram = _shards_at(tokens_T, shard_V, codes_N, t)
        if first <= whole < last:
            _pack(tokens_T, t, order, bits, columns, next_S[whole - first])
            next_S[whole - first] += 1
        if first <= bigram < last:
            _pack(tokens_T, t, 2, bits, columns, next_S[bigram - first])
            next_S[bigram - first] += 1


@njit(nogil=True, cache=True)
def _pack(tokens_T, t, words, bits, columns, r):
    C, column, used, c = len(columns), uint64(0), 0, 0
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


def _cuda(tokens_T, shard_V, ends, order, bits, shards, codes_N):
    import cupy

    first, last = ends
    C, S, tiles = check.num_columns(order, bits), shards[1] - shards[0], -(-(last - first) // (THREADS * ITEMS))
    if not tiles or not S:
        return cupy.empty((C, 0), np.uint64), np.zeros(S + 1, np.int64)
    rows_SW = cupy.empty((S, tiles), np.int64)
    split = cupy.asarray(codes_N), np.int32(len(codes_N))
    text = tokens_T, shard_V, first, last, np.int32(shards[0]), np.int32(S), *split
    launch(kernel("count/select_windows", "count_windows", **TILE), tiles, THREADS, (*text, rows_SW))
    ends_SW = cupy.cumsum(rows_SW).reshape(S, tiles)
    starts_S1 = np.concatenate([[0], ends_SW[:, -1].get()])
    R = int(starts_S1[-1])
    columns = cupy.empty((C, R), np.uint64)
    sizes = np.int32(order), np.int32(bits), np.int32(C), R
    fn = kernel("count/select_windows", "select_windows", **TILE)
    launch(fn, tiles, THREADS, (*text, ends_SW - rows_SW, *sizes, columns))
    return columns, starts_S1


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text of lines of about 20 words, three of nine shards, and two frequent words that are split."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 5_000).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    return {
        "tokens_T": tokens_T, "shard_V": rng.integers(0, 9, 5_000).astype(np.uint16),
        "ends": (size % 5, size - size % 3), "order": 2 + size % 5, "bits": 19, "shards": (1, 4), "split": (0, 3),
    }  # fmt: skip
