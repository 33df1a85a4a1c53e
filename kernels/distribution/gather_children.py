"""Copy ranges of children out of a trie."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS, TILE = 256, 2048  # threads of a block; children plus ranges that it takes at once
VARIANTS = tuple({"CHILD": child, "THREADS": THREADS, "TILE": TILE} for child in check.INTEGER.values())


def gather_children(first_R: Any, end_R: Any, word_G: Any, value_G: Any) -> tuple[Any, Any, Any]:
    """Return the words and values of ranges of children, concatenated.

    first_R, end_R  (R,) uint32 or int64: range r is nodes first_R[r] to end_R[r] - 1. Ranges may be empty or overlap
    word_G          (G,) uint32
    value_G         (G,) float32

    Returns offsets (R + 1,) int64, word_C (C,) uint32 and value_C (C,) float32, with C = offsets[R]. Range r is
    offsets[r] to offsets[r + 1] - 1 of word_C and value_C.
    """
    check.dtype(first_R, np.uint32, np.int64)
    check.dtype(end_R, first_R.dtype)
    check.dtype(word_G, np.uint32)
    check.dtype(value_G, np.float32)
    run = pick(cpu=_cpu, cuda=_cuda, first_R=first_R, end_R=end_R, word_G=word_G, value_G=value_G)
    return run(first_R, end_R, word_G, value_G)


@njit(nogil=True, cache=True)
def _cpu(first_R, end_R, word_G, value_G):
    R = len(first_R)
    offsets = np.zeros(R + 1, np.int64)
    for r in range(R):
        offsets[r + 1] = offsets[r] + np.int64(end_R[r]) - np.int64(first_R[r])
    word_C, value_C = np.empty(offsets[R], np.uint32), np.empty(offsets[R], np.float32)
    for r in range(R):
        first, offset = np.int64(first_R[r]), offsets[r]
        for i in range(offsets[r + 1] - offset):  # a copy of slices takes Numba 2 s to compile
            word_C[offset + i] = word_G[first + i]
            value_C[offset + i] = value_G[first + i]
    return offsets, word_C, value_C


def _cuda(first_R, end_R, word_G, value_G):
    import cupy

    R = len(first_R)
    offsets = cupy.zeros(R + 1, np.int64)
    if R:
        cupy.cumsum((end_R - first_R).astype(np.int64), out=offsets[1:])
    C = int(offsets[R])
    word_C, value_C = cupy.empty(C, np.uint32), cupy.empty(C, np.float32)
    if C:
        sizes = {"THREADS": THREADS, "TILE": TILE}
        fn = kernel("distribution/gather_children", "gather_children", CHILD=check.INTEGER[first_R.dtype], **sizes)
        launch(fn, grid_for(R + C, TILE), THREADS, (first_R, offsets, R, C, word_G, value_G, word_C, value_C))
    return offsets, word_C, value_C


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return about `size` children in ranges: most short, some empty or long; if `size` is odd, many empty in a row."""
    G = size + 1
    starts = rng.integers(0, G, max(1, size // 5))
    runs = np.minimum(rng.zipf(1.3, len(starts)) - size % 2, G - starts)
    ends = starts + np.where(np.cumsum(runs) < 4 * G, runs, 0)
    dtype = np.uint32 if size % 3 else np.int64
    return {
        "first_R": starts.astype(dtype),
        "end_R": ends.astype(dtype),
        "word_G": rng.integers(0, 1 << 20, G).astype(np.uint32),
        "value_G": -rng.random(G, np.float32),
    }
