"""Sort rows of several columns by a key of many bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS, ITEMS, MIN_BLOCKS = 512, 12, 2  # fastest of 13 shapes on an H200; registers allow two blocks
TILE = {"THREADS": THREADS, "ITEMS": ITEMS, "MIN_BLOCKS": MIN_BLOCKS}
VARIANTS = (TILE,)
EXCHANGE_BYTES = THREADS * ITEMS * 8
HISTOGRAM_BYTES = 8 * 256 * 4 * 4  # digits x bins x copies x bytes; as in radix_sort.cu


def radix_sort(columns: Any, key_bits: int) -> Any:
    """Return the rows sorted by their key; the sort is stable.

    columns   (C, R) uint64, C-contiguous; overwritten
    key_bits  the key is the first `key_bits` bits of a row, column 0 first, high bits first. Bits after the key, and
              later columns, are carried along

    Returns (C, R) uint64, which may be `columns` itself. A least-significant-digit radix sort: one pass
    over memory per 8 bits of the key (Adinets and Merrill, "Onesweep", 2022).
    """
    check.dtype(columns, np.uint64)
    check.contiguous(columns=columns)
    if key_bits > 64 * len(columns):
        raise ValueError(f"a key of {key_bits} bits needs {-(-key_bits // 64)} columns but there are {len(columns)}")
    return pick(cpu=_cpu, cuda=_cuda, columns=columns)(columns, key_bits)


def digits_of_column(column: int, key_bits: int) -> tuple[int, int]:
    """Return (lowest key bit, number of 8-bit digits) of a key column."""
    used = min(64, key_bits - 64 * column)
    return 64 - used, -(-used // 8)


def _cpu(columns, key_bits):
    other = np.empty_like(columns)
    for c in reversed(range(-(-key_bits // 64))):
        first_bit, digits = digits_of_column(c, key_bits)
        for d in range(digits):
            if _pass(columns, other, c, first_bit + 8 * d):
                columns, other = other, columns
    return columns


@njit(nogil=True, cache=True)
def _pass(columns, out, key_column, shift):
    """Do one stable counting pass; return False, with nothing written, if all rows share the digit."""
    C, R = columns.shape
    start = np.zeros(257, np.int64)
    key = columns[key_column]
    s, low = uint64(shift), uint64(255)
    for r in range(R):
        start[((key[r] >> s) & low) + uint64(1)] += 1
    most = 0
    for d in range(256):
        most = max(most, start[d + 1])
        start[d + 1] += start[d]
    if most == R:  # also of no rows
        return False
    if C == 1:  # the common cases, without an inner loop
        x = out[0]
        for r in range(R):
            d = (key[r] >> s) & low
            p = start[d]
            start[d] = p + 1
            x[p] = key[r]
        return True
    if C == 2:
        a, b, x, y = columns[0], columns[1], out[0], out[1]
        for r in range(R):
            d = (key[r] >> s) & low
            p = start[d]
            start[d] = p + 1
            x[p] = a[r]
            y[p] = b[r]
        return True
    target_R = np.empty(R, np.int64)
    for r in range(R):
        d = (key[r] >> s) & low
        target_R[r] = start[d]
        start[d] += 1
    for c in range(C):
        a, x = columns[c], out[c]
        for r in range(R):
            x[target_R[r]] = a[r]
    return True


def _cuda(columns, key_bits):
    import cupy

    C, R = columns.shape
    if R < 2:
        return columns
    other = cupy.empty_like(columns)
    tiles = -(-R // (THREADS * ITEMS))
    histogram = kernel("common/radix_sort", "digit_histograms", **TILE)
    sort_pass = kernel("common/radix_sort", "radix_pass", **TILE)
    status_TD = cupy.empty((tiles, 256), np.uint64)
    next_tile = cupy.empty(1, np.uint32)
    for c in reversed(range(-(-key_bits // 64))):
        first_bit, digits = digits_of_column(c, key_bits)
        histogram_PD = cupy.zeros((digits, 256), np.uint64)
        launch(
            histogram,
            grid_for(R, 512, waves=3),
            512,
            (columns[c], R, np.int32(first_bit), np.int32(digits), histogram_PD),
            HISTOGRAM_BYTES,
        )
        start_PD = cupy.cumsum(histogram_PD, axis=1) - histogram_PD
        for d in range(digits):
            status_TD.fill(0)
            next_tile.fill(0)
            launch(
                sort_pass,
                tiles,
                THREADS,
                (
                    columns,
                    other,
                    R,
                    np.int32(C),
                    np.int32(c),
                    np.int32(first_bit + 8 * d),
                    start_PD[d],
                    status_TD,
                    next_tile,
                ),
                EXCHANGE_BYTES,
            )
            columns, other = other, columns
    return columns


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return skewed 95-bit keys over two columns, with a third column carried along."""
    columns = rng.zipf(1.2, (3, size)).astype(np.uint64)
    columns[0] <<= np.uint64(20)
    columns[1] <<= np.uint64(33)
    columns[2] = np.arange(size)
    return {"columns": columns, "key_bits": 95}
