"""Count n-grams in one dense histogram with alphabet**order bins (strategy `global`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .ngram_keys import IDENTITY, code_at, device_lut

VARIANTS = ({"TOKEN_BYTES": 1, "ORDER": 3}, {"TOKEN_BYTES": 4, "ORDER": 2})


def histogram_global(tokens_T: Any, order: int, symbols: int, lut: Any = None) -> Any:
    """Return the counts of all symbols**order possible n-grams of a stream.

    tokens_T  (T,) uint32 codes (0 ends every window), or uint8 translated by `lut`; T < 2**32
    order     words per n-gram
    symbols   codes run from 1 to `symbols`
    lut       (256,) uint16, code of each byte

    Returns bins (symbols**order,) uint32; bin sum((code_i - 1) * symbols**(order - 1 - i)) counts an n-gram.
    Algorithm V1 of Bianco, "Ngrams with CUDA": one atomic add per n-gram.
    """
    check.dtype(tokens_T, np.uint32, np.uint8)
    check.length(tokens_T, 2**32 - 1)
    return pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T)(tokens_T, order, symbols, lut)


def _cpu(tokens_T, order, symbols, lut):
    bins = np.zeros(symbols**order, np.uint32)
    add_windows(tokens_T, order, symbols, IDENTITY if lut is None else lut, tokens_T.dtype == np.uint8, bins)
    return bins


@njit(nogil=True, cache=True)
def add_windows(tokens_T, order, symbols, lut, is_bytes, bins):
    """Add 1 to the bin of every whole window of `order` codes."""
    top = np.int64(symbols) ** np.int64(order - 1)
    b = np.int64(0)
    whole = 0
    for t in range(len(tokens_T)):
        code = np.int64(code_at(tokens_T, lut, is_bytes, t))
        if code == 0:
            whole = 0
            b = 0
            continue
        b = b % top * symbols + (code - 1)
        whole += 1
        if whole >= order:
            bins[b] += 1


def _cuda(tokens_T, order, symbols, lut):
    import cupy

    bins = cupy.zeros(symbols**order, np.uint32)
    T = len(tokens_T)
    if T:
        tokens_T = check.aligned(tokens_T)
        fn = kernel("count/histogram_global", "histogram_global", TOKEN_BYTES=tokens_T.itemsize, ORDER=order)
        launch(fn, grid_for(T, 256, 16), 256, (tokens_T, T, device_lut(lut, tokens_T), np.uint64(symbols), bins))
    return bins


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return English-like bytes for trigrams over 27 letters; byte 0 ends windows."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 27).astype(np.uint8)
    tokens_T[rng.random(size) < 0.01] = 0
    return {"tokens_T": tokens_T, "order": 3, "symbols": 27}
