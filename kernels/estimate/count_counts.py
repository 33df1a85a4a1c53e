"""Count the counts of 1, 2, ..., most, from which discounts are computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import LANES, grid_for, kernel, launch

VARIANTS = tuple({"COUNT": name} for name in check.INTEGER.values())


def count_counts(count_R: Any, most: int) -> list[int]:
    """Return the numbers of counts that are 1, 2, ..., most.

    count_R  (R,) uint32 or int64, 0 or more
    """
    check.dtype(count_R, *check.INTEGER)
    return pick(cpu=_cpu, cuda=_cuda, count_R=count_R)(count_R, most)


def _cpu(count_R, most):
    found_J = np.zeros(most + 2, np.int64)
    _add(count_R, found_J)
    return found_J[1:-1].tolist()


@njit(nogil=True, cache=True)
def _add(count_R, found_J):
    for r in range(len(count_R)):
        found_J[min(np.int64(count_R[r]), len(found_J) - 1)] += 1  # the last one takes all greater counts


def _cuda(count_R, most):
    import cupy

    R, found_J = len(count_R), cupy.zeros(most, np.uint64)
    if R:
        fn = kernel("estimate/count_counts", "count_counts", COUNT=check.INTEGER[count_R.dtype])
        for first in range(0, most, LANES):
            of_lanes = found_J[first : first + LANES]
            launch(fn, grid_for(R, 256), 256, (count_R, R, first + 1, np.int32(len(of_lanes)), of_lanes))
    return found_J.tolist()


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    counts = rng.zipf(1.5, size).clip(1, 1 << 40) - 1
    return {"count_R": counts if size % 2 else counts.clip(0, 1 << 31).astype(np.uint32), "most": 4 + size % 40}
