"""Order the topics of words so that a GPU reads shared memory with fewer bank conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

LANES = 32  # banks of shared memory, and entries that a warp reads at once; as in spread_entries.cu
IN_BANK = 3  # most of the first LANES entries in one bank; as in spread_entries.cu


def spread_entries(starts_V1: Any, entries_N: Any) -> Any:
    """Return the entries, with the entries of each word reordered.

    starts_V1  (V + 1,) int64: word v has the entries starts_V1[v] to starts_V1[v + 1] - 1
    entries_N  (N,) uint32, the largest shares of a word first; entry e belongs to bank e % LANES, as its topic does

    Returns spread_N (N,) uint32. The first LANES entries of a word are the largest ones of which at most IN_BANK belong
    to one bank; fewer if the word has no more of them. The others follow by rank within their bank among the word's
    others, and then by bank: first the largest entry of each bank.
    """
    check.dtype(starts_V1, np.int64)
    check.dtype(entries_N, np.uint32)
    return pick(cpu=_cpu, cuda=_cuda, starts_V1=starts_V1, entries_N=entries_N)(starts_V1, entries_N)


@njit(nogil=True, cache=True)
def _cpu(starts_V1, entries_N):
    spread_N = np.empty_like(entries_N)
    in_bank_L, others_L, ranks_L = np.empty(LANES, np.int64), np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for v in range(len(starts_V1) - 1):
        first, end, heads = starts_V1[v], starts_V1[v + 1], 0
        in_bank_L[:], others_L[:], ranks_L[:] = 0, 0, 0
        for e in range(first, end):
            bank = entries_N[e] % np.uint32(LANES)
            if heads < LANES and in_bank_L[bank] < IN_BANK:
                heads += 1
                in_bank_L[bank] += 1
            else:
                others_L[bank] += 1
        in_bank_L[:], found = 0, 0
        for e in range(first, end):
            bank = entries_N[e] % np.uint32(LANES)
            if found < LANES and in_bank_L[bank] < IN_BANK:
                spread_N[first + found] = entries_N[e]
                found += 1
                in_bank_L[bank] += 1
            else:
                rank, at = ranks_L[bank], first + heads
                ranks_L[bank] += 1
                for b in range(LANES):
                    at += min(others_L[b], rank + (b < bank))
                spread_N[at] = entries_N[e]
    return spread_N


def _cuda(starts_V1, entries_N):
    import cupy

    V, spread_N = len(starts_V1) - 1, cupy.empty(len(entries_N), np.uint32)
    if V:
        fn = kernel("lda/spread_entries", "spread_entries")
        launch(fn, grid_for(V, 128), 128, (starts_V1, entries_N, V, spread_N))
    return spread_N


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return words with up to 400 topics of 1,000, or of few banks."""
    sizes_V = np.minimum(rng.zipf(1.3, size // 40 + 1), 400)
    starts_V1 = np.concatenate([[0], np.cumsum(sizes_V)])
    entries_N = rng.integers(0, 1 << 32, starts_V1[-1], np.uint32) & np.uint32(0xFFFF03FF if size % 2 else 0xFFFF03E3)
    return {"starts_V1": starts_V1, "entries_N": entries_N}
