"""Convert a trie back to lists of n-grams, such as an ARPA file holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.trie import Ngrams, Trie


def levels_of(trie: Trie) -> Sequence[Ngrams]:
    """Return the n-grams of order 1, 2, ... that a model stores, from its trie in host memory, without codes.

    Ids are computed when rows are read and take no memory before.
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
        ids = np.empty((len(nodes), n), np.uint32)
        for k in range(n - 1, -1, -1):
            ids[:, k] = trie.word_G[nodes]
            if k:  # the last history whose first child is not behind the node
                first, last = trie.starts[k - 1], trie.starts[k]
                nodes = (
                    first
                    + np.searchsorted(trie.first_child_M[first:last], nodes.astype(trie.first_child_M.dtype), "right")
                    - 1
                )
        return ids
