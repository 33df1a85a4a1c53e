"""Count how often each id occurs.

On a GPU this replaces `cupy.bincount`, which takes 3 s to compile at the first run on a machine and reads the ids three
times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = ({"ID_BYTES": 4}, {"ID_BYTES": 8})


def count_ids(ids_T: Any, num_ids: int) -> Any:
    """Return how often each id occurs.

    ids_T    (T,) uint32 or int64, all below num_ids
    num_ids  number of ids, V

    Returns counts_V (V,) int64.
    """
    check.dtype(ids_T, np.uint32, np.int64)
    return pick(cpu=_cpu, cuda=_cuda, ids_T=ids_T)(ids_T, num_ids)


def _cpu(ids_T, num_ids):
    return np.bincount(ids_T, minlength=num_ids).astype(np.int64, copy=False)


def _cuda(ids_T, num_ids):
    import cupy

    counts_V, T = cupy.zeros(num_ids, np.int64), len(ids_T)
    if T:
        fn = kernel("common/count_ids", "count_ids", ID_BYTES=ids_T.itemsize)
        launch(fn, grid_for(T, 256), 256, (cupy.ascontiguousarray(ids_T), T, counts_V))
    return counts_V


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return ids of which a third are the same."""
    ids_T = rng.integers(0, 1 + size // 4, size).astype((np.uint32, np.int64)[size % 2])
    ids_T[rng.random(size) < 0.3] = 0
    return {"ids_T": ids_T, "num_ids": 3 + size // 4}
