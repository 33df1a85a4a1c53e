"""Write whole rows: the value of every word after each history, for any of the orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numba import njit

from .. import check
from ..dispatch import pick
from ..launch import current_limits, kernel, launch

MOST_K = 32  # a lane of a warp each
FLOAT32, FLOAT16, BFLOAT16 = range(3)
HALF: tuple[dict[str, Any], ...] = ({}, {"HALF": '"f16"'}, {"HALF": '"bf16"'})  # by those numbers
TILES = (256, 1024)  # words that a warp has in registers
SHORT_WORDS = 4096  # of a row, up to which it has small tiles, as have few words
LONG_BYTES = 1 << 20  # rows of a history, from there on, for which it counts where they lie in memory
# What all warps of a multiprocessor write in their tiles, of short and of long rows: more lie too far apart, fewer are
# too few to hide what a warp waits for.
RESIDENT_BYTES = (224 << 10, 160 << 10)
TOGETHER_BYTES = 96 << 20  # of the histories with long rows whose children are read together
# Up to so many words for each multiprocessor are few: it counts how long one warp takes. Warps search by themselves
# where words are few, to have one kernel less; and in short rows, where a word is so many bytes in all orders, so that
# the search is little beside the writing.
FEW_WORDS = 8192
SEARCH_BYTES = 16
MOST_SEARCHED = 16  # orders, half of a warp
MOST_GRID_Y = 65535
RESERVED_BYTES = 1024  # of shared memory, of each block
VARIANTS = (
    *(
        {"TILE": tile, "CHILD": "u32", "VECTOR": vector} | half
        for tile, vector, half in itertools.product(TILES, (0, 1), HALF)
    ),
    {"TILE": TILES[1], "CHILD": "i64", "VECTOR": 1},
)


def write_rows(
    out_HNV: Any,
    orders: tuple[int, ...],
    first_HK: Any,
    end_HK: Any,
    backoff_HK: Any,
    word_G: Any,
    value_G: Any,
    value_V: Any,
    multiply: bool,
    nothing: float | None = None,
    bfloat16: bool = False,
) -> None:
    """Fill out_HNV: for each history and each of `orders` the value of every word.

    out_HNV    (H, len(orders), V or more) float32, float16, or with `bfloat16` uint16 (the upper half of a float32).
               The last axis is contiguous; behind the words stands anything. Fastest are rows that begin at multiples
               of 128 bytes and have room up to the next one: memory is written in such pieces
    orders     rising, from 1 to K + 1
    first_HK, end_HK  (H, K) uint32 or int64, K at most 32: the children of a history's last k + 1 words are nodes
               first to end - 1, by rising word; none where both are 0
    backoff_HK (H, K) float32, of those words; neutral where they are no node
    word_G, value_G  (G,) uint32 and float32, of nodes
    value_V    (V,) float32, of single words
    multiply   True for probabilities, False for logarithms
    nothing    None, or what stands where a word is no child: rows of what is stored

    Returns nothing. Row 1 is value_V. Row n is row n - 1 times (for logarithms: plus) the backoff of the last n - 1
    words, and where these have a child the child's value (Katz, 1987); of what is stored, `nothing` and the children's
    values. Sums and products are float32, in this order; values are rounded when they are written, ties to even.
    """
    check.dtype(out_HNV, *([np.uint16] if bfloat16 else [np.float32, np.float16]))
    check.dtype(first_HK, np.uint32, np.int64)
    check.dtype(end_HK, first_HK.dtype)
    check.dtype(word_G, np.uint32)
    for values in backoff_HK, value_G, value_V:
        check.dtype(values, np.float32)
    _check_shapes(out_HNV.shape, orders, first_HK.shape, end_HK.shape, backoff_HK.shape, value_V.shape)
    arrays = {
        "out_HNV": out_HNV, "first_HK": first_HK, "end_HK": end_HK, "backoff_HK": backoff_HK, "word_G": word_G,
        "value_G": value_G, "value_V": value_V,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    if 0 in out_HNV.shape:
        return
    rounding = BFLOAT16 if bfloat16 else FLOAT16 if out_HNV.dtype == np.float16 else FLOAT32
    run(
        out_HNV, rounding, orders, first_HK, end_HK, backoff_HK, word_G, value_G, value_V, multiply,
        nothing is not None, np.float32(nothing or 0),
    )  # fmt: skip


def _check_shapes(out, orders, first, end, backoff, values):
    """Raise ValueError unless all shapes and orders fit together."""
    H, K = first
    if K > MOST_K:
        raise ValueError(f"got the children of {K} orders but at most {MOST_K} can be taken; prune the model")
    if not orders or orders[0] < 1 or orders[-1] > K + 1 or sorted({*orders}) != [*orders]:
        raise ValueError(f"orders are {orders} but must rise from 1 to {K + 1} at most; pass some of those")
    if end != first or backoff != first:
        raise ValueError(f"first_HK is {first}, end_HK {end}, backoff_HK {backoff}; pass them as find_histories gives")
    if len(out) != 3 or out[:2] != (H, len(orders)) or out[2] < values[0]:
        raise ValueError(f"out_HNV has shape {out} but {(H, len(orders), *values)} are to be written; make it so")


def _strides(out_HNV):
    """(from a history to the next, from an order to the next), in values."""
    size, strides = out_HNV.itemsize, out_HNV.strides
    wanted = [s for s, n in zip(strides, out_HNV.shape, strict=True) if n > 1]
    if (out_HNV.shape[2] > 1 and strides[2] != size) or any(s < 0 or s % size for s in wanted):
        raise ValueError(
            f"out_HNV has strides {strides} but its last axis must be contiguous and none negative; pass another array"
        )
    return [s // size if n > 1 else 0 for s, n in zip(strides[:2], out_HNV.shape, strict=False)]


def _cpu(
    out_HNV, rounding, orders, first_HK, end_HK, backoff_HK, word_G, value_G, value_V, multiply, stored, nothing
):  # fmt: skip
    stride_H, stride_N = _strides(out_HNV)
    H, rows, width = out_HNV.shape
    values = (H - 1) * stride_H + (rows - 1) * stride_N + width
    bits = out_HNV.view(np.uint32 if rounding == FLOAT32 else np.uint16)
    out = np.lib.stride_tricks.as_strided(bits, (values,), (bits.itemsize,))
    _fill(
        out, stride_H, stride_N, rounding, np.array(orders), first_HK, end_HK, backoff_HK, word_G, value_G, value_V,
        multiply, stored, nothing,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _fill(
    out, stride_H, stride_N, rounding, orders, first_HK, end_HK, backoff_HK, word_G, value_G, value_V, multiply,
    stored, nothing,
):  # fmt: skip
    V, highest, room = len(value_V), orders[-1], 4096
    at_K = np.empty(highest - 1, np.int64)
    tile = np.empty(room, np.float32)  # stays in the L1 cache from the lowest order to the highest
    for h in range(len(first_HK)):
        for k in range(highest - 1):
            at_K[k] = first_HK[h, k]
        for start in range(0, V, room):
            stop = min(start + room, V)
            size, row = stop - start, 0
            tile[:size] = value_V[start:stop]
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
    """The values of the next order where it has no children."""
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
    """Floats, by their bits, as what `rounding` says; none is a NaN."""
    if rounding == FLOAT32:
        out[:] = bits
    elif rounding == BFLOAT16:
        for i in range(len(bits)):
            out[i] = (bits[i] + np.uint32(0x7FFF) + (bits[i] >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    else:
        for i in range(len(bits)):
            out[i] = _float16(np.int64(bits[i]))


@njit(nogil=True, cache=True)
def _float16(bits):
    """The bits of the nearest float16, ties to even."""
    sign, size = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if size >= 0x477FF000:  # from 65520 on it is infinite
        return sign | 0x7C00
    if size >= 0x38800000:  # from 2**-14 on it is normal: its exponent is less by 112
        return sign | ((size + 0xFFF + (size >> 13 & 1)) >> 13) - (112 << 10)
    shift = min(126 - (size >> 23), 25)  # to multiples of 2**-24
    digits = size & 0x7FFFFF | 0x800000
    return sign | (digits + (1 << shift - 1) - 1 + (digits >> shift & 1)) >> shift


def _cuda(
    out_HNV, rounding, orders, first_HK, end_HK, backoff_HK, word_G, value_G, value_V, multiply, stored, nothing
):  # fmt: skip
    import cupy

    H, N, width = out_HNV.shape
    K, V = first_HK.shape[1], len(value_V)
    strides = _strides(out_HNV)
    vector = all(at % 16 == 0 for at in (out_HNV.data.ptr, *(s * out_HNV.itemsize for s in strides)))
    few = H * width <= FEW_WORDS * current_limits()[0]
    tile = TILES[width > SHORT_WORDS and not few]
    tiles = -(-width // tile)
    sizes = {"TILE": tile, "CHILD": check.INTEGER[first_HK.dtype], "VECTOR": int(vector)} | HALF[rounding]
    first, end, backoff_HK = (cupy.ascontiguousarray(a) for a in (first_HK, end_HK, backoff_HK))
    history_bytes = N * V * out_HNV.itemsize
    is_long, ranges, together = history_bytes >= LONG_BYTES, 1, 0
    is_little_work = few or (width <= SHORT_WORDS and N * out_HNV.itemsize >= SEARCH_BYTES)
    if orders[-1] > 1 and (K > MOST_SEARCHED or not is_little_work):
        ranges = tiles + 1
        start_HTK = cupy.empty(H * ranges * K, first_HK.dtype)
        x = min(ranges * K, 256)
        grid, block = (-(-ranges * K // x), min(-(-H // (256 // x)), MOST_GRID_Y)), (x, 256 // x)
        starts = kernel("distribution/write_rows", "tile_starts", **sizes)
        launch(starts, grid, block, (first, end, H, K, word_G, V, tiles, start_HTK))
        first, end = start_HTK, start_HTK[K:]
        if is_long:
            together = TOGETHER_BYTES // history_bytes + 1
    fn = kernel("distribution/write_rows", "write_rows", **sizes)
    histories = first, end, ranges, backoff_HK, H, K
    what = np.uint64(sum(1 << n - 1 for n in orders)), int(multiply), int(stored), nothing
    args = (*histories, word_G, value_G, check.aligned(value_V), V, width, together, *what, out_HNV, *strides)
    # A block has more shared memory than it uses, so that no more of them are resident.
    resident = max(1, RESIDENT_BYTES[is_long] * tiles // history_bytes)
    shared = max(0, current_limits()[1] // resident - RESERVED_BYTES - fn.shared_size_bytes)
    layers = -(-H // MOST_GRID_Y)  # of nearly as many histories each: a block without one takes time, too
    launch(fn, (tiles, -(-H // layers), layers), 32, args, shared)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """A few histories of a model of `size` words; by size probabilities or logarithms, smoothed or stored, and what
    their rows are made of.
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
        "first_HK": end_HK - lengths.astype(np.uint32),
        "end_HK": end_HK,
        "backoff_HK": sign * rng.random((H, K), np.float32),
        "word_G": word_G.astype(np.uint32),
        "value_G": sign * rng.random(len(word_G), np.float32),
        "value_V": sign * rng.random(size, np.float32),
        "multiply": multiply,
        "nothing": (0.0 if multiply else -np.inf) if size % 4 == 3 else None,
        "bfloat16": dtype == np.uint16,
    }
