"""Convert a trie back to lists of n-grams, as in an ARPA file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.trie import Ngrams, Trie
from mgpu_ngram.kernels.compile import njit, read_only


def levels_of(trie: Trie) -> Sequence[Ngrams]:
    """Return the n-grams of order 1, 2, ... that a model stores, from its trie in host memory, without codes.

    Ids are computed on demand, when rows are read.
    """
    levels = []
    for n in range(1, trie.order + 1):
        begin, end = trie.starts[n - 1 : n + 1]
        rows: Any = slice(begin, end)
        if trie.filled_F is not None:
            rows = np.setdiff1d(np.arange(begin, end), trie.filled_F, assume_unique=True)
        backoff = trie.backoff_M[rows] if n < trie.order else None
        ids: Any = _Ids(trie, n, rows)
        levels.append(Ngrams(ids, trie.prob_G[rows] + np.float32(0), backoff))  # -0 becomes 0
    return levels


class _Ids:
    """(G, n) uint32, the words of all n-grams of an order, of which only slices are computed."""

    def __init__(self, trie: Trie, order: int, nodes: Any):
        self.trie, self.order, self.nodes = trie, order, nodes

    def __getitem__(self, rows: slice) -> np.ndarray:
        trie, n = self.trie, self.order
        begin, end = rows.indices(trie.starts[n] - trie.starts[n - 1])[:2]
        if isinstance(self.nodes, slice):
            nodes = np.arange(self.nodes.start + begin, self.nodes.start + end)
        else:
            nodes = self.nodes[begin:end]
        return _words(read_only(trie.word_G), read_only(trie.first_child_M), np.array(trie.starts), n, nodes)


@njit(nogil=True, cache=True)
def _words(word_G, first_child_M, starts_N, order, nodes):
    """Return (G, order) uint32, the words of the n-grams of rising nodes of one order."""
    ids = np.empty((len(nodes), order), np.uint32)
    node_G = nodes.copy()
    for k in range(order - 1, -1, -1):
        for row in range(len(ids)):
            ids[row, k] = word_G[node_G[row]]
        if k == 0 or not len(ids):
            continue
        # A node's history is the last node whose first child is not after the node; histories rise with nodes.
        first, last = starts_N[k - 1], starts_N[k]
        history = first + np.searchsorted(first_child_M[first:last], first_child_M.dtype.type(node_G[0]), "right") - 1
        for row in range(len(ids)):
            while history + 1 < last and first_child_M[history + 1] <= node_G[row]:
                history += 1
            node_G[row] = history
    return ids
