"""Merge sorted tables of n-gram counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..dispatch import pick
from .ngram_keys import ngram_keys
from .prefix_runs import prefix_runs
from .radix_sort import radix_sort


def merge_tables(tables: list[tuple[Any, Any]], order: int, bits: int) -> tuple[Any, Any]:
    """Return one sorted table that sums the counts of equal keys; any order of merging gives the same.

    tables  one or more pairs (keys (C, G) uint64 sorted, counts (G,) int64), all on one device,
            keys of `order` words of `bits` bits; empty tables are legal

    Returns such a pair.
    """
    arrays = {f"keys_{i}": keys for i, (keys, _) in enumerate(tables)}
    arrays |= {f"counts_{i}": counts for i, (_, counts) in enumerate(tables)}
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(tables, order, bits)


def _cpu(tables, order, bits):
    tables = [(np.ascontiguousarray(keys), counts) for keys, counts in tables]
    while len(tables) > 1:  # pairs, then pairs of pairs: each row moves log2(tables) times
        pairs = [_merge_two(*a, *b) for a, b in zip(tables[::2], tables[1::2], strict=False)]
        tables = pairs + tables[len(pairs) * 2 :]
    return tables[0]


@njit(nogil=True, cache=True)
def _merge_two(keys_a, counts_a, keys_b, counts_b):
    C, A = keys_a.shape
    B = keys_b.shape[1]
    keys = np.empty((C, A + B), np.uint64)
    counts = np.empty(A + B, np.int64)
    a, b, g = 0, 0, 0
    while a < A or b < B:
        order = 0  # below 0: row a comes first; above 0: row b
        if b == B:
            order = -1
        elif a == A:
            order = 1
        else:
            for c in range(C):
                if keys_a[c, a] != keys_b[c, b]:
                    order = -1 if keys_a[c, a] < keys_b[c, b] else 1
                    break
        if order <= 0:
            for c in range(C):
                keys[c, g] = keys_a[c, a]
            counts[g] = counts_a[a]
            a += 1
            if order == 0:
                counts[g] += counts_b[b]
                b += 1
        else:
            for c in range(C):
                keys[c, g] = keys_b[c, b]
            counts[g] = counts_b[b]
            b += 1
        g += 1
    return keys[:, :g].copy(), counts[:g].copy()


def _cuda(tables, order, bits):
    import cupy

    if len(tables) == 1:
        return tables[0]
    C = len(tables[0][0])
    columns = cupy.empty((C + 1, sum(len(counts) for _, counts in tables)), np.uint64)
    row = 0
    for keys, counts in tables:
        columns[:C, row : row + len(counts)] = keys
        columns[C, row : row + len(counts)] = counts.view(np.uint64)
        row += len(counts)
    columns = radix_sort(columns, order * bits)
    return prefix_runs(columns[:C], bits, order, order, columns[C].view(np.int64))[0]


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Three tables of trigrams that share most keys, the last one empty."""
    tables = []
    for T in (size, size // 2, 0):
        tokens_T = np.minimum(rng.zipf(1.5, T), 2**20 - 1).astype(np.uint32)
        columns = radix_sort(ngram_keys(tokens_T, 3, 25), 75)
        tables += prefix_runs(columns, 25, 3, 3)
    return {"tables": tables, "order": 3, "bits": 25}
