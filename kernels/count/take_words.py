"""Copy chosen words out of a vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import load_u64, prefetch, store_u64
from ..launch import grid_for, kernel, launch

LANES = 8  # as in take_words.cu
AHEAD = 16  # words that a CPU fetches ahead


def take_words(offsets_V: Any, data: Any, rows_R: Any) -> tuple[Any, Any]:
    """Return the words `rows_R`, concatenated.

    offsets_V  (V + 1,) int64 and
    data       uint8: word v is data[offsets_V[v]:offsets_V[v + 1]]
    rows_R     (R,) int64, each 0 to V - 1, in any order, repeated or not

    Returns offsets_R (R + 1,) int64 from 0, and data_R (offsets_R[-1],) uint8.
    """
    check.dtype(offsets_V, np.int64)
    check.dtype(data, np.uint8)
    check.dtype(rows_R, np.int64)
    return pick(cpu=_cpu, cuda=_cuda, offsets_V=offsets_V, data=data, rows_R=rows_R)(offsets_V, data, rows_R)


@njit(nogil=True, cache=True)
def _cpu(offsets_V, data, rows_R):
    R = len(rows_R)
    offsets_R, starts_R = np.zeros(R + 1, np.int64), np.empty(R, np.int64)
    for r in range(R):
        prefetch(offsets_V, rows_R[min(r + AHEAD, R - 1)])
        starts_R[r] = offsets_V[rows_R[r]]
        offsets_R[r + 1] = offsets_R[r] + offsets_V[rows_R[r] + 1] - starts_R[r]
    data_R = np.empty(offsets_R[R], np.uint8)
    whole, room = len(data) - 8, len(data_R) - 8
    for r in range(R):
        prefetch(data, starts_R[min(r + AHEAD, R - 1)])
        start, to, end = starts_R[r], offsets_R[r], offsets_R[r + 1]
        while to < end and start <= whole and to <= room:  # the next word overwrites the rest of a copy
            store_u64(data_R, to, load_u64(data, start))
            start, to = start + 8, to + 8
        for i in range(end - to):
            data_R[to + i] = data[start + i]
    return offsets_R, data_R


def _cuda(offsets_V, data, rows_R):
    import cupy

    R = len(rows_R)
    offsets_R = cupy.zeros(R + 1, np.int64)
    if R == 0:
        return offsets_R, cupy.empty(0, np.uint8)
    cupy.cumsum(offsets_V[rows_R + 1] - offsets_V[rows_R], out=offsets_R[1:])
    data_R = cupy.empty(int(offsets_R[-1]), np.uint8)
    fn = kernel("count/take_words", "take_words")
    launch(fn, grid_for(R * LANES, 256), 256, (offsets_V, data, rows_R, R, offsets_R, data_R))
    return offsets_R, data_R


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return short words, a few long and empty ones, and rows in random order with repeats."""
    lengths_V = rng.poisson(7, size) * (rng.random(size) < 0.95)
    lengths_V[::1000] *= 200
    offsets_V = np.concatenate([[0], np.cumsum(lengths_V)]).astype(np.int64)
    data = rng.integers(0, 256, offsets_V[-1], np.uint8)
    rows_R = rng.integers(0, size, size + size // 2 if size else 0)
    return {"offsets_V": offsets_V, "data": data, "rows_R": rows_R}
