"""The nodes of a backoff model with float64 probabilities: recompute backoffs, and keep some of the n-grams."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.models.arpa import ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.engine.trie.build import index_of, negative
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.smooth_contexts import MIN_MASS
from mgpu_ngram.kernels.trie.find_children import find_children, sample_every_fanout
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings

NODES_AT_ONCE = 1 << 22  # nodes of which temporary arrays are made at once


@dataclass
class BackoffNodes:
    """G nodes, in the order of `ngrams.trie.Trie`, of orders 1 to N; M of them have an order below N. NumPy or CuPy.

    starts, word_G, first_child_M  as in Trie
    parent_G   (G,) int64, the history; -1 for single words
    suffix_G   (G,) int64, the n-gram without its first word; -1 for single words. Every suffix is a node
    listed_G   (G,) bool, whether the model lists the n-gram; other nodes are suffixes, and back off
    prob_G     (G,) float64, P(word | history)
    backoff_M  (M,) float64, the backoff weight
    """

    starts: tuple[int, ...]
    word_G: Any
    first_child_M: Any
    parent_G: Any
    suffix_G: Any
    listed_G: Any
    prob_G: Any
    backoff_M: Any

    @property
    def order(self) -> int:
        return len(self.starts) - 1

    def level(self, n: int) -> slice:
        """Return the nodes of order n."""
        return slice(self.starts[n - 1], self.starts[n])

    def masses(self, n: int) -> tuple[Any, Any]:
        """Return the masses that the listed n-grams after each history of order n leave to other words.

        Both masses are 1 - a sum over the listed n-grams: of P(w | h), and of P(w | h without its first word). Masses
        below 3e-6 are 0.
        """
        xp, children = array_module(self.word_G), self.level(n + 1)
        first_child_M = self.first_child_M[self.starts[n - 1] : self.starts[n] + 1]
        listed_C = self.listed_G[children]

        def left(prob_C: Any) -> Any:
            mass = 1 - sum_siblings(xp.where(listed_C, prob_C, 0.0), first_child_M)
            return xp.where(abs(mass) < MIN_MASS, 0.0, mass)

        return left(self.prob_G[children]), left(self.prob_G[self.suffix_G[children]])

    def back_off(self, n: int) -> None:
        """Set the probabilities of the unlisted n-grams of order n."""
        new = self.starts[n - 1] + array_module(self.word_G).flatnonzero(~self.listed_G[self.level(n)])
        self.prob_G[new] = self.backoff_M[self.parent_G[new]] * self.prob_G[self.suffix_G[new]]

    def normalise(self) -> int:
        """Recompute the backoffs of all histories, so that the probabilities after each sum to 1.

        A history without listed n-grams has weight 1. Where all words are listed, their probabilities are scaled. Where
        they sum to more than 1, the weight is 0. Returns the number of histories with such a sum.
        """
        xp, overfull = array_module(self.word_G), 0
        for n in range(1, self.order):
            children = self.level(n + 1)
            mass_C, lower_C = self.masses(n)
            overfull += count_true(mass_C < 0)
            weighs = (lower_C > 0) | (mass_C < 0)
            weight_C = xp.maximum(mass_C, 0) / xp.where(lower_C > 0, lower_C, 1)
            self.backoff_M[self.level(n)] = xp.where(weighs, weight_C, 1)
            full_C = ~weighs & (mass_C > 0) & (mass_C < 1)
            if count_true(full_C):
                scale_C = xp.where(full_C, 1 - mass_C, 1.0)
                self.prob_G[children] /= scale_C[self.parent_G[children] - self.starts[n - 1]]
            self.back_off(n + 1)
        return overfull


def nodes_of(trie: Trie) -> BackoffNodes:
    """Return the nodes of a trie that is not quantised and has backoffs."""
    xp, G = array_module(trie.word_G), len(trie)
    parent_G, suffix_G = xp.full(G, -1), xp.full(G, -1)
    suffix_G[trie.symbols : trie.histories] = trie.suffixes()[trie.symbols :]
    for begin in range(trie.symbols, G, NODES_AT_ONCE):
        nodes = xp.arange(begin, min(begin + NODES_AT_ONCE, G))
        parents = xp.searchsorted(trie.first_child_M, nodes.astype(trie.first_child_M.dtype), "right") - 1
        parent_G[begin : begin + NODES_AT_ONCE] = parents
    top = max(trie.histories, trie.symbols)
    for begin in range(top, G, NODES_AT_ONCE):
        suffixes, words = suffix_G[parent_G[begin : begin + NODES_AT_ONCE]], trie.word_G[begin : begin + NODES_AT_ONCE]
        found = find_children(*index_of(trie), suffixes, words)
        suffix_G[begin : begin + NODES_AT_ONCE] = xp.where(suffixes < 0, words, found)
    listed_G = xp.ones(G, bool)
    if trie.filled_F is not None:
        listed_G[trie.filled_F] = False
    nodes = BackoffNodes(
        starts=trie.starts, word_G=trie.word_G, first_child_M=trie.first_child_M, parent_G=parent_G, suffix_G=suffix_G,
        listed_G=listed_G, prob_G=_raised(trie.prob_G), backoff_M=_raised(trie.backoff_M),
    )  # fmt: skip
    for n in range(2, trie.order):
        nodes.back_off(n)  # in float64
    return nodes


def _raised(log10: Any) -> Any:
    """Return 10**log10, float64, of float32 values."""
    xp = array_module(log10)
    out = xp.empty(len(log10))
    for begin in range(0, len(log10), NODES_AT_ONCE):
        piece = log10[begin : begin + NODES_AT_ONCE]
        out[begin : begin + NODES_AT_ONCE] = xp.where(piece > ZERO_LOG10, 10.0 ** piece.astype(np.float64), 0)
    return out


def logs_of(values: Any, zeros: Any = None) -> Any:
    """Return log10 of float64 values, float32.

    zeros  float32, the result at each place whose value is 0; None: -99
    """
    xp = array_module(values)
    out = xp.empty(len(values), np.float32)
    for begin in range(0, len(values), NODES_AT_ONCE):
        rows = slice(begin, begin + NODES_AT_ONCE)
        piece, zero = values[rows], np.float32(ZERO_LOG10) if zeros is None else zeros[rows]
        out[rows] = xp.where(piece > 0, xp.log10(xp.where(piece > 0, piece, 1)).astype(np.float32), zero)
    return out


def subtrie(nodes: BackoffNodes, prob_G: Any, backoff_M: Any, fanout: int) -> Trie:
    """Return the trie of the listed n-grams.

    nodes              histories of listed n-grams must be listed, except single words. Values are not read
    prob_G, backoff_M  float32, log10 values to store

    Suffixes that are not listed stay as filled-in nodes, as `engine.trie.build.build_trie` makes them.
    """
    xp, N = array_module(nodes.word_G), nodes.order
    kept_G = nodes.listed_G.copy()
    for n in range(N, 1, -1):
        kept_G[nodes.suffix_G[nodes.starts[n - 1] + xp.flatnonzero(kept_G[nodes.level(n)])]] = True
    before_G1 = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(kept_G, dtype=np.int64)])
    starts = tuple(int(before_G1[start]) for start in nodes.starts)
    kept = xp.flatnonzero(kept_G)
    contexts, linked = kept[: starts[-2]], kept[starts[2] : starts[-2]] if N > 2 else kept[:0]
    node = node_dtype(starts[-1])
    word_G = before_G1[nodes.word_G[kept]].astype(np.uint32)
    prob_G, backoff_M = prob_G[kept], backoff_M[contexts]
    first_child_M = xp.concatenate([before_G1[nodes.first_child_M[contexts]], before_G1[-1:]]).astype(node)
    filled_F = xp.flatnonzero(~nodes.listed_G[kept])
    if len(filled_F):
        parent_F, suffix_F = before_G1[nodes.parent_G[kept[filled_F]]], before_G1[nodes.suffix_G[kept[filled_F]]]
        backoff_M[filled_F[filled_F < starts[-2]]] = 0
        for begin, end in pairwise(starts[1:]):
            here = (filled_F >= begin) & (filled_F < end)
            prob_G[filled_F[here]] = prob_G[suffix_F[here]] + backoff_M[parent_F[here]]
    samples, sample_starts = sample_every_fanout(word_G, fanout)
    return Trie(
        starts=starts, word_G=word_G, prob_G=negative(prob_G), backoff_M=backoff_M, first_child_M=first_child_M,
        suffix_L=before_G1[nodes.suffix_G[linked]].astype(node), fanout=fanout, samples=samples,
        sample_starts=sample_starts, filled_F=filled_F.astype(node) if len(filled_F) else None,
    )  # fmt: skip
