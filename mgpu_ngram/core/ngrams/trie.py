"""A backoff model as n-grams and as a trie, shared by building, scoring, distributions and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.kernels.dispatch import array_module

TRIE_ARRAYS = ("word_G", "prob_G", "backoff_M", "first_child_M", "suffix_L", "samples", "sample_starts")
CODED = ("words_V2", "centers")  # also of a quantised trie
FILLED = "filled_F"  # also of a trie with n-grams that the model lacks


@dataclass(frozen=True)
class Ngrams:
    """The G n-grams of one order of a model; NumPy or CuPy.

    ids      (G, n) uint32, word ids below V
    prob     (G,) float32, log10 P(last word | the others)
    backoff  (G,) float32, log10 of the backoff weight; None for the highest order
    """

    ids: Any
    prob: Any
    backoff: Any = None

    def __len__(self) -> int:
        return len(self.prob)


def renumbered(levels: Iterable[Ngrams], id_V: np.ndarray, is_read_V: np.ndarray) -> Iterator[Ngrams]:
    """Yield the n-grams of orders 1 to N with other word ids; words that get one id become one word.

    id_V       (V,) the id that each word gets
    is_read_V  (V,) bool, words whose 1-gram is kept: one of those that get the same id
    """
    for n, level in enumerate(levels, 1):
        xp = array_module(level.prob)
        ids, rows = xp.asarray(id_V.astype(np.uint32))[level.ids[:]], slice(None)
        if n == 1:
            rows = xp.flatnonzero(xp.asarray(is_read_V)[level.ids[:][:, 0]])
        yield Ngrams(ids[rows], level.prob[rows], None if level.backoff is None else level.backoff[rows])


@dataclass(frozen=True)
class Trie:
    """N-grams of orders 1 to N, one node each, in breadth-first order: by order, then by parent, then by word.

    The parent of w1 ... wn is its history w1 ... w(n-1). Arrays are NumPy or CuPy. M nodes have an order below N.

    starts         N + 1 ints: nodes of order n are starts[n - 1] to starts[n] - 1; node w < V is the word w
    word_G         (G,) uint32, the last word
    prob_G         (G,) float32, log10 P(last word | history); a probability of 1 is -0, as in KenLM
    backoff_M      (M,) float32, log10 of the backoff weight of the n-gram as a history, 0 if it has none; or (0,): the
                   trie has no backoffs
    first_child_M  (M + 1,) uint32, or int64 from 2**32 nodes on: children of m are first_child_M[m] to
                   first_child_M[m + 1] - 1
    suffix_L       (L,) as first_child_M: for the L nodes of orders 3 to N - 1, the node of w2 ... wn. (The node of the
                   suffix of w1 w2 is the word w2.)
    fanout, samples, sample_starts  the B+-tree index over word_G (kernels.trie.find_children)

    In a quantised trie prob_G and backoff_M are codes, uint8 or uint16, and the trie has two more arrays:

    words_V2  (V, 2) float32, exact log10 probability and backoff of single words; the codes of single words are unused
    centers   (N - 1, 2, 256 or 65536) float32: the values of codes, by order from 2 on; probabilities, then backoffs

    If the trie has filled-in nodes, which the model does not store (engine.trie.build_trie):

    filled_F  (F,) as first_child_M, rising: these nodes, of orders 2 to N - 1
    """

    starts: tuple[int, ...]
    word_G: Any
    prob_G: Any
    backoff_M: Any
    first_child_M: Any
    suffix_L: Any
    fanout: int
    samples: Any
    sample_starts: Any
    words_V2: Any = None
    centers: Any = None
    filled_F: Any = None

    @property
    def order(self) -> int:
        return len(self.starts) - 1

    @property
    def symbols(self) -> int:
        """V, the number of words of the vocabulary."""
        return self.starts[1]

    @property
    def histories(self) -> int:
        """M, the number of nodes of an order below N."""
        return self.starts[-2]

    @property
    def has_backoffs(self) -> bool:
        return len(self.backoff_M) == self.histories

    @property
    def quantized(self) -> bool:
        return self.centers is not None

    def __len__(self) -> int:
        return self.starts[-1]

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that the trie has, by name."""
        named = {name: getattr(self, name) for name in (*TRIE_ARRAYS, *CODED, FILLED)}
        return {name: array for name, array in named.items() if array is not None}

    def map_arrays(self, fn: Callable[[Any], Any]) -> Trie:
        """Return the trie with `fn` applied to its arrays, such as a copy to a device."""
        arrays: dict[str, Any] = {name: fn(array) for name, array in self.arrays().items()}
        return replace(self, **arrays)

    def suffixes(self) -> Any:
        """Return (M,) as first_child_M: the node of w2 ... wn; for a single word G, the empty history."""
        xp, node = array_module(self.word_G), self.first_child_M.dtype
        pairs = self.word_G[self.symbols : self.histories - len(self.suffix_L)]
        words = xp.full(min(self.symbols, self.histories), len(self), node)
        return xp.concatenate([words, pairs.astype(node), self.suffix_L])

    def decoded(self) -> Trie:
        """Return the trie with values in place of their codes; itself if it is not quantised."""
        if not self.quantized:
            return self
        xp = array_module(self.word_G)
        prob, backoff = [self.words_V2[:, 0]], [self.words_V2[: len(self.backoff_M), 1]]
        for (begin, end), (prob_centers, backoff_centers) in zip(pairwise(self.starts[1:]), self.centers, strict=True):
            prob.append(prob_centers[self.prob_G[begin:end]])
            backoff.append(backoff_centers[self.backoff_M[begin:end]])
        floats: dict[str, Any] = {"prob_G": xp.concatenate(prob), "backoff_M": xp.concatenate(backoff)}
        return replace(self, **floats, words_V2=None, centers=None)


def without_filled(filled_F: Any, nodes: Any) -> Any:
    """Return the positions of nodes, or entries, after the filled-in ones are removed."""
    return (nodes - array_module(nodes).searchsorted(filled_F, nodes)).astype(nodes.dtype)


def node_dtype(nodes: int) -> np.dtype:
    """Return the dtype for node numbers up to `nodes`; the greatest uint32 is node 2**32 - 1."""
    return np.dtype(np.uint32 if nodes < 1 << 32 else np.int64)
