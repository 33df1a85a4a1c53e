"""Pack n-gram windows into sortable keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = ({"TOKEN_BYTES": 1}, {"TOKEN_BYTES": 4})
IDENTITY = np.arange(256, dtype=np.uint16)


def ngram_keys(
    tokens_T: Any, order: int, bits: int, lut: Any = None, positions_R: Any = None, rows: int | None = None
) -> Any:
    """Return one key per window of `order` tokens, cut at the first code 0 and at the end.

    tokens_T     (T,) uint32 codes (0 ends every window), or uint8 translated by `lut`
    order        words per window, at least 1
    bits         bits per code; codes are below 2**bits
    lut          (256,) uint16, code of each byte; only with uint8 tokens
    positions_R  (R,) int64, starts of windows; every position if None
    rows         use only the windows that start before position `rows`

    Returns columns (C, R) uint64, C = ceil(order * bits / 64). The key is a string of bits, first word
    highest, left-aligned over the columns. Keys compare like tuples of codes: a cut window sorts before
    all windows that continue it.
    """
    check.dtype(tokens_T, np.uint32, np.uint8)
    run = pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T, positions_R=positions_R)
    if positions_R is None:
        R = len(tokens_T) if rows is None else min(rows, len(tokens_T))
    else:
        R = len(positions_R)
    return run(tokens_T, order, bits, lut, positions_R, R)


def _cpu(tokens_T, order, bits, lut, positions_R, R):
    columns = np.empty((check.num_columns(order, bits), R), np.uint64)
    everywhere = positions_R is None
    _pack(
        tokens_T,
        order,
        bits,
        IDENTITY if lut is None else lut,
        tokens_T.dtype == np.uint8,
        np.empty(0, np.int64) if everywhere else positions_R,
        everywhere,
        columns,
    )
    return columns


@njit(nogil=True, cache=True)
def code_at(tokens_T, lut, is_bytes, t):
    """Return the code of token t."""
    return uint64(lut[tokens_T[t]]) if is_bytes else uint64(tokens_T[t])


@njit(nogil=True, cache=True)
def _pack(tokens_T, order, bits, lut, is_bytes, positions_R, everywhere, columns):
    C, R = columns.shape
    for r in range(R):
        at = r if everywhere else positions_R[r]
        column = uint64(0)
        used = 0
        c = 0
        for n in range(order):
            code = code_at(tokens_T, lut, is_bytes, at + n) if at + n < len(tokens_T) else uint64(0)
            if code == 0:
                break
            shift = 64 - used - bits
            if shift > 0:
                column |= code << uint64(shift)
                used += bits
            else:
                columns[c, r] = column | (code >> uint64(-shift))
                c += 1
                used = -shift
                column = code << uint64(64 - used) if used else uint64(0)
        if c < C:
            columns[c, r] = column
            c += 1
        while c < C:
            columns[c, r] = 0
            c += 1


def _cuda(tokens_T, order, bits, lut, positions_R, R):
    import cupy

    T = len(tokens_T)
    C = check.num_columns(order, bits)
    columns = cupy.empty((C, R), np.uint64)
    if R:
        fn = kernel("count/ngram_keys", "ngram_keys", TOKEN_BYTES=tokens_T.itemsize)
        launch(
            fn,
            grid_for(R, 256),
            256,
            (
                tokens_T,
                T,
                device_lut(lut, tokens_T),
                0 if positions_R is None else positions_R,
                R,
                np.int32(order),
                np.int32(bits),
                np.int32(C),
                columns,
            ),
        )
    return columns


def device_lut(lut: Any, tokens_T: Any) -> Any:
    """Return the table of byte codes on the device, or a null pointer if the tokens are already codes."""
    import cupy

    return cupy.asarray(IDENTITY if lut is None else lut) if tokens_T.itemsize == 1 else 0


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return codes of 19 bits with line ends between, order 5: two columns, one word across both."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 2**19 - 1).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    return {"tokens_T": tokens_T, "order": 5, "bits": 19}
