"""Sum the weights of children, so that a child can be drawn by a binary search."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.powers import MIN_LOG10, POWERS, raised
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from ..trie.child_filters import example_children

VARIANTS = tuple({"CHILD": child} | POWERS for child in check.INTEGER.values())
THREADS = 256  # 8 warps


def sum_children(prob_G: Any, word_G: Any, first_child_M: Any, inverse: float = 1.0, left_out: int = -1) -> Any:
    """Return for each node of a trie the sum of the weights of its siblings up to and including the node.

    prob_G         (G,) float32, log10; no NaN
    word_G         (G,) uint32
    first_child_M  (M + 1,) uint32 or int64: the children of m are first_child_M[m] to first_child_M[m + 1] - 1; nodes
                   before first_child_M[0] are single words, and siblings
    inverse        1 / temperature: a node weighs (10 ** prob) ** inverse, or 0 if 10 ** prob is 0 in float32, or the
                   weight is below 10^-300
    left_out       a word with weight 0; -1: no word

    Returns sums_G (G,) float64. Additions are in the order of the nodes, so every device gives the same bits.
    """
    check.dtype(prob_G, np.float32)
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    if len(prob_G) != len(word_G):
        raise ValueError(f"got {len(word_G)} words and {len(prob_G)} probabilities; pass one of each per node")
    run = pick(cpu=_cpu, cuda=_cuda, prob_G=prob_G, word_G=word_G, first_child_M=first_child_M)
    return run(prob_G, word_G, first_child_M, float(inverse), left_out)


@njit(nogil=True, cache=True)
def _cpu(prob_G, word_G, first_child_M, inverse, left_out):
    sums_G = np.empty(len(prob_G))
    begin = np.int64(0)
    for m in range(len(first_child_M)):
        end, total = np.int64(first_child_M[m]), 0.0
        for g in range(begin, end):
            log10 = np.float64(prob_G[g])
            if log10 > MIN_LOG10 and word_G[g] != left_out:
                total += raised(log10, inverse)
            sums_G[g] = total
        begin = end
    return sums_G


def _cuda(prob_G, word_G, first_child_M, inverse, left_out):
    import cupy

    sums_G = cupy.empty(len(prob_G), np.float64)
    if len(prob_G):
        defines = {"CHILD": check.INTEGER[first_child_M.dtype]} | POWERS
        fn = kernel("distribution/sum_children", "sum_children", **defines)
        args = prob_G, word_G, first_child_M, len(first_child_M), inverse, left_out, sums_G
        launch(fn, grid_for(32 * len(first_child_M), THREADS), THREADS, args)
    return sums_G


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return single words and the nodes of `example_children`, a few of probability 0, at several temperatures."""
    first_child_M = size // 3 + example_children(rng, size)
    G = int(first_child_M[-1])
    prob_G = (-8 * rng.random(G)).astype(np.float32)
    prob_G[rng.random(G) < 0.05] = rng.choice([-np.inf, -99, -45.2, 0])
    return {
        "prob_G": prob_G,
        "word_G": rng.integers(0, 50, G).astype(np.uint32),
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64),
        "inverse": (1.0, 0.5, 1 / 0.7, 6.0)[size % 4],
        "left_out": 7 if size % 3 else -1,
    }
