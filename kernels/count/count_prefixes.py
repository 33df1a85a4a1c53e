"""Count the distinct n-grams of every order in one sorted list of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.kernels.common.radix_sort import radix_sort

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .ngram_keys import example as keys_example
from .ngram_keys import ngram_keys

SEGMENT = 512  # rows of one warp; as in count_prefixes.cu


def count_prefixes(
    columns: Any, bits: int, first_order: int, last_order: int, weights_R: Any = None
) -> list[tuple[Any, Any]]:
    """Return the distinct n-grams and their counts for each order from first to last.

    columns    (C, R) uint64, sorted keys of words of `bits` bits, padded with zeros; see `ngram_keys`. May be a slice
               of longer columns
    weights_R  (R,) int64, the count of each row; 1 if None

    Returns a pair for each n = first_order .. last_order: keys (ceil(n * bits / 64), G) uint64, the
    distinct, sorted first n words of the rows that have n words; and counts (G,) int64.
    """
    check.dtype(columns, np.uint64)
    run = pick(cpu=_cpu, cuda=_cuda, columns=columns, weights_R=weights_R)
    return run(columns, bits, first_order, last_order, weights_R)


def _cpu(columns, bits, first_order, last_order, weights_R):
    orders = range(first_order, last_order + 1)
    mask_NC = _prefix_masks(last_order, bits, len(columns))
    size_N = _count(columns, first_order, mask_NC)
    width_N = np.array([check.num_columns(n, bits) for n in orders], np.int64)
    # The tables lie one after the other in two arrays, so that one pass fills them all.
    keys, counts = np.empty((width_N * size_N).sum(), np.uint64), np.zeros(size_N.sum(), np.int64)
    key_end_N, count_end_N = np.cumsum(width_N * size_N), np.cumsum(size_N)
    weighted = weights_R is not None
    tables = width_N, size_N, key_end_N - width_N * size_N, count_end_N - size_N
    weights_R = weights_R if weighted else np.empty(0, np.int64)
    _emit(columns, first_order, mask_NC, weights_R, weighted, tables, keys, counts)
    return [
        (keys[k - w * G : k].reshape(w, G), counts[c - G : c])
        for w, G, k, c in zip(width_N, size_N, key_end_N, count_end_N, strict=True)
    ]


@njit(nogil=True, cache=True)
def _prefix_masks(last_order, bits, C):
    """Return (last_order + 1, C) uint64: the bits of the first n words, for every n."""
    mask_NC = np.zeros((last_order + 1, C), np.uint64)
    for n in range(last_order + 1):
        for c in range(C):
            kept = n * bits - 64 * c
            if kept >= 64:
                mask_NC[n, c] = ~np.uint64(0)
            elif kept > 0:
                mask_NC[n, c] = ~np.uint64(0) << np.uint64(64 - kept)
    return mask_NC


@njit(nogil=True, cache=True)
def _shared_words(columns, r, mask_NC):
    """Return how many leading words row r shares with the row before it."""
    if r == 0:
        return 0
    for n in range(1, len(mask_NC)):
        for c in range(len(columns)):
            if (columns[c, r] ^ columns[c, r - 1]) & mask_NC[n, c]:
                return n - 1
    return len(mask_NC) - 1


@njit(nogil=True, cache=True)
def _words(columns, r, mask_NC):
    """Return the number of words of row r: pads are zero codes at its end."""
    for n in range(len(mask_NC) - 1, 0, -1):
        for c in range(len(columns)):
            if columns[c, r] & (mask_NC[n, c] ^ mask_NC[n - 1, c]):
                return n
    return 0


@njit(nogil=True, cache=True)
def _count(columns, first_order, mask_NC):
    size_N = np.zeros(len(mask_NC) - first_order, np.int64)
    for r in range(columns.shape[1]):
        shared, words = _shared_words(columns, r, mask_NC), _words(columns, r, mask_NC)
        for n in range(max(shared + 1, first_order), words + 1):
            size_N[n - first_order] += 1
    return size_N


@njit(nogil=True, cache=True)
def _emit(columns, first_order, mask_NC, weights_R, weighted, tables, keys, counts):
    width_N, size_N, key_start_N, count_start_N = tables
    group_N = np.full(len(size_N), -1)
    for r in range(columns.shape[1]):
        shared, words = _shared_words(columns, r, mask_NC), _words(columns, r, mask_NC)
        weight = weights_R[r] if weighted else 1
        for i in range(words - first_order + 1):
            n = first_order + i
            if n > shared:
                group_N[i] += 1
                for c in range(width_N[i]):
                    keys[key_start_N[i] + c * size_N[i] + group_N[i]] = columns[c, r] & mask_NC[n, c]
            counts[count_start_N[i] + group_N[i]] += weight


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
    columns, stride = check.column_stride(columns)
    shape = (columns, stride, R, np.int32(C), np.int32(bits), np.int32(first_order), np.int32(N))
    heads_NW = cupy.empty((N, W), np.int64)
    launch(kernel("count/count_prefixes", "count_heads"), blocks, 256, (*shape, heads_NW, W))
    ends_NW = cupy.cumsum(heads_NW, axis=1)
    sizes = [int(s) for s in ends_NW[:, -1].get()]
    ends_NW -= heads_NW
    before_R = 0
    if weights_R is not None:
        before_R = cupy.zeros(R + 1, np.int64)
        cupy.cumsum(weights_R, out=before_R[1:])
    # Largest arrays first: then more arrays fit the memory that the sort has freed.
    keys = [cupy.empty((w, G), np.uint64) for w, G in zip(widths[::-1], sizes[::-1], strict=True)][::-1]
    tables = list(zip(keys, [cupy.zeros(G, np.int64) for G in sizes[::-1]][::-1], strict=True))
    addresses = [[k.data.ptr for k, _ in tables], [c.data.ptr for _, c in tables], [c.size for _, c in tables]]
    pointers = cupy.asarray(np.array(addresses, np.uint64))
    launch(
        kernel("count/count_prefixes", "write_groups"),
        blocks,
        256,
        (*shape, ends_NW, W, before_R, pointers[0], pointers[1], pointers[2]),
    )
    return tables


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sorted keys of a random stream of words, orders 1 to 5."""
    keys = keys_example(rng, size)
    columns = radix_sort(ngram_keys(**keys), keys["order"] * keys["bits"])
    return {"columns": columns, "bits": keys["bits"], "first_order": 1, "last_order": 5}
