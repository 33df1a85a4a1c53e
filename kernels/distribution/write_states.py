"""Write whole rows of states: the state after every word."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..launch import kernel, launch
from .find_histories import Children
from .rows import layers_of
from .top_words import histories_and_children

TILE, THREADS = 4096, 256  # words of a block, and its threads; as in write_states.cu
MAX_K = 96  # ranges that a block keeps; as in write_states.cu
VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())


def write_states(out_HV: Any, children: Children, word_G: Any, state_G: Any) -> None:
    """Fill out_HV: the state after every word of the vocabulary, for each state whose children are given.

    out_HV   (H, V) int32; the last axis is contiguous
    children as `state_children` returns them, K at most MAX_K
    word_G   (G,) uint32, rising among the children of a history
    state_G  (G,) int32, as in `StateTable`; the first V are those after single words

    Returns nothing. The state after a word is that of the longest match.
    """
    first_HK, end_HK, _ = children
    check.dtype(out_HV, np.int32)
    check.dtype(first_HK, np.uint32, np.int64)
    check.dtype(end_HK, first_HK.dtype)
    check.dtype(word_G, np.uint32)
    check.dtype(state_G, np.int32)
    (H, K), (rows, V) = first_HK.shape, out_HV.shape
    if rows != H or V > len(state_G) or K > MAX_K:
        raise ValueError(
            f"got rows of shape {out_HV.shape} for {H} states with {K} orders of children and {len(state_G)} nodes; "
            f"pass a row for each state, at most as many words as nodes, and at most {MAX_K} orders"
        )
    run = pick(cpu=_cpu, cuda=_cuda, out_HV=out_HV, **children._asdict(), word_G=word_G, state_G=state_G)
    if out_HV.size and V > 1 and out_HV.strides[1] != out_HV.itemsize:
        raise ValueError(
            f"out_HV has strides {out_HV.strides} but its last axis must be contiguous; pass another array"
        )
    if 0 not in out_HV.shape:
        run(out_HV, first_HK, end_HK, word_G, state_G)


@njit(nogil=True, cache=True)
def _cpu(out_HV, first_HK, end_HK, word_G, state_G):
    H, V = out_HV.shape
    for h in range(H):
        for v in range(V):
            out_HV[h, v] = state_G[v]
        for k in range(first_HK.shape[1]):
            for g in range(np.int64(first_HK[h, k]), np.int64(end_HK[h, k])):
                out_HV[h, word_G[g]] = state_G[g]


def _cuda(out_HV, first_HK, end_HK, word_G, state_G):
    import cupy

    (H, K), V = first_HK.shape, out_HV.shape[1]
    fn = kernel("distribution/write_states", "write_states", CHILD=check.INTEGER[first_HK.dtype])
    stride = out_HV.strides[0] // out_HV.itemsize if H > 1 else 0
    args = cupy.ascontiguousarray(first_HK), cupy.ascontiguousarray(end_HK), H, K, word_G, state_G, V, out_HV, stride
    launch(fn, (-(-V // TILE), *layers_of(H)), THREADS, args)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `histories_and_children`, whose nodes have random states."""
    made = histories_and_children(rng, size, True)
    children, values = made["children"], made["values"]
    V = len(values.value_V)
    state_G = rng.integers(-1, 1 << 31, max(V, len(values.word_G))).astype(np.int32)
    return {
        "out_HV": np.zeros((len(children.first_HK), V), np.int32), "children": children, "word_G": values.word_G,
        "state_G": state_G,
    }  # fmt: skip
