"""Pack sixteen bytes of every word into numbers that sort like the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .take_words import example as words_example


def word_keys(offsets_V: Any, data: Any, rows_R: Any, first_byte: int = 0) -> Any:
    """Return bytes first_byte to first_byte + 15 of chosen words as key columns of `radix_sort`.

    offsets_V  (V + 1,) int64 and
    data       uint8: word v is data[offsets_V[v]:offsets_V[v + 1]]
    rows_R     (R,) int64, each 0 to V - 1
    first_byte at least 0

    Returns keys_R (2, R) uint64, eight bytes per column, the first byte highest; bytes past a word's end
    are 0. Words without NUL sort by bytes. Words that differ only past these bytes have equal keys.
    """
    check.dtype(offsets_V, np.int64)
    check.dtype(data, np.uint8)
    check.dtype(rows_R, np.int64)
    run = pick(cpu=_cpu, cuda=_cuda, offsets_V=offsets_V, data=data, rows_R=rows_R)
    return run(offsets_V, data, rows_R, first_byte)


@njit(nogil=True, cache=True)
def _cpu(offsets_V, data, rows_R, first_byte):
    keys_R = np.empty((2, len(rows_R)), np.uint64)
    for r in range(len(rows_R)):
        at, end = offsets_V[rows_R[r]] + first_byte, offsets_V[rows_R[r] + 1]
        for c in range(2):
            key = uint64(0)
            for i in range(at + 8 * c, at + 8 * c + 8):
                key = (key << uint64(8)) | uint64(data[i] if i < end else 0)
            keys_R[c, r] = key
    return keys_R


def _cuda(offsets_V, data, rows_R, first_byte):
    import cupy

    R = len(rows_R)
    keys_R = cupy.empty((2, R), np.uint64)
    if R:
        fn = kernel("count/word_keys", "word_keys")
        launch(fn, grid_for(R, 256), 256, (offsets_V, data, rows_R, R, first_byte, keys_R))
    return keys_R


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the words of `take_words`, from their fourth byte on; many are shorter."""
    return words_example(rng, size) | {"first_byte": 3}
