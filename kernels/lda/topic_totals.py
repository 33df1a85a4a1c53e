"""Sum the counts of all words: the tokens of each topic."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS = 256
ROWS = 64  # words of a thread, about


def topic_totals(counts_VZ: Any) -> Any:
    """Return totals_Z (Z,) int64, the sum over words of counts_VZ (V, Z) uint32."""
    check.dtype(counts_VZ, np.uint32)
    return pick(cpu=_cpu, cuda=_cuda, counts_VZ=counts_VZ)(counts_VZ)


def _cpu(counts_VZ):
    return counts_VZ.sum(0, dtype=np.int64)


def _cuda(counts_VZ):
    import cupy

    V, Z = counts_VZ.shape
    totals_Z = cupy.zeros(Z, np.int64)
    if V and Z:
        columns = -(-Z // THREADS)
        rows = max(1, min(-(-V // ROWS), grid_for(V * Z, THREADS, ROWS) // columns + 1))
        args = (cupy.ascontiguousarray(counts_VZ), V, Z, totals_Z)
        launch(kernel("lda/topic_totals", "topic_totals"), (columns, rows), THREADS, args)
    return totals_Z


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return counts of which many are 0."""
    Z = (3, 64, 300, 1, 2100)[size % 5]
    return {"counts_VZ": np.maximum(0, rng.integers(-50, 2**20, (size // 10, Z))).astype(np.uint32)}
