"""Merge sorted tables of n-gram counts, segment by segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS, ITEMS, MIN_BLOCKS = 256, 7, 5  # an odd number of rows per thread spreads them over the banks of shared memory
STAGED = 2  # key columns that the kernel keeps in shared memory
TILE = {"THREADS": THREADS, "ITEMS": ITEMS, "MIN_BLOCKS": MIN_BLOCKS}
VARIANTS = tuple(TILE | {"STAGED": c} for c in range(1, STAGED + 1))
COUNT_MASK = np.uint64((1 << 62) - 1)  # as in merge_tables.cu

TableArrays = tuple[Any, Any, np.ndarray]


def merge_tables(tables: list[TableArrays]) -> TableArrays:
    """Return one table that sums the counts of equal keys; any order of merging gives the same table.

    tables  one or more triples (keys, counts, ends_S) with the same C and S, on one device:
            keys    (C, G) uint64, sorted and distinct within a segment; the first column compares first
            counts  (G,) int64
            ends_S  (S,) int64, NumPy; segment s is rows ends_S[s - 1] (0 for the first) to ends_S[s]
            Tables and segments may be empty; keys and counts may be slices of larger arrays.

    Returns such a triple. A single table is returned unchanged. The arrays may be slices of arrays up to
    4/3 as long.

    Tables are merged in pairs, then pairs of pairs. This needs at most twice the bytes of `tables` in
    addition: the inputs of a merge and its output, which has room for all rows of both.
    """
    arrays: dict[str, Any] = {}
    for i, (keys, counts, ends_S) in enumerate(tables):
        check.dtype(keys, np.uint64)
        check.dtype(counts, np.int64)
        check.dtype(ends_S, np.int64)
        arrays |= {f"keys_{i}": keys, f"counts_{i}": counts}
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    C, S = len(tables[0][0]), len(tables[0][2])
    for i, (keys, counts, ends_S) in enumerate(tables):
        rows = (keys.shape[1], len(counts), int(ends_S[-1]))
        if (len(keys), len(ends_S)) != (C, S) or len(set(rows)) > 1:
            raise ValueError(
                f"table {i} has {len(keys)} columns, {len(ends_S)} segments and, in keys, counts and ends_S, "
                f"{rows[0]}, {rows[1]} and {rows[2]} rows; give every table {C} columns and {S} segments, as table 0 "
                "has, and one number of rows"
            )
    return run(tables)


def _in_pairs(tables: list[TableArrays], merge_two: Callable[..., TableArrays]) -> TableArrays:
    """Merge as a balanced tree, so that each row moves about log2(tables) times."""
    queue = deque([table for table in tables if len(table[1])] or tables[:1])
    while len(queue) > 1:
        queue.append(_trimmed(*merge_two(*queue.popleft(), *queue.popleft())))
    return queue[0]


def _trimmed(keys: Any, counts: Any, ends_S: np.ndarray) -> TableArrays:
    """Return the table without the unused rows at its end: a slice, or a copy if more than a quarter is unused."""
    G, room = int(ends_S[-1]), len(counts)
    keys, counts = keys[:, :G], counts[:G]
    if 4 * G < 3 * room:
        keys, counts = keys.copy(), counts.copy()
    return keys, counts, ends_S


def _cpu(tables):
    return _in_pairs(tables, lambda *two_tables: _merge_two(*map(read_only, two_tables)))


@njit(nogil=True, cache=True)
def _merge_two(keys_a, counts_a, ends_a, keys_b, counts_b, ends_b):
    C, room = len(keys_a), len(counts_a) + len(counts_b)
    keys, counts = np.empty((C, room), np.uint64), np.empty(room, np.int64)
    ends_S = np.empty(len(ends_a), np.int64)
    a, b, g = np.int64(0), np.int64(0), np.int64(0)  # Numba would compile what they are passed to for the literal 0 too
    for s in range(len(ends_S)):
        rows = (a, ends_a[s], b, ends_b[s], g)
        if C <= 2:
            a, b, g = _merge_narrow((keys_a, counts_a), (keys_b, counts_b), (keys, counts), rows)
        else:
            a, b, g = _merge_wide((keys_a, counts_a), (keys_b, counts_b), (keys, counts), rows)
        g = _append(keys_a, counts_a, (a, ends_a[s]), keys, counts, g)
        g = _append(keys_b, counts_b, (b, ends_b[s]), keys, counts, g)
        a, b = ends_a[s], ends_b[s]
        ends_S[s] = g
    return keys, counts, ends_S


@njit(nogil=True, cache=True)
def _merge_narrow(table_a, table_b, merged, rows):
    """Merge rows of one or two key columns until one table ends; return the next rows of both and of the output.

    No branch depends on a key, because no processor could predict it.
    """
    (keys_a, counts_a), (keys_b, counts_b), (keys, counts) = table_a, table_b, merged
    a, end_a, b, end_b, g = rows
    last = len(keys) - 1  # of one column, both halves of a key are that column
    high_a, low_a, high_b, low_b, high, low = keys_a[0], keys_a[last], keys_b[0], keys_b[last], keys[0], keys[last]
    while a < end_a and b < end_b:
        x, y, p, q = high_a[a], high_b[b], low_a[a], low_b[b]
        from_a = np.int64((x < y) | ((x == y) & (p <= q)))
        from_b = np.int64((y < x) | ((x == y) & (q <= p)))
        mask = -uint64(from_a)
        high[g] = (x & mask) | (y & ~mask)
        low[g] = (p & mask) | (q & ~mask)
        counts[g] = (counts_a[a] & -from_a) + (counts_b[b] & -from_b)
        a, b, g = a + from_a, b + from_b, g + 1
    return a, b, g


@njit(nogil=True, cache=True)
def _merge_wide(table_a, table_b, merged, rows):
    """As `_merge_narrow`, for any number of key columns."""
    (keys_a, counts_a), (keys_b, counts_b), (keys, counts) = table_a, table_b, merged
    a, end_a, b, end_b, g = rows
    while a < end_a and b < end_b:
        order = _compare_rows(keys_a, a, keys_b, b)
        if order <= 0:
            _copy_row(keys_a, counts_a, a, keys, counts, g)
            a += 1
            if order == 0:
                counts[g] += counts_b[b]
                b += 1
        else:
            _copy_row(keys_b, counts_b, b, keys, counts, g)
            b += 1
        g += 1
    return a, b, g


@njit(nogil=True, cache=True)
def _append(from_keys, from_counts, rows, keys, counts, g):
    """Copy rows from rows[0] to rows[1] - 1 to row g and on; return the end of the output."""
    begin, end = rows
    after = g + end - begin
    for c in range(len(keys)):
        _copy(from_keys[c, begin:end], keys[c, g:after])
    _copy(from_counts[begin:end], counts[g:after])
    return after


@njit(nogil=True, cache=True)
def _copy(source, target):
    """Copy an array of one dimension. An assignment of slices takes Numba 2 s to compile."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(nogil=True, cache=True)
def _compare_rows(keys_a, a, keys_b, b):
    """Return < 0, 0 or > 0 if row a sorts before, with or after row b."""
    for c in range(len(keys_a)):
        x, y = keys_a[c, a], keys_b[c, b]
        if x != y:
            return -1 if x < y else 1
    return 0


@njit(nogil=True, cache=True)
def _copy_row(from_keys, from_counts, r, keys, counts, g):
    for c in range(len(keys)):
        keys[c, g] = from_keys[c, r]
    counts[g] = from_counts[r]


def _cuda(tables):
    return _in_pairs(tables, _merge_two_cuda)


def _merge_two_cuda(keys_a, counts_a, ends_a, keys_b, counts_b, ends_b):
    import cupy

    C, room = len(keys_a), len(counts_a) + len(counts_b)
    (keys_a, stride_a), (keys_b, stride_b) = check.column_stride(keys_a), check.column_stride(keys_b)
    counts_a, counts_b = cupy.ascontiguousarray(counts_a), cupy.ascontiguousarray(counts_b)
    rows_S = np.diff(ends_a + ends_b, prepend=0)
    tile_ends_S = np.cumsum(-(-rows_S // (THREADS * ITEMS - 1)))  # one row short of a tile: see split_tiles
    T = int(tile_ends_S[-1])
    ends_3S = cupy.asarray(np.stack([ends_a, ends_b, tile_ends_S]))
    starts_T2 = cupy.empty((T + 1, 2), np.int64)
    keys, counts = cupy.empty((C, room), np.uint64), cupy.empty(room, np.int64)
    status_T = cupy.zeros(T + 1, np.uint64)
    defines = TILE | {"STAGED": min(C, STAGED)}
    split, merge = (kernel("count/merge_tables", name, **defines) for name in ("split_tiles", "merge_tiles"))
    launch(
        split,
        grid_for(T + 1, 128),
        128,
        (keys_a, stride_a, keys_b, stride_b, np.int32(C), ends_3S, len(ends_a), T, starts_T2),
    )
    table_a, table_b = (keys_a, stride_a, counts_a), (keys_b, stride_b, counts_b)
    launch(
        merge,
        T,
        THREADS,
        (*table_a, *table_b, np.int32(C), starts_T2, keys, room, counts, status_T, cupy.zeros(1, np.uint32)),
        THREADS * ITEMS * 8 * defines["STAGED"],
    )
    ends_S = (status_T[ends_3S[2]] & COUNT_MASK).get().astype(np.int64)
    return keys, counts, ends_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return three tables of four segments that share many keys; the second segment and the last table are empty."""
    tables = []
    for R in (size, size // 2, 0):
        columns = np.minimum(rng.zipf(1.3, (3, R)), 2**24 - 1).astype(np.uint64) << np.uint64(40)
        columns[0] = rng.choice([0, 2, 3], R)  # segments
        columns = columns.take(np.lexsort(columns[::-1]), axis=1)
        heads = np.flatnonzero(np.diff(columns, axis=1, prepend=2**64 - 1).any(axis=0))
        segment_G, keys = columns[0, heads], columns[1:].take(heads, axis=1)
        counts = np.diff(heads, append=R).astype(np.int64)
        tables.append((keys, counts, np.searchsorted(segment_G, np.arange(4, dtype=np.uint64), side="right")))
    return {"tables": tables}
