"""Put the words of keys in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch


def reorder_words(columns: Any, bits: int, places: Sequence[int]) -> Any:
    """Return keys whose word i is word places[i] of the keys.

    columns  (C, R) uint64, keys of len(places) words of `bits` bits (kernels.count.ngram_keys); a slice of longer
             columns is not copied
    places   each of 0 to N - 1 once

    Returns (C, R) uint64.
    """
    check.dtype(columns, np.uint64)
    if sorted(places) != list(range(len(places))):
        raise ValueError(f"places {list(places)} are not a permutation")
    C = check.num_columns(len(places), bits)
    if len(columns) != C:
        raise ValueError(f"got {len(columns)} columns but {len(places)} words of {bits} bits need {C}")
    return pick(cpu=_cpu, cuda=_cuda, columns=columns)(columns, bits, np.array(places, np.int32))


def _cpu(columns, bits, place_N):
    reordered = np.empty(columns.shape, np.uint64)
    _reorder(columns, bits, place_N, reordered)
    return reordered


@njit(nogil=True, cache=True)
def _reorder(columns, bits, place_N, reordered):
    C, R = columns.shape
    mask = ~uint64(0) >> uint64(64 - bits)
    for r in range(R):
        column, used, c = uint64(0), 0, 0
        for n in range(len(place_N)):
            begin = place_N[n] * bits
            at, spare = begin // 64, 64 - begin % 64 - bits
            if spare >= 0:
                code = (columns[at, r] >> uint64(spare)) & mask
            else:
                code = ((columns[at, r] << uint64(-spare)) | (columns[at + 1, r] >> uint64(64 + spare))) & mask
            shift = 64 - used - bits
            if shift > 0:
                column |= code << uint64(shift)
                used += bits
            else:
                reordered[c, r] = column | (code >> uint64(-shift))
                c += 1
                used = -shift
                column = code << uint64(64 - used) if used else uint64(0)
        if c < C:
            reordered[c, r] = column


def _cuda(columns, bits, place_N):
    import cupy

    columns, stride = check.column_stride(columns)
    reordered = cupy.empty(columns.shape, np.uint64)
    C, R = columns.shape
    if R:
        words = np.int32(bits), cupy.asarray(place_N), np.int32(len(place_N))
        args = columns, stride, R, np.int32(C), *words, reordered
        launch(kernel("count/reorder_words", "reorder_words"), grid_for(R, 256), 256, args)
    return reordered


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return keys of 5 words of 23 bits, and the order that makes a window of `select_windows` an n-gram."""
    columns = rng.integers(0, 1 << 63, (2, size)).astype(np.uint64)
    columns[1] = columns[1] >> np.uint64(13) << np.uint64(13)
    return {"columns": columns, "bits": 23, "places": (4, 3, 2, 0, 1)}
