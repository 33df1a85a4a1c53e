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
from .window_shards import example as shards_example
from .window_shards import window_shards

THREADS, ITEMS = 256, 16
TILE = {"THREADS": THREADS, "ITEMS": ITEMS}
VARIANTS = (TILE,)


def select_windows(
    tokens_T: Any, shard_T: Any, ends: tuple[int, int], order: int, bits: int, shards: tuple[int, int],
    bigrams_of: Sequence[int] = (),
) -> Any:  # fmt: skip
    """Return one key for each position of a text whose n-grams belong to some shards.

    tokens_T    (T,) uint32 codes; 0 ends every window
    shard_T     (T,) uint16 from `window_shards`
    ends        (first, past the last) position where windows end
    order       most words of a window, N, at least 2
    bits        bits per code
    shards      (first, past the last) shard
    bigrams_of  split words whose bigrams belong to these shards: a window after one of them is cut to two words if the
                word before it selects another shard

    Returns columns (C, R) uint64, C = ceil(order * bits / 64): for position t the codes of t - 1, t, t - 2, t - 3, ...,
    t - order + 1, up to the first code 0. Rows are in the order of the text. All n-grams that end at t are prefixes of
    its key: the prefix of n codes is the n-gram of order n. So sorted keys have each n-gram below its suffix.
    """
    check.dtype(tokens_T, np.uint32)
    check.dtype(shard_T, np.uint16)
    if order < 2:
        raise ValueError(f"order {order} has no context word; only windows of 2 words and more are selected")
    first, last = max(1, ends[0]), min(ends[1], len(tokens_T))
    run = pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T, shard_T=shard_T)
    check.contiguous(tokens_T=tokens_T, shard_T=shard_T)
    codes_N = np.array(bigrams_of, np.uint32) + np.uint32(1)
    return run(tokens_T, shard_T, first, max(first, last), order, bits, shards, codes_N)


def _cpu(tokens_T, shard_T, first, last, order, bits, shards, codes_N):
    text = *map(read_only, (tokens_T, shard_T, codes_N)), (first, last), tuple(map(np.uint16, shards))
    columns = np.empty((check.num_columns(order, bits), _count(*text)), np.uint64)
    _select(*text, order, bits, columns)
    return columns


@njit(nogil=True, inline="always")
def _words_at(tokens_T, shard_T, codes_N, t, shards):
    """Return how many words of the window that ends at t are selected: 0, 2 or all (3)."""
    if shards[0] <= shard_T[t] < shards[1]:
        return 3
    for n in range(len(codes_N)):
        if tokens_T[t - 1] == codes_N[n] and tokens_T[t]:
            return 2
    return 0


@njit(nogil=True, cache=True)
def _count(tokens_T, shard_T, codes_N, ends, shards):
    rows = 0
    if len(codes_N) == 0:  # without an inner loop, which would keep this from being vectorised
        first, last = shards
        for t in range(ends[0], ends[1]):
            rows += first <= shard_T[t] < last
        return rows
    for t in range(ends[0], ends[1]):
        rows += _words_at(tokens_T, shard_T, codes_N, t, shards) > 0
    return rows


@njit(nogil=True, cache=True)
def _select(tokens_T, shard_T, codes_N, ends, shards, order, bits, columns):
    C, r = len(columns), 0
    for t in range(ends[0], ends[1]):
        words = _words_at(tokens_T, shard_T, codes_N, t, shards)
        if words == 0:
            continue
        most = order if words == 3 else 2
        column, used, c = uint64(0), 0, 0
        for n in range(most):
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
        r += 1


def _cuda(tokens_T, shard_T, first, last, order, bits, shards, codes_N):
    import cupy

    C, tiles = check.num_columns(order, bits), -(-(last - first) // (THREADS * ITEMS))
    if not tiles:
        return cupy.empty((C, 0), np.uint64)
    rows_W = cupy.empty(tiles, np.int64)
    text = tokens_T, shard_T, first, last, *map(np.int32, shards), cupy.asarray(codes_N), np.int32(len(codes_N))
    launch(kernel("count/select_windows", "count_windows", **TILE), tiles, THREADS, (*text, rows_W))
    ends_W = cupy.cumsum(rows_W)
    R = int(ends_W[-1])
    columns = cupy.empty((C, R), np.uint64)
    sizes = np.int32(order), np.int32(bits), np.int32(C), R
    fn = kernel("count/select_windows", "select_windows", **TILE)
    launch(fn, tiles, THREADS, (*text, ends_W - rows_W, *sizes, columns))
    return columns


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text of lines of about 20 words, two of nine shards, and the bigrams of a split word."""
    text = shards_example(rng, size)
    return {
        "tokens_T": text["tokens_T"], "shard_T": window_shards(**text), "ends": (size % 5, size - size % 3),
        "order": 2 + size % 5, "bits": 19, "shards": (1, 3), "bigrams_of": text["split"][: size % 3],
    }  # fmt: skip
