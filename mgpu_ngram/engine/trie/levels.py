"""Convert a trie back to lists of n-grams, as in an ARPA file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.ngrams.trie import Ngrams, Trie, renumbered
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.kernels.compile_cpu import njit, read_only


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


def with_one_unknown(words: Words, levels: Iterable[Ngrams]) -> tuple[Words, Iterator[Ngrams]]:
    """Return a model's words and n-grams with <UNK> as <unk>, as readers of its ARPA file read them.

    KenLM's vocabulary never holds <UNK>: the 1-gram of <UNK>, whose line is the later one, is that of <unk>
    (lm/vocab.cc, ProbingVocabulary::Insert). N-grams that become equal stay, <unk> first.
    """
    capital = words.find(b"<UNK>")
    if not capital:
        return words, iter(levels)
    kept_V, is_read_V = np.ones(len(words), bool), np.ones(len(words), bool)
    kept_V[capital] = is_read_V[0] = False
    id_V = np.cumsum(kept_V) - 1
    id_V[capital] = 0
    return words.kept(kept_V), renumbered(levels, id_V, is_read_V)


def trie_with_one_unknown(trie: Trie, words: Words) -> tuple[Trie, Words]:
    """As `with_one_unknown`, for a trie on any device, without codes. Equal n-grams become the first one.

    A trie that changes is in host memory then.
    """
    if not words.find(b"<UNK>"):
        return trie, words
    words, levels = with_one_unknown(words, levels_of(trie.map_arrays(to_host_fast)))
    return build_trie(levels, trie.fanout, {}), words


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
