"""Write whole rows: the value of every word after each history, for any of the orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import BFLOAT16, FLOAT32, FORMATS
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..launch import current_limits, kernel, launch
from .find_histories import Children
from .row_launch import (
    MAX_GRID_Y,
    RowKind,
    WordValues,
    check_rows,
    is_aligned,
    is_little_work,
    launch_blocks,
    layers_of,
    merging,
    rounding_of,
    strides_of,
    wanted,
)

TILE = 1024  # words of a tile, in the registers of a warp
LONG_BYTES = 1 << 20  # from this size of a history's rows on, their place in memory affects speed
# Bytes of tiles that all warps of a multiprocessor write at once, for short and for long rows. More warps write too far
# apart; fewer do not hide latency.
RESIDENT_BYTES = (224 << 10, 160 << 10)
TOGETHER_BYTES = 96 << 20  # total rows of the histories, if long, whose children are prefetched together
RESERVED_BYTES = 1024  # shared memory that the system reserves per block
VARIANTS = (
    *({"TILE": TILE, "CHILD": "u32", "VECTOR": vector} | form for vector, form in itertools.product((0, 1), FORMATS)),
    {"TILE": TILE, "CHILD": "i64", "VECTOR": 1},
    *({"TILE": TILE, "CHILD": "u32", "VECTOR": 1, "MULTIPLY": multiply} for multiply in (0, 1)),
)


def write_rows(
    out_HNV: Any,
    orders: tuple[int, ...],
    children: Children,
    values: WordValues,
    kind: RowKind,
) -> None:
    """Fill out_HNV: the value of every word for each history and each of `orders`.

    out_HNV    (H, len(orders), V or more) float32, float16, or uint16 if kind.bfloat16.
               The last axis is contiguous; values after the V words are undefined. Fastest if rows start at multiples
               of 128 bytes and have room up to the next one, because memory is written in units of 128 bytes
    orders     rising, from 1 to K + 1
    children   from `find_histories`, K at most 32

    Returns nothing. Row 1 is value_V. A smoothed row n is row n - 1 times (for logarithms: plus) the backoff of the
    last n - 1 words; a child of these words has the child's value instead (Katz, 1987). A stored row n has the
    children's values and else `nothing`. Sums and products are float32, in this order; results are rounded at the end,
    ties to even.
    """
    first_HK, end_HK, backoff_HK = children
    word_G, value_G, value_V = values
    multiply, nothing, bfloat16 = kind
    check.dtype(out_HNV, *([np.uint16] if bfloat16 else [np.float32, np.float16]))
    check.dtype(first_HK, np.uint32, np.int64)
    check.dtype(end_HK, first_HK.dtype)
    check.dtype(word_G, np.uint32)
    for floats in backoff_HK, value_G, value_V:
        check.dtype(floats, np.float32)
    if end_HK.shape != first_HK.shape or backoff_HK.shape != first_HK.shape:
        shapes = f"first_HK is {first_HK.shape}, end_HK {end_HK.shape}, backoff_HK {backoff_HK.shape}"
        raise ValueError(f"{shapes}; pass the arrays that find_histories returns")
    H, K = first_HK.shape
    check_rows(out_HNV, orders, H, K, len(value_V))
    arrays = {
        "out_HNV": out_HNV, "first_HK": first_HK, "end_HK": end_HK, "backoff_HK": backoff_HK, "word_G": word_G,
        "value_G": value_G, "value_V": value_V,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    if 0 in out_HNV.shape:
        return
    rounding = rounding_of(out_HNV, bfloat16)
    run(out_HNV, rounding, orders, children, values, (multiply, nothing is not None, np.float32(nothing or 0)))


def _cpu(out_HNV, rounding, orders, children, values, how):
    strides = stride_H, stride_N = tuple(strides_of(out_HNV))
    H, rows, width = out_HNV.shape
    size = (H - 1) * stride_H + (rows - 1) * stride_N + width
    bits = out_HNV.view(np.uint32 if rounding == FLOAT32 else np.uint16)
    out = np.lib.stride_tricks.as_strided(bits, (size,), (bits.itemsize,))
    children, values = Children(*map(read_only, children)), WordValues(*map(read_only, values))
    _fill(out, strides, rounding, np.array(orders), children, values, how)


@njit(nogil=True, cache=True)
def _fill(out, strides, rounding, orders, children, values, how):
    (first_HK, end_HK, backoff_HK), (word_G, value_G, value_V) = children, values
    (stride_H, stride_N), (multiply, stored, nothing) = strides, how
    V, highest, room = len(value_V), orders[-1], 4096
    at_K = np.empty(highest - 1, np.int64)
    tile = np.empty(room, np.float32)  # stays in the L1 cache from the lowest order to the highest
    for h in range(len(first_HK)):
        for k in range(highest - 1):
            at_K[k] = first_HK[h, k]
        for start in range(0, V, room):
            stop = min(start + room, V)
            size, row = stop - start, 0
            for i in range(size):  # a loop: Numba takes 2 s to compile a copy of a slice to a slice
                tile[i] = value_V[start + i]
            for n in range(1, highest + 1):
                if n > 1:
                    k = n - 2
                    _back_off(tile[:size], backoff_HK[h, k], multiply, stored, nothing)
                    while at_K[k] < end_HK[h, k] and word_G[at_K[k]] < stop:
                        tile[word_G[at_K[k]] - start] = value_G[at_K[k]]
                        at_K[k] += 1
                if orders[row] == n:
                    to = h * stride_H + row * stride_N + start
                    _store(tile[:size].view(np.uint32), out[to : to + size], rounding)
                    row += 1


@njit(nogil=True, cache=True)
def _back_off(values, backoff, multiply, stored, nothing):
    """Compute the values of the next order for words that are not children."""
    if stored:
        values[:] = nothing
    elif multiply:
        for i in range(len(values)):
            values[i] *= backoff
    else:
        for i in range(len(values)):
            values[i] += backoff


@njit(nogil=True, cache=True)
def _store(bits, out, rounding):
    """Store floats, given as bits, in the format of `rounding`; none is a NaN."""
    if rounding == FLOAT32:
        for i in range(len(bits)):
            out[i] = bits[i]
    elif rounding == BFLOAT16:
        for i in range(len(bits)):
            out[i] = (bits[i] + np.uint32(0x7FFF) + (bits[i] >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    else:
        for i in range(len(bits)):
            out[i] = _float16(np.int64(bits[i]))


@njit(nogil=True, cache=True)
def _float16(bits):
    """Return the bits of the nearest float16, ties to even."""
    sign, size = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if size >= 0x477FF000:  # 65520 and above become infinity
        return sign | 0x7C00
    if size >= 0x38800000:  # 2**-14 and above are normal: the exponent is less by 112
        return sign | ((size + 0xFFF + (size >> 13 & 1)) >> 13) - (112 << 10)
    shift = min(126 - (size >> 23), 25)  # round to multiples of 2**-24
    digits = size & 0x7FFFFF | 0x800000
    return sign | (digits + (1 << shift - 1) - 1 + (digits >> shift & 1)) >> shift


def _cuda(out_HNV, rounding, orders, children, values, how):
    import cupy

    first_HK, end_HK, backoff_HK = found = [cupy.ascontiguousarray(a) for a in children]
    word_G, value_G, value_V = values
    H, N, width = out_HNV.shape
    K, V, child = first_HK.shape[1], len(value_V), check.INTEGER[first_HK.dtype]
    if is_little_work(out_HNV, False):
        launch_blocks(out_HNV, rounding, orders, {"FIND": 0, "CHILD": child}, found, K, values, how)
        return
    tiles = -(-width // TILE)
    sizes = {"TILE": TILE, "CHILD": child, "VECTOR": is_aligned(out_HNV)} | FORMATS[rounding] | merging(orders, how)
    history_bytes = N * V * out_HNV.itemsize
    is_long, start_HTK, together = history_bytes >= LONG_BYTES, 0, 0
    if orders[-1] > 1:
        starts = (tiles + 1) * K
        start_HTK = cupy.empty(H * starts, first_HK.dtype)
        x = min(starts, 256)
        grid, block = (-(-starts // x), min(-(-H // (256 // x)), MAX_GRID_Y)), (x, 256 // x)
        fn = kernel("distribution/write_rows", "tile_starts", **sizes)
        launch(fn, grid, block, (first_HK, end_HK, H, K, word_G, V, tiles, start_HTK))
        if is_long:
            together = TOGETHER_BYTES // history_bytes + 1
    fn = kernel("distribution/write_rows", "write_rows", **sizes)
    rows = word_G, value_G, check.aligned(value_V), V, width, together, *wanted(orders, how), out_HNV
    args = (start_HTK, backoff_HK, H, K, *rows, *strides_of(out_HNV))
    # Each block gets more shared memory than it uses, to limit how many blocks are resident.
    resident = max(1, RESIDENT_BYTES[is_long] * tiles // history_bytes)
    shared = max(0, current_limits()[1] // resident - RESERVED_BYTES - fn.shared_size_bytes)
    launch(fn, (tiles, *layers_of(H)), 32, args, shared)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a few histories of a model of `size` words, with their children. By size: probabilities or logarithms,
    smoothed or stored.
    """
    H, K = 3 + size % 3, size % 5
    dtype = (np.float32, np.float16, np.uint16)[size % 3]
    runs = [[np.empty(0, np.int64)] * K for _ in range(H)]
    for children in runs:
        among = np.arange(size)
        for k in range(K):
            children[k] = among = np.sort(rng.permutation(among)[: len(among) // 4])
    lengths = np.array([[len(run) for run in children] for children in runs], np.int64).reshape(H, K)
    end_HK = np.cumsum(lengths).reshape(H, K).astype(np.uint32)
    word_G = np.concatenate([np.empty(0, np.int64), *(run for children in runs for run in children)])
    orders = tuple(n for n in range(1, K + 2) if size % 2 or n != 2) or (1,)
    multiply = bool(size % 2)
    sign = 1 if multiply else -1
    return {
        "out_HNV": np.zeros((H, len(orders), size), dtype),
        "orders": orders,
        "children": Children(end_HK - lengths.astype(np.uint32), end_HK, sign * rng.random((H, K), np.float32)),
        "values": WordValues(
            word_G.astype(np.uint32), sign * rng.random(len(word_G), np.float32), sign * rng.random(size, np.float32)
        ),
        "kind": RowKind(multiply, (0.0 if multiply else -np.inf) if size % 4 == 3 else None, dtype == np.uint16),
    }
