"""Checks, arguments and launch of the kernels that write rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.float_formats import BFLOAT16, FLOAT16, FLOAT32, FORMATS
from ..launch import current_limits, kernel, launch

MAX_BACKOFF_ORDERS = 32  # one lane of a warp each
MAX_GRID_Y = 65535
# Limits for `launch_blocks`, where each block searches for the children of its own tiles. With few words per
# multiprocessor (FEW_WORDS), fewer kernels and dependent reads matter more than the repeated searches. If a word takes
# WIDE_BYTES over all orders, the second limits hold, because writing hides the searches, and the number of short rows
# (SHORT_WORDS) does not matter. It does not matter for other words either, if the histories were found before.
FEW_WORDS = (1 << 16, 1 << 18)
SHORT_WORDS = (1 << 12, 1 << 14)
WIDE_BYTES = 16
BLOCK_TILES = 4  # tiles per block, one warp each
BLOCK_SHAPE = {"WARPS": BLOCK_TILES, "LANES": 32}
BLOCK_TILE = 512  # words per tile; as many as a warp stores at once if there are at most
FEWEST_WORDS = 4096  # words per multiprocessor in all


class WordValues(NamedTuple):
    """The words of n-grams, and the values of n-grams and single words, in one scale; no value is NaN.

    word_G   (G,) uint32, rising among the children of a history
    value_G  (G,) float32, values of n-grams
    value_V  (V,) float32, values of single words
    """

    word_G: Any
    value_G: Any
    value_V: Any


class RowKind(NamedTuple):
    """The kind of rows that `write_rows` writes.

    multiply  True for probabilities, False for logarithms
    nothing   None: smoothed rows. Else stored rows, with this value for words that are not children
    bfloat16  rows are uint16: the upper half of a float32
    """

    multiply: bool
    nothing: float | None = None
    bfloat16: bool = False


def check_rows(out_HNV, orders, H, K, V):
    """Raise ValueError unless `orders` of V words, for H histories of up to K words, fit out_HNV."""
    if K > MAX_BACKOFF_ORDERS:
        raise ValueError(
            f"got the children of {K} orders but the kernels take at most {MAX_BACKOFF_ORDERS}; "
            "make a model of a lower order"
        )
    if not orders or orders[0] < 1 or orders[-1] > K + 1 or sorted({*orders}) != [*orders]:
        raise ValueError(f"orders are {orders} but must rise from 1 to {K + 1} at most; pass some of these orders")
    shape = out_HNV.shape
    if len(shape) != 3 or shape[:2] != (H, len(orders)) or shape[2] < V:
        raise ValueError(f"out_HNV has shape {shape} but the rows need {(H, len(orders), V)}; pass such an array")


def rounding_of(out_HNV, bfloat16):
    """Return FLOAT32, FLOAT16 or BFLOAT16."""
    return BFLOAT16 if bfloat16 else FLOAT16 if out_HNV.dtype == np.float16 else FLOAT32


def strides_of(out_HNV):
    """Return (values from one history to the next, values from one order to the next)."""
    size, strides = out_HNV.itemsize, out_HNV.strides
    wanted = [s for s, n in zip(strides, out_HNV.shape, strict=True) if n > 1]
    if (out_HNV.shape[2] > 1 and strides[2] != size) or any(s < 0 or s % size for s in wanted):
        raise ValueError(
            f"out_HNV has strides {strides} but its last axis must be contiguous, and strides not negative; "
            "pass another array"
        )
    return [s // size if n > 1 else 0 for s, n in zip(strides[:2], out_HNV.shape, strict=False)]


def is_little_work(out_HNV: Any, finds: bool) -> bool:
    """Return whether `launch_blocks` is faster for out_HNV; `finds`: it also finds the histories."""
    H, N, width = out_HNV.shape
    is_wide = N * out_HNV.itemsize >= WIDE_BYTES
    if H * width <= FEW_WORDS[is_wide] * current_limits()[0]:
        return True
    return width <= SHORT_WORDS[is_wide] and (is_wide or not finds)


def launch_blocks(out_HNV, rounding, orders, defines, histories, K, values, how):
    """Launch the kernel of `find_and_write_rows`.

    defines    FIND (1: the kernel finds the histories; 0: they are given) and CHILD
    histories  the kernel's arguments for the histories
    values     word_G, value_G, value_V
    how        multiply, stored, nothing
    """
    H, _, width = out_HNV.shape
    is_least = H * width <= FEWEST_WORDS * current_limits()[0]
    tile = 32 * 16 // out_HNV.itemsize if is_least else BLOCK_TILE
    sizes = {"TILE": tile, "VECTOR": is_aligned(out_HNV)} | BLOCK_SHAPE | FORMATS[rounding] | merging(orders, how)
    fn = kernel("distribution/find_and_write_rows", "find_and_write_rows", **defines, **sizes)
    word_G, value_G, value_V = values
    rows = word_G, value_G, check.aligned(value_V), len(value_V), width, *wanted(orders, how), out_HNV
    grid = -(-width // (tile * BLOCK_TILES)), *layers_of(H)
    launch(fn, grid, 32 * BLOCK_TILES, (*histories, H, K, *rows, *strides_of(out_HNV)))


def is_aligned(out_HNV):
    """Return 1 if every row starts at a multiple of 16 bytes, else 0."""
    offsets = (s * out_HNV.itemsize for s in strides_of(out_HNV))
    return int(all(at % 16 == 0 for at in (out_HNV.data.ptr, *offsets)))


def merging(orders, how):
    """Return the definition that makes a kernel merge the children of all orders, if one smoothed row is requested."""
    multiply, stored, _ = how
    return {"MULTIPLY": int(multiply)} if len(orders) == 1 and orders[0] > 1 and not stored else {}


def wanted(orders, how):
    """Return the kernel arguments orders, multiply, stored and nothing."""
    multiply, stored, nothing = how
    return np.uint64(sum(1 << n - 1 for n in orders)), int(multiply), int(stored), nothing


def layers_of(H):
    """Return (y, z) of a grid for H histories, with few idle blocks, because these also take time."""
    layers = -(-H // MAX_GRID_Y)
    return -(-H // layers), layers
