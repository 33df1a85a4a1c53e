"""Count the distinct n-grams of every order in one sorted list of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .ngram_keys import example as keys_example
from .ngram_keys import ngram_keys
from .radix_sort import radix_sort

SEGMENT = 512  # rows one warp looks after; as in prefix_runs.cu


def prefix_runs(
    columns: Any, bits: int, first_order: int, last_order: int, weights_R: Any = None
) -> list[tuple[Any, Any]]:
    """Return the distinct n-grams and their counts for each order from first to last.

    columns    (C, R) uint64, sorted keys of words of `bits` bits, pads (0) last; see `ngram_keys`
    weights_R  (R,) int64, what each row counts; 1 when None

    Returns for n = first_order .. last_order a pair: keys (ceil(n * bits / 64), G) uint64, the
    first n words of the rows that have n words, distinct and sorted; and counts (G,) int64.
    """
    check.dtype(columns, np.uint64)
    run = pick(cpu=_cpu, cuda=_cuda, columns=columns, weights_R=weights_R)
    return run(columns, bits, first_order, last_order, weights_R)


def _cpu(columns, bits, first_order, last_order, weights_R):
    weighted = weights_R is not None
    weights_R = weights_R if weighted else np.empty(0, np.int64)
    orders = last_order - first_order + 1
    sizes_N = _count(columns, bits, first_order, orders)
    tables = []
    for i, n in enumerate(range(first_order, last_order + 1)):
        keys = np.empty((check.num_columns(n, bits), sizes_N[i]), np.uint64)
        counts = np.zeros(sizes_N[i], np.int64)
        _emit(columns, bits, n, weights_R, weighted, keys, counts)
        tables.append((keys, counts))
    return tables


@njit(nogil=True, cache=True)
def _leading_zeros(x):
    n = 0
    for s in (32, 16, 8, 4, 2, 1):
        if x >> np.uint64(64 - s) == 0:
            n += s
            x <<= np.uint64(s)
    return n


@njit(nogil=True, cache=True)
def _shared_words(columns, r, q, bits):
    for c in range(columns.shape[0]):
        x = columns[c, r] ^ columns[c, q]
        if x != 0:
            return (c * 64 + _leading_zeros(x)) // bits
    return columns.shape[0] * 64 // bits


@njit(nogil=True, cache=True)
def _words(columns, r, bits):
    for c in range(columns.shape[0] - 1, -1, -1):
        x = columns[c, r]
        if x != 0:
            lowest = x & (~x + np.uint64(1))
            return (c * 64 + _leading_zeros(lowest)) // bits + 1
    return 0


@njit(nogil=True, cache=True)
def _count(columns, bits, first_order, orders):
    sizes_N = np.zeros(orders, np.int64)
    for r in range(columns.shape[1]):
        shared = _shared_words(columns, r, r - 1, bits) if r > 0 else 0
        words = _words(columns, r, bits)
        for n in range(max(shared + 1, first_order), min(words, first_order + orders - 1) + 1):
            sizes_N[n - first_order] += 1
    return sizes_N


@njit(nogil=True, cache=True)
def _emit(columns, bits, n, weights_R, weighted, keys, counts):
    g = -1
    tail = n * bits % 64
    mask = ~np.uint64(0) << np.uint64(64 - tail) if tail else ~np.uint64(0)
    last = len(keys) - 1
    for r in range(columns.shape[1]):
        if _words(columns, r, bits) < n:
            continue
        new = g < 0 or (columns[last, r] & mask) != keys[last, g]
        for c in range(last):
            new = new or columns[c, r] != keys[c, g]
        if new:
            g += 1
            for c in range(last):
                keys[c, g] = columns[c, r]
            keys[last, g] = columns[last, r] & mask
        counts[g] += weights_R[r] if weighted else 1


def _cuda(columns, bits, first_order, last_order, weights_R):
    tables = []
    for low in range(first_order, last_order + 1, 32):  # one lane of a warp per order
        tables += _cuda_orders(columns, bits, low, min(low + 31, last_order), weights_R)
    return tables


def _cuda_orders(columns, bits, first_order, last_order, weights_R):
    import cupy

    C, R = columns.shape
    N = last_order - first_order + 1
    widths = [check.num_columns(n, bits) for n in range(first_order, last_order + 1)]
    if R == 0:
        return [(cupy.empty((w, 0), np.uint64), cupy.empty(0, np.int64)) for w in widths]
    W = -(-R // SEGMENT)
    blocks = grid_for(W, 8)
    shape = (columns, R, np.int32(C), np.int32(bits), np.int32(first_order), np.int32(N))
    heads_NW = cupy.empty((N, W), np.int64)
    launch(kernel("count/prefix_runs", "count_heads"), blocks, 256, (*shape, heads_NW, W))
    ends_NW = cupy.cumsum(heads_NW, axis=1)
    sizes = [int(s) for s in ends_NW[:, -1].get()]
    ends_NW -= heads_NW
    before_R = 0
    if weights_R is not None:
        before_R = cupy.zeros(R + 1, np.int64)
        cupy.cumsum(weights_R, out=before_R[1:])
    tables = [(cupy.empty((w, G), np.uint64), cupy.zeros(G, np.int64)) for w, G in zip(widths, sizes, strict=True)]
    addresses = [[k.data.ptr for k, _ in tables], [c.data.ptr for _, c in tables], [c.size for _, c in tables]]
    pointers = cupy.asarray(np.array(addresses, np.uint64))
    launch(
        kernel("count/prefix_runs", "emit_runs"),
        blocks,
        256,
        (*shape, ends_NW, W, before_R, pointers[0], pointers[1], pointers[2]),
    )
    return tables


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Sorted keys of a random stream of words, orders 1 to 5."""
    keys = keys_example(rng, size)
    columns = radix_sort(ngram_keys(**keys), keys["order"] * keys["bits"])
    return {"columns": columns, "bits": keys["bits"], "first_order": 1, "last_order": 5}
