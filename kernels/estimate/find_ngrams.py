"""Find the rows of n-grams that are parts of longer n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..common.sorted_search import first_from
from ..compile_cpu import njit
from ..count.ngram_keys import ngram_keys
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"COLUMNS": c} for c in (1, 2, 3))
SAMPLED = 64  # on a CPU: every so many rows, one row is searched first
TOGETHER = 64  # searches of a CPU that run in step


def find_ngrams(columns: Any, order: int, bits: int, queries: Any, first: int) -> Any:
    """Return the row in a table of an n-gram within each query.

    columns  (C, G) uint64, sorted distinct keys of `order` words of `bits` bits (kernels.count.ngram_keys)
    queries  (D, Q) uint64, keys of first + order words or more; sorted queries are faster. May be a slice of longer
             columns, like `columns`
    first    index of the word in a query at which its n-gram begins

    Returns rows_Q (Q,) int64; -1 if the table lacks the n-gram.
    """
    for keys in columns, queries:
        check.dtype(keys, np.uint64)
    C = check.num_columns(order, bits)
    if len(columns) != C or len(queries) < check.num_columns(first + order, bits):
        raise ValueError(
            f"got keys of {len(columns)} and {len(queries)} columns but words {first} to {first + order - 1} of {bits} "
            f"bits need {C} and {check.num_columns(first + order, bits)}"
        )
    run = pick(cpu=_cpu, cuda=_cuda, columns=columns, queries=queries)
    return run(columns, order * bits, queries, first * bits)


def _cpu(columns, used, queries, skipped):
    rows_Q = np.empty(queries.shape[1], np.int64)
    if skipped and columns.shape[1]:
        _find_in_step(columns, used, queries, skipped, rows_Q)
    else:
        _find(columns, used, queries, skipped, rows_Q)
    return rows_Q


@njit(nogil=True, cache=True)
def _part_of(queries, q, skipped, used, key):
    """Fill `key` with the `used` bits of query q that follow its first `skipped` bits."""
    for c in range(len(key)):
        at, by = c + skipped // 64, uint64(skipped % 64)
        value = queries[at, q] << by
        if by and at + 1 < len(queries):
            value |= queries[at + 1, q] >> (uint64(64) - by)
        left = used - 64 * c
        if left < 64:
            value &= ~(~uint64(0) >> uint64(left))
        key[c] = value


@njit(nogil=True, cache=True)
def _compare(columns, row, key):
    """Return -1, 0 or 1: how the key of a row compares with `key`."""
    for c in range(len(key)):
        if columns[c, row] != key[c]:
            return -1 if columns[c, row] < key[c] else 1
    return 0


@njit(nogil=True, cache=True)
def _find(columns, used, queries, skipped, rows_Q):
    G, at = columns.shape[1], np.int64(0)
    key = np.empty(len(columns), np.uint64)
    sampled_S = columns[0, ::SAMPLED].copy()  # small enough to stay in a cache, where most of a search runs
    for q in range(len(rows_Q)):
        _part_of(queries, q, skipped, used, key)
        low, high = at, at
        if at < G and _compare(columns, at, key) <= 0:
            # The row often lies a few rows after the previous one: search from there with doubling steps.
            step = 1
            while high < G and step <= SAMPLED and _compare(columns, high, key) <= 0:
                low, high, step = high, high + step, 2 * step
            high = min(high, G)
        if low == high or (high < G and _compare(columns, high, key) < 0):
            sample = first_from(sampled_S, np.int64(0), len(sampled_S), key[0])
            low = max(0, SAMPLED * (sample - 1))
            if sample < len(sampled_S) and sampled_S[sample] == key[0]:  # many rows share the first column
                above = key[0] + np.uint64(1)
                sample = first_from(sampled_S, sample, len(sampled_S), above) if above else len(sampled_S)
            high = min(G, SAMPLED * sample)
        while low < high:  # the first row that is not below the key
            middle = (low + high) // 2
            if _compare(columns, middle, key) < 0:
                low = middle + 1
            else:
                high = middle
        at = low
        rows_Q[q] = low if low < G and _compare(columns, low, key) == 0 else -1


@njit(nogil=True, cache=True)
def _find_in_step(columns, used, queries, skipped, rows_Q):
    """As `_find`, for queries whose parts do not rise: TOGETHER searches run in step, so that they wait for memory
    together, and no branch depends on a key.
    """
    G, C, Q = columns.shape[1], len(columns), len(rows_Q)
    sampled_S = columns[0, ::SAMPLED].copy()
    keys = np.empty((TOGETHER, C), np.uint64)
    first, low = np.empty(TOGETHER, np.uint64), np.empty(TOGETHER, np.int64)
    for begin in range(0, Q, TOGETHER):
        width = min(TOGETHER, Q - begin)
        for j in range(width):
            _part_of(queries, begin + j, skipped, used, keys[j])
            first[j], low[j] = keys[j, 0], 0
        left = len(sampled_S)  # the last sample below the key, if any, is among this many from `low` on
        while left > 1:
            half = left // 2
            for j in range(width):
                low[j] += half * (sampled_S[low[j] + half] < first[j])
            left -= half
        for j in range(width):
            low[j] *= SAMPLED
        left = SAMPLED
        while left > 1:
            half = left // 2
            for j in range(width):
                at = low[j] + half
                low[j] += half * ((at < G) & (columns[0, min(at, G - 1)] < first[j]))
            left -= half
        for j in range(width):
            row = low[j] + (columns[0, low[j]] < first[j])  # the first row whose first column is not below the key
            if C > 1 and row < G and columns[0, row] == first[j] and columns[1, row] != keys[j, 1]:
                row = _not_below_row(columns, row, keys[j])
            is_equal = row < G
            for c in range(C):
                is_equal = is_equal and columns[c, row] == keys[j, c]
            rows_Q[begin + j] = row if is_equal else -1


@njit(nogil=True, cache=True)
def _not_below_row(columns, row, key):
    """Return the first row from `row` on that is not below the key: it is near, since few rows share a first column."""
    G, step = columns.shape[1], 1
    low = high = row
    while high < G and _compare(columns, high, key) < 0:
        low, high, step = high + 1, high + step, 2 * step
    high = min(high, G)
    while low < high:
        middle = (low + high) // 2
        if _compare(columns, middle, key) < 0:
            low = middle + 1
        else:
            high = middle
    return low


def _cuda(columns, used, queries, skipped):
    import cupy

    (C, G), Q = columns.shape, queries.shape[1]
    rows_Q = cupy.empty(Q, np.int64)
    if Q:
        fn = kernel("estimate/find_ngrams", "find_ngrams", COLUMNS=C)
        (columns, stride), (queries, stride_queries) = check.column_stride(columns), check.column_stride(queries)
        table, sought = (columns, stride, G, np.int32(used)), (queries, stride_queries, np.int32(len(queries)), Q)
        launch(fn, grid_for(Q, 256), 256, (*table, *sought, np.int32(skipped), rows_Q))
    return rows_Q


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a table of at most `size` rows of 1 to 3 columns, and longer n-grams; half of these contain a row."""
    order, first, bits = 1 + size % 5, size % 3, (19, 21, 33)[size % 3]
    words = rng.integers(1, 5 + size, (2 * size, first + order)).astype(np.uint32)
    starts = np.arange(2 * size) * (first + order)
    queries = ngram_keys(words.reshape(-1), first + order, bits, None, starts)
    keys = ngram_keys(words[::2, first:].reshape(-1), order, bits, None, np.arange(size) * order)
    columns = np.unique(keys, axis=1) if size else keys
    return {
        "columns": np.ascontiguousarray(columns),
        "order": order,
        "bits": bits,
        "queries": queries[:, np.lexsort(queries[::-1])] if size % 2 else queries,
        "first": first,
    }
