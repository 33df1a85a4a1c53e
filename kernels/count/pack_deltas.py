"""Pack integers as differences of neighbours (DELTA_BINARY_PACKED), for pages of Parquet files.

https://github.com/apache/parquet-format, Encodings.md, describes the format. A page has its number of rows and its
first value, then blocks of BLOCK differences: the least difference, the width of each part of PART, and the bits that
exceed the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy import int64, uint8, uint64

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import array_module, pick
from ..intrinsics import leading_zeros, store_u64
from ..launch import grid_for, kernel, launch

VARIANTS = ({"WRITE": 0}, {"WRITE": 1})
BLOCK, PART = 128, 32  # values of a block, and of one of its parts, a miniblock: each has its own width
WIDTHS = BLOCK // PART
WARPS = 8  # warps of a thread block, as in pack_deltas.cu


class Numbers(NamedTuple):
    """R integers: 64-bit words, or the same bit field of each word or of each pair of words.

    high_R, low_R  (R,) uint64, contiguous
    shift          the integer is high >> shift; if negative, its lower -shift bits are the upper ones of low
    mask           mask of the integer's bits
    less           number to subtract
    """

    high_R: Any
    low_R: Any
    shift: int = 0
    mask: int = (1 << 64) - 1
    less: int = 0


class PackedPages(NamedTuple):
    """Pages of C columns, one after the other, first the pages of the first column.

    data        uint8; page p of column c is data[starts_CP1[c][p]:starts_CP1[c][p + 1]]
    starts_CP1  in host memory
    least_CP    (C, P) int64, the least integer of each page, and
    most_CP     (C, P) int64, the greatest one
    """

    data: Any
    starts_CP1: list[list[int]]
    least_CP: Any
    most_CP: Any


def pack_deltas(columns: Sequence[Numbers], starts_P1: Sequence[int]) -> PackedPages:
    """Return pages of columns of integers, which have as many rows.

    starts_P1  rising: page p has the integers starts_P1[p] to starts_P1[p + 1] - 1, at least one, and the last one ends
               with the integers

    One call packs all columns and waits once for the device: beside other Python threads, each CUDA call takes up to a
    millisecond.
    """
    arrays = {f"{name}_{c}": getattr(n, f"{name}_R") for c, n in enumerate(columns) for name in ("high", "low")}
    for words_R in arrays.values():
        check.dtype(words_R, np.uint64)
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    check.contiguous(**arrays)
    return run(columns, starts_P1)


def most_bytes(rows: int) -> int:
    """Return the most bytes that a page may take; `pack_page` may overwrite the last 8 of them."""
    return 32 + (rows // BLOCK + 1) * (10 + WIDTHS + 8 * BLOCK) + 8


def whole_numbers(values_R: Any) -> Numbers:
    """Return int64 or uint64 integers as `Numbers`; integers from 2^63 on become negative."""
    words_R = values_R.view(np.uint64)
    return Numbers(words_R, words_R)


def numbers_of_word(keys_CR: Any, bits: int, n: int) -> Numbers:
    """Return the ids of word n of n-grams: their codes less 1. keys_CR (C, R) as in `core.counts.tables.Table`."""
    column, used = divmod(n * bits, 64)
    shift = 64 - used - bits  # negative if the code continues in the next column
    xp = array_module(keys_CR)
    high_R, low_R = map(xp.ascontiguousarray, (keys_CR[column], keys_CR[column + (shift < 0)]))
    return Numbers(high_R, low_R, shift, (1 << bits) - 1, 1)


def scalars(numbers: Numbers) -> tuple[Any, ...]:
    """Return shift, mask and less as NumPy scalars, so that Numba compiles one variant."""
    return int64(numbers.shift), uint64(numbers.mask), int64(numbers.less)


def _cpu(columns, starts_P1):
    C, P = len(columns), len(starts_P1) - 1
    least_CP, most_CP = np.empty((C, P), np.int64), np.empty((C, P), np.int64)
    data = np.empty(C * sum(most_bytes(end - start) for start, end in pairwise(starts_P1)), np.uint8)
    at, starts_CP1 = 0, []
    for c, numbers in enumerate(columns):
        starts_CP1.append([at])
        for p, (start, end) in enumerate(pairwise(starts_P1)):
            high_R, low_R = (read_only(words_R[start:end]) for words_R in numbers[:2])
            size, least_CP[c, p], most_CP[c, p] = pack_page(high_R, low_R, *scalars(numbers), data[at:])
            at += size
            starts_CP1[-1].append(at)
    return PackedPages(data[:at].copy(), starts_CP1, least_CP, most_CP)


@njit(nogil=True, cache=True)
def pack_page(high_R, low_R, shift, mask, less, page_B):
    """Write a page of all rows to page_B, of `most_bytes`; return (its bytes, the least integer, the greatest one)."""
    R = len(high_R)
    value_P, difference_P = np.empty(BLOCK, int64), np.empty(BLOCK, uint64)
    at = _put(page_B, _put(page_B, _put(page_B, 0, uint64(BLOCK)), uint64(WIDTHS)), uint64(R))
    _take(high_R, low_R, shift, mask, less, 0, 1, value_P)
    least = most = before = value_P[0]
    at = _put_signed(page_B, at, before)
    for first in range(1, R, BLOCK):
        size = min(BLOCK, R - first)
        _take(high_R, low_R, shift, mask, less, first, size, value_P)
        for i in range(size):
            least, most = min(least, value_P[i]), max(most, value_P[i])
        smallest = value_P[0] - before
        difference_P[0] = uint64(smallest)
        for i in range(1, size):
            difference = value_P[i] - value_P[i - 1]
            difference_P[i] = uint64(difference)
            smallest = min(smallest, difference)
        before = value_P[size - 1]
        for i in range(size):  # not of slices, which take 3 s longer to compile
            difference_P[i] -= uint64(smallest)
        for i in range(size, BLOCK):
            difference_P[i] = 0
        widths = _put_signed(page_B, at, smallest)
        at = widths + WIDTHS
        for part in range(WIDTHS):
            some = uint64(0)
            for i in range(part * PART, (part + 1) * PART):
                some |= difference_P[i]
            width = uint64(64) - uint64(leading_zeros(some)) if some else uint64(0)
            page_B[widths + part] = uint8(width)
            at = _pack_part(difference_P, part * PART, width, page_B, at)
    return at, least, most


@njit(nogil=True, cache=True, inline="always")
def _take(high_R, low_R, shift, mask, less, first, size, value_P):
    """Set the integers of `size` rows from row `first` on."""
    if shift >= 0:
        right = uint64(shift)
        for i in range(size):
            value_P[i] = int64((high_R[first + i] >> right) & mask) - less
    else:
        left, right = uint64(-shift), uint64(64 + shift)
        for i in range(size):
            value_P[i] = int64(((high_R[first + i] << left) | (low_R[first + i] >> right)) & mask) - less


@njit(nogil=True, cache=True, inline="always")
def _pack_part(difference_P, first, width, page_B, at):
    """Write PART differences of `width` bits, the lowest first; return the place after them."""
    held, bits = uint64(0), uint64(0)
    if width:
        for i in range(first, first + PART):
            held |= difference_P[i] << bits
            bits += width
            if bits >= uint64(64):
                store_u64(page_B, at, held)
                at += 8
                bits -= uint64(64)
                held = difference_P[i] >> (width - bits) if bits else uint64(0)
    if bits:  # 32
        store_u64(page_B, at, held)
        at += 4
    return at


@njit(nogil=True, cache=True, inline="always")
def _put(page_B, at, value):
    """Write a number with 7 bits in each byte, the lowest first; return the place after it."""
    while value >= uint64(128):
        page_B[at] = uint8(value & uint64(127)) | uint8(128)
        value >>= uint64(7)
        at += 1
    page_B[at] = uint8(value)
    return at + 1


@njit(nogil=True, cache=True, inline="always")
def _put_signed(page_B, at, value):
    return _put(page_B, at, uint64(value << int64(1)) ^ uint64(value >> int64(63)))


def _cuda(columns, starts_P1):
    import cupy

    C, P, limits = len(columns), len(starts_P1) - 1, np.iinfo(np.int64)
    if P == 0:
        return PackedPages(cupy.empty(0, np.uint8), [[0]] * C, *cupy.empty((2, C, 0), np.int64))
    arrays = np.empty((3 + 2 * C, P + 1), np.int64)  # one array, so that it is copied at once
    starts, firsts, lasts = arrays[:3]
    starts[:], arrays[3 : 3 + C], arrays[3 + C :] = starts_P1, limits.max, limits.min
    firsts[0], firsts[1:] = 0, np.cumsum(np.maximum((np.diff(starts) + (BLOCK - 2)) // BLOCK, 1))
    lasts[:P], K = firsts[1:] - 1, int(firsts[-1])
    arrays = cupy.asarray(arrays)
    least_CP1, most_CP1 = arrays[3 : 3 + C], arrays[3 + C :]
    bytes_CK, blocks = cupy.empty((C, K), np.int64), grid_for(K, WARPS)

    def launch_all(write: int, ends_CK: Any, data: Any) -> None:
        pack = kernel("count/pack_deltas", "pack_deltas", WRITE=write)
        for c, n in enumerate(columns):
            integers = n.high_R, n.low_R, n.shift, np.uint64(n.mask), n.less
            found = bytes_CK[c], least_CP1[c], most_CP1[c], None if ends_CK is None else ends_CK[c]
            launch(pack, blocks, 32 * WARPS, (*integers, arrays[0], arrays[1], P, *found, data))

    launch_all(0, None, None)
    ends_CK = cupy.cumsum(bytes_CK).reshape(C, K)
    ends_CP = ends_CK[:, arrays[2, :P]].get().tolist()
    data = cupy.empty(ends_CP[-1][-1], np.uint8)
    launch_all(1, ends_CK, data)
    starts_CP1 = [[before, *ends] for before, ends in zip([0, *(ends[-1] for ends in ends_CP)], ends_CP, strict=False)]
    return PackedPages(data, starts_CP1, least_CP1[:, :P], most_CP1[:, :P])


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the last of three codes of 27 bits, in two words, and the words, as pages of 1, 2, 5 and more rows."""
    sizes = [1, 2, 5, 129, 300]
    starts = [0, *(int(n) for n in np.cumsum(sizes) if n < size), size]
    words_2R = rng.integers(0, 1 << 64, (2, size), np.uint64)
    words_2R[1] >>= rng.integers(0, 40, size, np.uint64)
    columns = [Numbers(words_2R[0], words_2R[1], -17, (1 << 27) - 1, 1), whole_numbers(words_2R[1])]
    return {"columns": columns, "starts_P1": starts if size else [0]}
