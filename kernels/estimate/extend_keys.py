"""Make the keys of the n-grams of one order from those of the order below, of which they are children."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit, read_only
from ..count.ngram_keys import ngram_keys
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"COLUMNS": c, "ROW": row} for c in (1, 2, 3) for row in check.INTEGER.values())
THREADS = 256
TILE = 8 * THREADS  # n-grams of a block of threads, which searches once where they lie; as in extend_keys.cu


def extend_keys(keys: Any, first_M1: Any, word_G: Any, order: int, bits: int) -> Any:
    """Return (D, G) uint64, the keys of the n-grams of one order, D = ceil(order * bits / 64).

    keys      (C, M) uint64, of the nodes of the order below: their words, with zeros after them
              (kernels.count.ngram_keys)
    first_M1  (M + 1,) uint32 or int64, their first children
    word_G    (G,) uint32, ids of the last words of these children
    """
    check.dtype(keys, np.uint64)
    check.dtype(first_M1, *check.INTEGER)
    check.dtype(word_G, np.uint32)
    if len(keys) != (needed := check.num_columns(order - 1, bits)):
        raise ValueError(f"got keys of {len(keys)} columns but {order - 1} words of {bits} bits need {needed}")
    run = pick(cpu=_cpu, cuda=_cuda, keys=keys, first_M1=first_M1, word_G=word_G)
    return run(keys, first_M1, word_G, order, bits)


def _cpu(keys, first_M1, word_G, order, bits):
    longer = np.empty((check.num_columns(order, bits), len(word_G)), np.uint64)
    _extend(read_only(keys), read_only(first_M1), read_only(word_G), *check.code_place(order - 1, bits), longer)
    return longer


@njit(nogil=True, cache=True)
def _extend(keys, first_M1, word_G, column, spare, longer):
    C = len(keys)
    for m in range(len(first_M1) - 1):
        for g in range(first_M1[m], first_M1[m + 1]):
            for c in range(C):
                longer[c, g] = keys[c, m]
            code = uint64(word_G[g]) + uint64(1)
            if column == C:
                longer[C, g] = code << uint64(spare)
            elif spare >= 0:
                longer[column, g] |= code << uint64(spare)
            else:
                longer[column, g] |= code >> uint64(-spare)
                longer[column + 1, g] = code << uint64(64 + spare)


def _cuda(keys, first_M1, word_G, order, bits):
    import cupy

    (C, M), G = keys.shape, len(word_G)
    longer = cupy.empty((check.num_columns(order, bits), G), np.uint64)
    if G:
        column, spare = map(np.int32, check.code_place(order - 1, bits))
        fn = kernel("estimate/extend_keys", "extend_keys", COLUMNS=C, ROW=check.INTEGER[first_M1.dtype])
        keys, stride = check.column_stride(keys)
        launch(fn, grid_for(G, TILE), THREADS, (keys, stride, M, first_M1, word_G, G, column, spare, longer))
    return longer


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return keys of 1 to 6 words, of which some have no children, and one has half of them."""
    order, bits = 2 + size % 6, (19, 21, 33)[size % 3]
    M = 1 + size // 2
    words = rng.integers(1, 5 + size, M * (order - 1)).astype(np.uint32)
    children_M = rng.multinomial(size - size // 2, np.full(M, 1 / M))
    children_M[M // 2] += size // 2
    first_M1 = np.concatenate([[0], np.cumsum(children_M)])
    return {
        "keys": ngram_keys(words, order - 1, bits, None, np.arange(M) * (order - 1)),
        "first_M1": first_M1.astype(np.uint32 if size % 2 else np.int64),
        "word_G": rng.integers(0, 4 + size, size).astype(np.uint32),
        "order": order,
        "bits": bits,
    }
