"""A backoff model, as n-grams and as a trie: the values that building, scoring, distributions and files share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

ARRAYS = ("word_G", "prob_G", "backoff_M", "first_child_M", "suffix_M", "samples", "sample_starts")  # of a Trie


@dataclass(frozen=True)
class Ngrams:
    """The G n-grams of one order of a model; NumPy or CuPy.

    ids      (G, n) uint32, word ids below V
    prob     (G,) float32, log10 P(last word | the others)
    backoff  (G,) float32, log10 of the backoff weight; None at the highest order
    """

    ids: Any
    prob: Any
    backoff: Any = None

    def __len__(self) -> int:
        return len(self.prob)


@dataclass(frozen=True)
class Trie:
    """N-grams of orders 1 to N, one node each, in breadth-first order: by order, then by parent, then by word.

    The parent of w1 ... wn is its history w1 ... w(n-1). Arrays are NumPy or CuPy. M nodes are of an order below N.

    starts         N + 1 ints: nodes of order n are starts[n - 1] to starts[n] - 1; node w < V is word w alone
    word_G         (G,) uint32, the last word
    prob_G         (G,) float32, log10 P(last word | history)
    backoff_M      (M,) float32, log10 of the backoff weight of the n-gram as a history; 0 where it has none
    first_child_M  (M + 1,) uint32, or int64 from 2**32 nodes on: children of m are first_child_M[m] to
                   first_child_M[m + 1] - 1
    suffix_M       (M,) as first_child_M: the node of w2 ... wn; of a single word G, which is the empty history
    fanout, samples, sample_starts  the B+-tree index over word_G (kernels.trie.find_children)
    """

    starts: tuple[int, ...]
    word_G: Any
    prob_G: Any
    backoff_M: Any
    first_child_M: Any
    suffix_M: Any
    fanout: int
    samples: Any
    sample_starts: Any

    @property
    def order(self) -> int:
        return len(self.starts) - 1

    @property
    def symbols(self) -> int:
        """V, words of the vocabulary."""
        return self.starts[1]

    def __len__(self) -> int:
        return self.starts[-1]

    def moved(self, move: Callable[[Any], Any]) -> Trie:
        """The trie with its arrays moved, such as to a device."""
        arrays: dict[str, Any] = {name: move(getattr(self, name)) for name in ARRAYS}
        return replace(self, **arrays)


def node_dtype(nodes: int) -> np.dtype:
    """What holds a node of so many, and one more: the largest uint32 is node 2**32 - 1."""
    return np.dtype(np.uint32 if nodes < 1 << 32 else np.int64)
