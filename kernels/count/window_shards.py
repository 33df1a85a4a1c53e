"""Find the shard of the n-grams that end at each position of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

NO_SHARD = 0xFFFF  # as in window_shards.cu


def window_shards(tokens_T: Any, shard_V: Any, split: Sequence[int] = ()) -> Any:
    """Return the shard of the n-grams that end at each position; NO_SHARD where none ends.

    tokens_T  (T,) uint32 codes; 0 ends every window
    shard_V   (V,) uint16: the shard of code v + 1
    split     at most 16 words, as for `cut_shards`: if the last context word is one of them, the shard of the word
              before it, which has the n-grams of order 3 and more; NO_SHARD if there is no word before it

    Returns shard_T (T,) uint16.
    """
    check.dtype(tokens_T, np.uint32)
    check.dtype(shard_V, np.uint16)
    run = pick(cpu=_cpu, cuda=_cuda, tokens_T=tokens_T, shard_V=shard_V)
    check.contiguous(tokens_T=tokens_T, shard_V=shard_V)
    return run(tokens_T, shard_V, np.array(split, np.uint32) + np.uint32(1))


def _cpu(tokens_T, shard_V, codes_N):
    shard_T = np.empty(len(tokens_T), np.uint16)
    _find(*map(read_only, (tokens_T, shard_V, codes_N)), shard_T)
    return shard_T


@njit(nogil=True, cache=True)
def _find(tokens_T, shard_V, codes_N, shard_T):
    before, context = np.uint32(0), np.uint32(0)
    for t in range(len(tokens_T)):
        selects = context
        for n in range(len(codes_N)):
            if context == codes_N[n]:
                selects = before
        before, context = context, tokens_T[t]
        shard_T[t] = shard_V[np.int64(selects) - 1] if selects and context else NO_SHARD


def _cuda(tokens_T, shard_V, codes_N):
    import cupy

    T = len(tokens_T)
    shard_T = cupy.empty(T, np.uint16)
    if T:
        args = tokens_T, T, shard_V, cupy.asarray(codes_N), np.int32(len(codes_N)), shard_T
        launch(kernel("count/window_shards", "window_shards"), grid_for(T, 256), 256, args)
    return shard_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a text of lines of about 20 words, and two frequent words that are split."""
    tokens_T = np.minimum(rng.zipf(1.3, size), 5_000).astype(np.uint32)
    tokens_T[rng.random(size) < 0.05] = 0
    return {"tokens_T": tokens_T, "shard_V": rng.integers(0, 9, 5_000).astype(np.uint16), "split": (0, 3)}
