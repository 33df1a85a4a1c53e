"""Sum a value of the children of each node of a trie."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .child_filters import example_children

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())
THREADS = 256  # 8 warps


def sum_siblings(values_C: Any, first_child_M: Any) -> Any:
    """Return the sum of the values of each node's children.

    values_C       (C,) float64, a value for each child of the nodes, in the order of the trie
    first_child_M  (M + 1,) uint32 or int64: the children of m are first_child_M[m] to first_child_M[m + 1] - 1; child
                   first_child_M[0] has values_C[0]

    Returns sums_M (M,) float64, 0 for nodes without children. Additions are in the order of the children, so every
    device gives the same bits.
    """
    check.dtype(values_C, np.float64)
    check.dtype(first_child_M, np.uint32, np.int64)
    return pick(cpu=_cpu, cuda=_cuda, values_C=values_C, first_child_M=first_child_M)(values_C, first_child_M)


@njit(nogil=True, cache=True)
def _cpu(values_C, first_child_M):
    sums_M = np.zeros(len(first_child_M) - 1)
    for m in range(len(sums_M)):
        for g in range(np.int64(first_child_M[m]), np.int64(first_child_M[m + 1])):
            sums_M[m] += values_C[g - np.int64(first_child_M[0])]
    return sums_M


def _cuda(values_C, first_child_M):
    import cupy

    M = len(first_child_M) - 1
    sums_M = cupy.empty(M, np.float64)
    if M:
        fn = kernel("trie/sum_siblings", "sum_siblings", CHILD=check.INTEGER[first_child_M.dtype])
        launch(fn, grid_for(32 * M, THREADS), THREADS, (values_C, first_child_M, M, sums_M))
    return sums_M


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return values of the nodes of `example_children`, which need not begin at 0."""
    first_child_M = size // 3 + example_children(rng, size)
    return {
        "values_C": rng.random(first_child_M[-1] - first_child_M[0]),
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64),
    }
