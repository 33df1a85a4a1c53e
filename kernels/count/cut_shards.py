"""Cut a table of n-grams into shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import int64, uint64

from .. import check
from ..common.radix_sort import EXCHANGE_BYTES, ITEMS, THREADS, TILE
from ..compile_cpu import njit, read_only
from ..dispatch import pick, to_host
from ..launch import grid_for, kernel, launch

MAX_SHARDS = 1024  # as in cut_shards.cu
VARIANTS = (TILE,)


def cut_shards(
    keys: Any, counts: Any, order: int, bits: int, shard_V: Any, split: Sequence[int], shards: int
) -> tuple[Any, Any, np.ndarray]:
    """Return (keys, counts, ends_S) of the rows sorted by shard; rows of a shard keep their order.

    keys     (C, R) uint64: n-grams of `order` codes of `bits` bits, order 2 or more; see `Table`. A slice of longer
             columns is copied first
    counts   (R,) int64
    shard_V  (V,) uint16 below `shards`: the shard of code v + 1
    split    at most 16 words; n-grams of order 3 and more that have one of them as their last context word are in the
             shard of the word before it, all others in that of their last context word
    shards   S, 1 to 1024

    ends_S is (S,) int64 in host memory: the end of each shard. On a GPU, each 8 bits of a shard take one pass over the
    rows, and one over the columns of the context words.
    """
    check.dtype(keys, np.uint64)
    check.dtype(counts, np.int64)
    check.dtype(shard_V, np.uint16)
    if order < 2:
        raise ValueError(f"order {order} has no context word; only orders of 2 and more are cut")
    if not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"{shards} shards are outside 1..{MAX_SHARDS}")
    run = pick(cpu=_cpu, cuda=_cuda, keys=keys, counts=counts, shard_V=shard_V)
    check.contiguous(counts=counts, shard_V=shard_V)
    codes_N = np.array(split if order > 2 else (), np.uint64) + np.uint64(1)
    layout = *check.code_place(order - 2, bits), *check.code_place(max(0, order - 3), bits), bits
    return run(keys, counts, layout, shard_V, codes_N, shards)


def _cpu(keys, counts, layout, shard_V, codes_N, shards):
    rows = read_only(np.ascontiguousarray(keys)), read_only(counts)  # compiled for one layout of memory
    return _by_shard(*rows, tuple(map(int64, layout)), *map(read_only, (shard_V, codes_N)), shards)


@njit(nogil=True, cache=True)
def _by_shard(keys, counts, layout, shard_V, codes_N, shards):
    C, R = keys.shape
    column, spare, column_before, spare_before, bits = layout
    mask = (uint64(1) << uint64(bits)) - uint64(1)
    shard_R, place_S = np.empty(R, np.uint16), np.zeros(shards + 1, np.int64)
    for r in range(R):
        code = _code(keys, r, column, spare, mask)
        for n in range(len(codes_N)):
            if code == codes_N[n]:
                code = _code(keys, r, column_before, spare_before, mask)
                break
        shard = shard_V[int64(code) - 1]
        shard_R[r] = shard
        place_S[int64(shard) + 1] += 1
    place_S = np.cumsum(place_S)[:-1].copy()
    sorted_keys, sorted_counts = np.empty((C, R), np.uint64), np.empty(R, np.int64)
    for r in range(R):
        s = int64(shard_R[r])
        place = place_S[s]
        place_S[s] = place + 1
        for c in range(C):
            sorted_keys[c, place] = keys[c, r]
        sorted_counts[place] = counts[r]
    return sorted_keys, sorted_counts, place_S


@njit(nogil=True, inline="always")
def _code(keys, r, column, spare, mask):
    high = keys[column, r]
    if spare >= 0:
        return (high >> uint64(spare)) & mask
    return ((high << uint64(-spare)) | (keys[column + 1, r] >> uint64(64 + spare))) & mask


def _cuda(keys, counts, layout, shard_V, codes_N, shards):
    import cupy

    C, R = keys.shape
    if not R:
        return keys, counts, np.zeros(shards, np.int64)
    keys = cupy.ascontiguousarray(keys)
    *places, bits = layout
    mask, split_N = np.uint64((1 << bits) - 1), cupy.asarray(codes_N)
    tiles = -(-R // (THREADS * ITEMS))
    digit_R, status_TD = cupy.empty(R, np.uint8), cupy.empty((tiles, 256), np.uint64)
    find = kernel("count/cut_shards", "shard_digits", **TILE)
    move = kernel("count/cut_shards", "move_rows", **TILE)
    for shift in range(0, max(1, (shards - 1).bit_length()), 8):
        rows_S = cupy.zeros(MAX_SHARDS, np.uint64)
        args = keys, R, *map(np.int32, places), mask, shard_V, split_N, np.int32(len(split_N)), np.int32(shift)
        launch(find, grid_for(R, 512, waves=3), 512, (*args, digit_R, rows_S))
        rows_D = cupy.zeros(256, np.uint64)
        rows_by_digit = rows_S.reshape(-1, 256).sum(axis=1 if shift else 0)  # shard % 256, then shard // 256
        rows_D[: len(rows_by_digit)] = rows_by_digit
        status_TD.fill(0)
        sorted_keys, sorted_counts = cupy.empty_like(keys), cupy.empty_like(counts)
        args = keys, counts, np.int32(C), R, digit_R, cupy.cumsum(rows_D) - rows_D, status_TD
        args = *args, cupy.zeros(1, np.uint32), sorted_keys, sorted_counts
        launch(move, tiles, THREADS, args, EXCHANGE_BYTES)
        keys, counts = sorted_keys, sorted_counts
    return keys, counts, to_host(cupy.cumsum(rows_S)[:shards]).astype(np.int64)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return n-grams of order 4 of 19 bits, whose last context word is in both columns, for 300 shards."""
    codes = rng.zipf(1.3, (4, size)) % 5_000 + 1
    keys = np.zeros((2, size), np.uint64)
    for position in range(4):
        column, spare = check.code_place(position, 19)
        code = codes[position].astype(np.uint64)
        keys[column] |= code << np.uint64(spare) if spare >= 0 else code >> np.uint64(-spare)
        if spare < 0:
            keys[column + 1] |= code << np.uint64(64 + spare)
    shard_V = rng.integers(0, 300, 5_000).astype(np.uint16)
    counts = rng.integers(1, 100, size)
    return {
        "keys": keys, "counts": counts, "order": 4, "bits": 19, "shard_V": shard_V, "split": (3, 9), "shards": 300,
    }  # fmt: skip
