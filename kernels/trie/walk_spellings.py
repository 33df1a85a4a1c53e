"""Walk texts down a trie of spellings, from many nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS = 256


class SpellingTrie(NamedTuple):
    """A trie of spellings: a node for each prefix of a word, in breadth-first order.

    byte_M         (M,) uint8, the last byte of each prefix; node 0 is the empty prefix, whose byte is not read
    first_child_M  (M + 1,) int32: node m's children are first_child_M[m] to first_child_M[m + 1] - 1, by rising byte
    """

    byte_M: Any
    first_child_M: Any


def walk_spellings(trie: SpellingTrie, nodes_R: Any, offsets_T: Any, data: Any) -> Any:
    """Return the node of each text after each node.

    nodes_R    (R,) int32; M, or any number that is not a node, for prefixes that the trie lacks
    offsets_T  (T + 1,) int64
    data       uint8: text t is data[offsets_T[t]:offsets_T[t + 1]]

    Returns nodes_RT (R, T) int32; M if the trie lacks the text there. An empty text stays at its node.
    """
    check.dtype(trie.byte_M, np.uint8)
    check.dtype(trie.first_child_M, np.int32)
    check.dtype(nodes_R, np.int32)
    check.dtype(offsets_T, np.int64)
    check.dtype(data, np.uint8)
    arrays = {**trie._asdict(), "nodes_R": nodes_R, "offsets_T": offsets_T, "data": data}
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(*trie, nodes_R, offsets_T, data)


@njit(nogil=True, cache=True)
def _cpu(byte_M, first_child_M, nodes_R, offsets_T, data):
    R, T, M = len(nodes_R), len(offsets_T) - 1, len(byte_M)
    nodes_RT = np.empty((R, T), np.int32)
    for r in range(R):
        for t in range(T):
            node = np.int64(nodes_R[r])
            node = node if 0 <= node < M else M
            for i in range(offsets_T[t], offsets_T[t + 1]):
                if node == M:
                    break
                node = find_byte(byte_M, first_child_M, node, data[i])
            nodes_RT[r, t] = node
    return nodes_RT


@njit(nogil=True, cache=True)
def find_byte(byte_M, first_child_M, node, byte):
    """Return the child of a node by a byte; M if there is none."""
    low, end = np.int64(first_child_M[node]), np.int64(first_child_M[node + 1])
    high = end
    while low < high:
        middle = (low + high) >> 1
        if byte_M[middle] < byte:
            low = middle + 1
        else:
            high = middle
    return low if low < end and byte_M[low] == byte else len(byte_M)


def _cuda(byte_M, first_child_M, nodes_R, offsets_T, data):
    import cupy

    shape = R, T = len(nodes_R), len(offsets_T) - 1
    nodes_RT = cupy.empty(shape, np.int32)
    if R * T:
        fn = kernel("trie/walk_spellings", "walk_spellings")
        args = (byte_M, first_child_M, len(byte_M), nodes_R, offsets_T, data, R, T, nodes_RT)
        launch(fn, grid_for(R * T, THREADS), THREADS, args)
    return nodes_RT


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a random trie of a few bytes, texts of these bytes, and nodes, some of which it lacks."""
    M, R = max(1, size // 3), min(size, 3)
    parent_C = np.sort(rng.integers(0, np.arange(1, M)))  # of nodes 1 to M - 1
    first_child_M = 1 + np.searchsorted(parent_C, np.arange(M + 1))
    rank_C = np.arange(1, M) - first_child_M[parent_C]
    lengths_T = rng.integers(0, 5, size)
    return {
        "trie": SpellingTrie(np.append(0, rank_C % 256).astype(np.uint8), first_child_M.astype(np.int32)),
        "nodes_R": rng.integers(-1, M + 2, R).astype(np.int32),
        "offsets_T": np.cumsum([0, *lengths_T]),
        "data": rng.integers(0, 4, lengths_T.sum()).astype(np.uint8),
    }
