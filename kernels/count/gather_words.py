"""Copy chosen words out of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.kernels.common.find_tokens import find_tokens, is_delimiter, random_text

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch


def gather_words(text_B: Any, positions_V: Any) -> tuple[Any, Any]:
    """Return the words that start at `positions_V`, concatenated.

    text_B       (B,) uint8
    positions_V  (V,) uint32, each the first byte of a word (a delimiter there gives an empty word)

    Returns offsets_V (V + 1,) int64 and data (offsets_V[-1],) uint8.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(positions_V, np.uint32)
    return pick(cpu=_cpu, cuda=_cuda, text_B=text_B, positions_V=positions_V)(text_B, positions_V)


@njit(nogil=True, cache=True)
def _cpu(text_B, positions_V):
    V = len(positions_V)
    offsets_V = np.zeros(V + 1, np.int64)
    for v in range(V):
        end = np.int64(positions_V[v])
        while end < len(text_B) and not is_delimiter(text_B[end]):
            end += 1
        offsets_V[v + 1] = offsets_V[v] + end - np.int64(positions_V[v])
    data = np.empty(offsets_V[V], np.uint8)
    for v in range(V):
        first, at = offsets_V[v], np.int64(positions_V[v])
        for i in range(offsets_V[v + 1] - first):  # Numba takes 2 s to compile a copy of a slice to a slice
            data[first + i] = text_B[at + i]
    return offsets_V, data


def _cuda(text_B, positions_V):
    import cupy

    V = len(positions_V)
    offsets_V = cupy.zeros(V + 1, np.int64)
    if V == 0:
        return offsets_V, cupy.empty(0, np.uint8)
    length_V = cupy.empty(V, np.int64)
    launch(
        kernel("count/gather_words", "word_lengths"),
        grid_for(V, 256),
        256,
        (text_B, len(text_B), positions_V, V, length_V),
    )
    cupy.cumsum(length_V, out=offsets_V[1:])
    data = cupy.empty(int(offsets_V[-1]), np.uint8)
    launch(kernel("count/gather_words", "copy_words"), grid_for(V, 256), 256, (text_B, positions_V, V, offsets_V, data))
    return offsets_V, data


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return every third token of a random text."""
    text_B = random_text(rng, size)
    return {"text_B": text_B, "positions_V": find_tokens(text_B)[::3].copy()}
