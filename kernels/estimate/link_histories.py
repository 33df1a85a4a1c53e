"""Link the n-grams of one order to their histories, the n-grams without their last words, as nodes of a trie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import uint32, uint64

from .. import check
from ..compile_cpu import njit
from ..count.ngram_keys import ngram_keys
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"COLUMNS": c, "ROW": row} for c in (1, 2, 3) for row in check.INTEGER.values())
THREADS = 256
TILE = 8 * THREADS  # histories or n-grams of a block, which searches once where they lie; as in link_histories.cu


class Links(NamedTuple):
    """The n-grams of an order, R of them, as nodes of a trie; M n-grams are in the order below.

    word_R     (R,) uint32, id of the last word
    history_R  (R,) uint32, rising: the row in the order below of each n-gram without its last word
    first_M1   (M + 1,) uint32, int64 from R = 2**32 on: the n-grams with history m are first_M1[m] to
               first_M1[m + 1] - 1
    """

    word_R: Any
    history_R: Any
    first_M1: Any


def link_histories(below: Any, columns: Any, order: int, bits: int) -> Links:
    """Return the nodes of the n-grams of one order.

    below    (B, M) uint64, sorted distinct keys of `order` - 1 words of `bits` bits (kernels.count.ngram_keys), M below
             2**32. May be a slice of longer columns, like `columns`
    columns  (C, R) uint64, sorted distinct keys of `order` words. The first `order` - 1 words of each are in `below`
    """
    for keys, words in (below, order - 1), (columns, order):
        check.dtype(keys, np.uint64)
        if len(keys) != (needed := check.num_columns(words, bits)):
            raise ValueError(f"got keys of {len(keys)} columns but {words} words of {bits} bits need {needed}")
    M, R = below.shape[1], columns.shape[1]
    if M >= 1 << 32 or (R and not M):
        raise ValueError(f"got {R} n-grams and {M} histories but need 1 to {(1 << 32) - 1} histories")
    return Links(*pick(cpu=_cpu, cuda=_cuda, below=below, columns=columns)(below, columns, order, bits))


def _row_dtype(R: int) -> Any:
    return np.uint32 if R < 1 << 32 else np.int64


def _cpu(below, columns, order, bits):
    R, M = columns.shape[1], below.shape[1]
    links = np.empty(R, np.uint32), np.empty(R, np.uint32), np.empty(M + 1, _row_dtype(R))
    _link(below, columns, order, bits, *links)
    return links


@njit(nogil=True, cache=True)
def _link(below, columns, order, bits, word_R, history_R, first_M1):
    B, used = len(below), (order - 1) * bits
    R, M = len(word_R), len(first_M1) - 1
    last = B - 1  # the column of the history's last bits
    kept = ~uint64(0) << uint64(64 * B - used)  # of this column
    column, begin = used // 64, used % 64  # where the last word begins
    left = 64 - begin  # bits of it that this column can hold
    spare, mask = left - bits, (uint64(1) << uint64(bits)) - uint64(1)
    m = -1
    for r in range(R):
        is_new = m < 0
        if m >= 0:
            is_new = (columns[last, r] & kept) != below[last, m]
            for c in range(last):
                is_new |= columns[c, r] != below[c, m]
        if is_new:
            m += 1
            first_M1[m] = r
            while m + 1 < M and _is_below(below, m, columns, r, last, kept):
                m += 1
                first_M1[m] = r
        history_R[r] = uint32(m)
        if spare >= 0:
            code = columns[column, r] >> uint64(spare)
        else:
            code = (columns[column, r] << uint64(-spare)) | (columns[column + 1, r] >> uint64(64 + spare))
        word_R[r] = uint32((code & mask) - uint64(1))
    first_M1[m + 1 :] = R


@njit(nogil=True, cache=True)
def _is_below(below, m, columns, r, last, kept):
    """Return whether key m of the order below is less than the history of row r."""
    for c in range(last):
        if below[c, m] != columns[c, r]:
            return below[c, m] < columns[c, r]
    return below[last, m] < (columns[last, r] & kept)


def _cuda(below, columns, order, bits):
    import cupy

    (B, M), R = below.shape, columns.shape[1]
    row = _row_dtype(R)
    word_R, history_R, first_M1 = cupy.empty(R, np.uint32), cupy.empty(R, np.uint32), cupy.full(M + 1, R, row)
    if R:
        (below, stride_below), (columns, stride) = check.column_stride(below), check.column_stride(columns)
        fns = [
            kernel("estimate/link_histories", name, COLUMNS=B, ROW=check.INTEGER[np.dtype(row)])
            for name in ("find_firsts", "link_histories")
        ]
        arrays = columns, stride, R
        launch(fns[0], grid_for(M, TILE), THREADS, (below, stride_below, M, *arrays, first_M1))
        sizes = np.int32(bits), np.int32((order - 1) * bits)
        launch(fns[1], grid_for(R, TILE), THREADS, (first_M1, M, *arrays, *sizes, history_R, word_R))
    return word_R, history_R, first_M1


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return n-grams of order 2 to 7 and their histories, a few without n-grams; half of them share one history."""
    order, bits = 2 + size % 6, (19, 21, 33)[size % 3]
    words = rng.integers(1, 5 + size, (size, order)).astype(np.uint32)
    words[: size // 2, : order - 1] = 3
    more = rng.integers(1, 5 + size, (size // 5, order - 1)).astype(np.uint32)

    def keys(ngrams: Any) -> Any:
        n = ngrams.shape[1]
        columns = ngram_keys(ngrams.reshape(-1), n, bits, None, np.arange(len(ngrams)) * n)
        return np.ascontiguousarray(np.unique(columns, axis=1)) if len(ngrams) else columns

    histories = np.concatenate([words[:, :-1], more])
    return {"below": keys(np.ascontiguousarray(histories)), "columns": keys(words), "order": order, "bits": bits}
