"""Return the children and the backoffs of the histories of states."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from ..score.step_states import EMPTY
from ..score.step_states import example as steps
from .find_histories import Children, check_backoffs

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())
THREADS = 128


def state_children(
    states_H: Any, nodes_M2: Any, order: int, first_child_M: Any, backoff_M: Any, neutral: float = -0.0
) -> Children:
    """Return the children and the backoff of the last 1, 2, ... words of each state.

    states_H   (H,) int32, as `step_states` returns them; numbers that are not nodes count as EMPTY
    nodes_M2   the array of the model's `StateTable`
    order, first_child_M, backoff_M, neutral  as in `find_histories`

    Returns arrays as `find_histories`, K = order - 1. They give the same rows as the history of the state,
    bit for bit: words that the state drops have no children and a backoff of 0.
    """
    check.dtype(states_H, np.int32)
    check.dtype(nodes_M2, np.uint64)
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(backoff_M, np.float32)
    check_backoffs(backoff_M, first_child_M)
    arrays = {"states_H": states_H, "nodes_M2": nodes_M2, "first_child_M": first_child_M, "backoff_M": backoff_M}
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return Children(*run(states_H, nodes_M2, order - 1, first_child_M, backoff_M, np.float32(neutral)))


@njit(nogil=True, cache=True)
def _cpu(states_H, nodes_M2, K, first_child_M, backoff_M, neutral):
    shape, links_M4 = (len(states_H), K), nodes_M2.view(np.uint32)
    first_HK, end_HK = np.zeros(shape, first_child_M.dtype), np.zeros(shape, first_child_M.dtype)
    backoff_HK = np.full(shape, neutral)
    chain_K = np.empty(K, np.int64)  # nodes, the longest first
    for h in range(len(states_H)):
        node, length = np.int64(states_H[h]), 0
        while 0 <= node < len(nodes_M2):
            chain_K[length] = node
            length += 1
            suffix = links_M4[node, 3]
            node = np.int64(suffix) if suffix != np.uint32(0xFFFFFFFF) else np.int64(EMPTY)
        for k in range(length):
            node = chain_K[length - 1 - k]
            first_HK[h, k], end_HK[h, k] = first_child_M[node], first_child_M[node + 1]
            if len(backoff_M):
                backoff_HK[h, k] = backoff_M[node]
    return first_HK, end_HK, backoff_HK


def _cuda(states_H, nodes_M2, K, first_child_M, backoff_M, neutral):
    import cupy

    shape = H, _ = len(states_H), K
    first_HK, end_HK = cupy.empty(shape, first_child_M.dtype), cupy.empty(shape, first_child_M.dtype)
    backoff_HK = cupy.empty(shape, np.float32)
    if H * K:
        fn = kernel("distribution/state_children", "state_children", CHILD=check.INTEGER[first_child_M.dtype])
        backoffs = backoff_M if len(backoff_M) else np.uintp(0)
        args = (
            states_H, H, K, check.aligned(nodes_M2), len(nodes_M2), first_child_M, backoffs, neutral, first_HK, end_HK,
            backoff_HK,
        )  # fmt: skip
        launch(fn, grid_for(H, THREADS), THREADS, args)
    return first_HK, end_HK, backoff_HK


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the states and the trigram model of `step_states`."""
    made = steps(rng, size)
    nodes_M2 = made["states"].nodes_M2
    first_child_M = np.sort(rng.integers(0, 3 * size + 1, len(nodes_M2) + 1))
    backoff_M = -rng.random(0 if size % 5 == 2 else len(nodes_M2), np.float32)
    return {
        "states_H": made["states_B"], "nodes_M2": nodes_M2, "order": made["order"],
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64), "backoff_M": backoff_M,
    }  # fmt: skip
