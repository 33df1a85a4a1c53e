"""A trie as lists of n-grams again, such as an ARPA file has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.trie import Ngrams, Trie


def levels_of(trie: Trie) -> Sequence[Ngrams]:
    """The n-grams of order 1, 2, ... of a trie in host memory, none of which was filled in; their ids are made when
    rows are asked for, and take no memory before.
    """
    levels = []
    for n in range(1, trie.order + 1):
        rows = slice(trie.starts[n - 1], trie.starts[n])
        backoff = trie.backoff_M[rows] if n < trie.order else None
        ids: Any = _Ids(trie, n)
        levels.append(Ngrams(ids, trie.prob_G[rows] + np.float32(0), backoff))  # 0 rather than -0
    return levels


class _Ids:
    """(G, n) uint32, the words of all n-grams of an order; only slices of it are made."""

    def __init__(self, trie: Trie, order: int):
        self.trie, self.order = trie, order

    def __getitem__(self, rows: slice) -> np.ndarray:
        trie, n = self.trie, self.order
        begin, end = rows.indices(trie.starts[n] - trie.starts[n - 1])[:2]
        nodes = np.arange(trie.starts[n - 1] + begin, trie.starts[n - 1] + end)
        ids = np.empty((len(nodes), n), np.uint32)
        for k in range(n - 1, -1, -1):
            ids[:, k] = trie.word_G[nodes]
            if k:  # the last history whose children do not begin behind the node
                first, last = trie.starts[k - 1], trie.starts[k]
                nodes = (
                    first
                    + np.searchsorted(trie.first_child_M[first:last], nodes.astype(trie.first_child_M.dtype), "right")
                    - 1
                )
        return ids
