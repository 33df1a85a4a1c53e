"""Count n-grams in private histograms and sum these at the end (strategy `private`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import current_limits, grid_for, kernel, launch
from .histogram_global import add_windows, example
from .ngram_keys import IDENTITY, device_lut

__all__ = ["example", "histogram_private"]

VARIANTS = ({"TOKEN_BYTES": 1, "ORDER": 2}, {"TOKEN_BYTES": 4, "ORDER": 1})
LUT_BYTES = 512


def histogram_private(tokens_T: Any, order: int, symbols: int, lut: Any = None, histograms: int = 1) -> Any:
    """Return the same bins as `histogram_global`, with less contention between atomic adds.

    histograms  copies of the whole histogram in device memory; each block uses one of them (V2 of
                Bianco, "Ngrams with CUDA")

    On a GPU each block counts in shared memory: all bins if symbols**order of them fit, else the bins
    that occur first. Adds to other bins go to the copies. The other arguments are those of `histogram_global`.
    """
    check.dtype(tokens_T, np.uint32, np.uint8)
    check.length(tokens_T, 2**32 - 1)
    return pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T)(tokens_T, order, symbols, lut, histograms)


def _cpu(tokens_T, order, symbols, lut, histograms):
    bins_KB = np.zeros((histograms, symbols**order), np.uint32)
    T = len(tokens_T)
    lut = IDENTITY if lut is None else lut
    for k in range(histograms):  # part k owns the windows that start in it
        start, end = T * k // histograms, min(T, T * (k + 1) // histograms + order - 1)
        add_windows(tokens_T[start:end], order, symbols, lut, tokens_T.dtype == np.uint8, bins_KB[k])
    return bins_KB[0] if histograms == 1 else bins_KB.sum(axis=0, dtype=np.uint32)


def _cuda(tokens_T, order, symbols, lut, histograms):
    import cupy

    T, num_bins = len(tokens_T), symbols**order
    if T == 0:
        return cupy.zeros(num_bins, np.uint32)
    tokens_T = check.aligned(tokens_T)
    if order == 1 and tokens_T.itemsize == 1:  # needs no table look-up per byte
        bins = cupy.zeros(symbols + 1, np.uint32)
        codes = cupy.asarray(IDENTITY if lut is None else lut).astype(np.int64)
        cupy.add.at(bins, codes, count_bytes(tokens_T).astype(np.uint32))
        return bins[1:]
    multiprocessors, shared_bytes = current_limits()
    variant = {"TOKEN_BYTES": tokens_T.itemsize, "ORDER": order}
    table = device_lut(lut, tokens_T)
    shared_bytes -= LUT_BYTES + 1024  # the system keeps 1 KiB of a block's shared memory
    blocks = min(multiprocessors, grid_for(T, 1024, 16))
    if num_bins * 4 <= shared_bytes:
        bins = cupy.zeros(num_bins, np.uint32)
        launch(
            kernel("count/histogram_private", "histogram_shared", **variant),
            blocks,
            1024,
            (tokens_T, T, table, np.uint32(symbols), np.uint32(num_bins), bins),
            num_bins * 4,
        )
        return bins
    bins_KB = cupy.zeros((histograms, num_bins), np.uint32)
    slots = shared_bytes // 8
    launch(
        kernel("count/histogram_private", "histogram_cached", **variant),
        blocks,
        1024,
        (tokens_T, T, table, np.uint64(symbols), np.uint64(num_bins), np.int32(histograms), np.uint32(slots), bins_KB),
        slots * 8,
    )
    if histograms > 1:
        launch(
            kernel("count/histogram_private", "sum_copies", **variant),
            grid_for(num_bins, 256),
            256,
            (bins_KB, num_bins, np.int32(histograms)),
        )
    return bins_KB[0]


def count_bytes(text_B: Any) -> Any:
    """Return the (256,) int64 histogram of raw bytes: order 1 of `private`, without an alphabet."""
    check.dtype(text_B, np.uint8)
    return pick(cpu=_bytes_cpu, cuda=_bytes_cuda, text_B=text_B)(text_B)


def _bytes_cpu(text_B):
    return np.bincount(text_B, minlength=256).astype(np.int64)


def _bytes_cuda(text_B):
    import cupy

    bins = cupy.zeros(256, np.int64)
    T = len(text_B)
    if T:
        fn = kernel("count/histogram_private", "histogram_bytes", TOKEN_BYTES=1, ORDER=2)
        launch(fn, grid_for(T, 512, 16, waves=4), 512, (check.aligned(text_B), T, bins))
    return bins
