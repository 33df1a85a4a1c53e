"""Place the n-grams of one of several parts of a model among the nodes of its trie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit, read_only
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"ROW": row, "NODE": node} for row in check.INTEGER.values() for node in check.INTEGER.values())
THREADS = 256
TILE = 8 * THREADS  # n-grams of a block of threads, which searches once where they lie; as in place_ngrams.cu


class NgramBlocks(NamedTuple):
    """N-grams of one order of a part, R of them, in blocks of those that continue one context, C of them.

    node_C    (C,) int64, the context's node in the order below
    first_C1  (C + 1,) uint32 or int64: block c has rows first_C1[c] - first_C1[0] to first_C1[c + 1] - first_C1[0] - 1
    word_R    (R,) uint32, id of the last word
    log10_R   (R,) float32, log10 probability
    """

    node_C: Any
    first_C1: Any
    word_R: Any
    log10_R: Any


class NgramNodes(NamedTuple):
    """Nodes of one order, G of them: the words and probabilities of `NgramBlocks` of all parts."""

    word_G: Any
    log10_G: Any


def place_ngrams(blocks: NgramBlocks, first_M1: Any, nodes: NgramNodes, with_places: bool) -> Any:
    """Copy words and probabilities of a part to their nodes, and return the nodes.

    first_M1     (M + 1,) uint32 or int64: the first child of each node of the order below. The n-grams that continue a
                 context are its children, in the same order
    nodes        written
    with_places  False: return None

    Returns place_R (R,), of the dtype of first_M1.
    """
    check.dtype(blocks.node_C, np.int64)
    for array in blocks.first_C1, first_M1:
        check.dtype(array, *check.INTEGER)
    for array in blocks.word_R, nodes.word_G:
        check.dtype(array, np.uint32)
    for array in blocks.log10_R, nodes.log10_G:
        check.dtype(array, np.float32)
    run = pick(cpu=_cpu, cuda=_cuda, first_M1=first_M1, **blocks._asdict(), **nodes._asdict())
    return run(blocks, first_M1, nodes, with_places)


def _cpu(blocks, first_M1, nodes, with_places):
    place_R = np.empty(len(blocks.word_R) if with_places else 0, first_M1.dtype)
    _place(*map(read_only, blocks), read_only(first_M1), *nodes, place_R)
    return place_R if with_places else None


@njit(nogil=True, cache=True)
def _place(node_C, first_C1, word_R, log10_R, first_M1, word_G, log10_G, place_R):
    with_places, r = len(place_R) > 0, 0
    for c in range(len(node_C)):
        at = np.int64(first_M1[node_C[c]])
        for _ in range(np.int64(first_C1[c + 1]) - np.int64(first_C1[c])):
            word_G[at], log10_G[at] = word_R[r], log10_R[r]
            if with_places:
                place_R[r] = at
            at += 1
            r += 1


def _cuda(blocks, first_M1, nodes, with_places):
    import cupy

    C, R = len(blocks.node_C), len(blocks.word_R)
    place_R = cupy.empty(R, first_M1.dtype) if with_places else None
    if R:
        row, node = check.INTEGER[blocks.first_C1.dtype], check.INTEGER[first_M1.dtype]
        fn = kernel("estimate/place_ngrams", "place_ngrams", ROW=row, NODE=node)
        node_C, first_C1, word_R, log10_R = blocks
        args = node_C, first_C1, C, word_R, log10_R, R, first_M1, *nodes, np.uintp(0) if place_R is None else place_R
        launch(fn, grid_for(R, TILE), THREADS, args)
    return place_R


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `size` n-grams, most of them after a few contexts, of about twice as many nodes."""
    C = min(size, 1 + size // 3)
    children_C = 1 + rng.multinomial(size - C, rng.dirichlet(np.full(C, 0.2))) if C else np.empty(0, np.int64)
    M = 2 * C + 1
    children_M = rng.integers(0, 3, M)
    node_C = np.sort(rng.choice(M, C, replace=False)).astype(np.int64)
    children_M[node_C] = children_C
    first_C1 = np.concatenate([[0], np.cumsum(children_C)]) + size % 5
    first_M1 = np.concatenate([[0], np.cumsum(children_M)])
    G = int(first_M1[-1])
    return {
        "blocks": NgramBlocks(
            node_C,
            first_C1.astype(np.uint32 if size % 2 else np.int64),
            rng.integers(0, 1 << 20, size).astype(np.uint32),
            rng.normal(size=size).astype(np.float32),
        ),
        "first_M1": first_M1.astype(np.uint32 if size % 3 else np.int64),
        "nodes": NgramNodes(np.zeros(G, np.uint32), np.zeros(G, np.float32)),
        "with_places": size % 4 != 0,
    }
