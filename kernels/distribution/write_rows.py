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
TILE = 1024  # words that a warp has in registers
LONG_BYTES = 1 << 20  # rows of a history, from there on, for which it counts where they lie in memory
# What all warps of a multiprocessor write in their tiles, of short and of long rows: more lie too far apart, fewer are
# too few to hide what a warp waits for.
RESIDENT_BYTES = (224 << 10, 160 << 10)
TOGETHER_BYTES = 96 << 20  # of the histories with long rows whose children are read together
# It is little work to search in each block for where the children of its tiles begin where words are few, so many for
# each multiprocessor, as then it counts how many kernels and reads wait for each other; and where rows are short. There
# may be more of them, and longer, where a word is WIDE_BYTES in all orders: the search is hidden behind the writing.
FEW_WORDS = (1 << 16, 1 << 18)
SHORT_WORDS = (1 << 12, 1 << 14)
WIDE_BYTES = 16
BLOCK_TILES = 4  # of a block that searches: a warp each
BLOCK = {"WARPS": BLOCK_TILES, "LANES": 32}
FEWEST_WORDS = 4096  # for each multiprocessor, up to which its tiles are as small as they can be
MOST_GRID_Y = 65535
RESERVED_BYTES = 1024  # of shared memory, of each block
VARIANTS = (
    *({"TILE": TILE, "CHILD": "u32", "VECTOR": vector} | half for vector, half in itertools.product((0, 1), HALF)),
    {"TILE": TILE, "CHILD": "i64", "VECTOR": 1},
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
    if end_HK.shape != first_HK.shape or backoff_HK.shape != first_HK.shape:
        shapes = f"first_HK is {first_HK.shape}, end_HK {end_HK.shape}, backoff_HK {backoff_HK.shape}"
        raise ValueError(f"{shapes}; pass them as find_histories gives")
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
    run(
        out_HNV, rounding, orders, first_HK, end_HK, backoff_HK, word_G, value_G, value_V, multiply,
        nothing is not None, np.float32(nothing or 0),
    )  # fmt: skip


def check_rows(out_HNV, orders, H, K, V):
    """Raise ValueError unless `orders` of V words, of H histories of up to K words, go into out_HNV."""
    if K > MOST_K:
        raise ValueError(f"got the children of {K} orders but at most {MOST_K} can be taken; prune the model")
    if not orders or orders[0] < 1 or orders[-1] > K + 1 or sorted({*orders}) != [*orders]:
        raise ValueError(f"orders are {orders} but must rise from 1 to {K + 1} at most; pass some of those")
    shape = out_HNV.shape
    if len(shape) != 3 or shape[:2] != (H, len(orders)) or shape[2] < V:
        raise ValueError(f"out_HNV has shape {shape} but {(H, len(orders), V)} are to be written; make it so")


def rounding_of(out_HNV, bfloat16):
    return BFLOAT16 if bfloat16 else FLOAT16 if out_HNV.dtype == np.float16 else FLOAT32


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

    first_HK, end_HK, backoff_HK = found = [cupy.ascontiguousarray(a) for a in (first_HK, end_HK, backoff_HK)]
    H, N, width = out_HNV.shape
    K, V, child = first_HK.shape[1], len(value_V), check.INTEGER[first_HK.dtype]
    values, how = (word_G, value_G, value_V), (multiply, stored, nothing)
    if is_little_work(out_HNV, False):
        launch_blocks(out_HNV, rounding, orders, {"FIND": 0, "CHILD": child}, found, K, values, how)
        return
    tiles = -(-width // TILE)
    sizes = {"TILE": TILE, "CHILD": child, "VECTOR": _is_aligned(out_HNV)} | HALF[rounding]
    history_bytes = N * V * out_HNV.itemsize
    is_long, start_HTK, together = history_bytes >= LONG_BYTES, 0, 0
    if orders[-1] > 1:
        starts = (tiles + 1) * K
        start_HTK = cupy.empty(H * starts, first_HK.dtype)
        x = min(starts, 256)
        grid, block = (-(-starts // x), min(-(-H // (256 // x)), MOST_GRID_Y)), (x, 256 // x)
        fn = kernel("distribution/write_rows", "tile_starts", **sizes)
        launch(fn, grid, block, (first_HK, end_HK, H, K, word_G, V, tiles, start_HTK))
        if is_long:
            together = TOGETHER_BYTES // history_bytes + 1
    fn = kernel("distribution/write_rows", "write_rows", **sizes)
    rows = word_G, value_G, check.aligned(value_V), V, width, together, *_wanted(orders, how), out_HNV
    args = (start_HTK, backoff_HK, H, K, *rows, *_strides(out_HNV))
    # A block has more shared memory than it uses, so that no more of them are resident.
    resident = max(1, RESIDENT_BYTES[is_long] * tiles // history_bytes)
    shared = max(0, current_limits()[1] // resident - RESERVED_BYTES - fn.shared_size_bytes)
    launch(fn, (tiles, *_layers(H)), 32, args, shared)


def is_little_work(out_HNV: Any, finds: bool) -> bool:
    """Whether `launch_blocks` is the faster way to fill out_HNV; `finds`: with finding the histories."""
    H, N, width = out_HNV.shape
    is_wide = N * out_HNV.itemsize >= WIDE_BYTES
    if H * width <= FEW_WORDS[is_wide] * current_limits()[0]:
        return True
    return width <= SHORT_WORDS[is_wide] and (is_wide or not finds)


def launch_blocks(out_HNV, rounding, orders, defines, histories, K, values, how):
    """Launch the kernel of `find_and_write_rows`, for histories that it finds (FIND 1 in `defines`) or that were found.

    histories  its arguments for that
    values     word_G, value_G, value_V
    how        multiply, stored, nothing
    """
    H, _, width = out_HNV.shape
    is_least = H * width <= FEWEST_WORDS * current_limits()[0]
    tile = 512 // out_HNV.itemsize if is_least else 512  # the least is what a warp stores at once
    sizes = {"TILE": tile, "VECTOR": _is_aligned(out_HNV)} | BLOCK | HALF[rounding]
    fn = kernel("distribution/find_and_write_rows", "find_and_write_rows", **defines, **sizes)
    word_G, value_G, value_V = values
    rows = word_G, value_G, check.aligned(value_V), len(value_V), width, *_wanted(orders, how), out_HNV
    grid = -(-width // (tile * BLOCK_TILES)), *_layers(H)
    launch(fn, grid, 32 * BLOCK_TILES, (*histories, H, K, *rows, *_strides(out_HNV)))


def _is_aligned(out_HNV):
    """1 where every row begins at a multiple of 16 bytes, else 0."""
    offsets = (s * out_HNV.itemsize for s in _strides(out_HNV))
    return int(all(at % 16 == 0 for at in (out_HNV.data.ptr, *offsets)))


def _wanted(orders, how):
    """orders, multiply, stored, nothing, as kernels take them."""
    multiply, stored, nothing = how
    return np.uint64(sum(1 << n - 1 for n in orders)), int(multiply), int(stored), nothing


def _layers(H):
    """The y and z of a grid, of nearly as many histories each: a block without one takes time, too."""
    layers = -(-H // MOST_GRID_Y)
    return -(-H // layers), layers


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
