"""One part of a model: its n-grams with adjusted counts, and with estimated values.

A part holds all n-grams of orders 2 to N whose last context word belongs to it. So all continuations of a context are
in one part, and so are an n-gram and its suffix. Parts exchange only vectors over the vocabulary, counts of counts,
bigrams of split words and the finished model. Every part has all words of order 1.

If a word is split (core.shards.split_words), the word before it selects the part of its trigrams and longer n-grams.
Its bigrams ("split bigrams") are all in one part. The other parts send that part the numbers of words before the
split bigrams that they have, and receive the probabilities of these.

A single part holds the whole model. Its n-grams become the nodes of a trie at once: they are linked to their histories,
which are rows of the order below, so that neither suffixes nor contexts are searched in a whole table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.shards import words_at
from mgpu_ngram.core.ngrams.smoothing import Smoothing
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.link_histories import Links


@dataclass(frozen=True)
class EstimateOptions:
    """Settings of an estimate. Picklable.

    order                highest order, N
    thresholds           (N,) raw counts: n-grams of order n with count thresholds[n - 1] or less are pruned
    vocab_pad            least number of words of the uniform distribution
    interpolate_unigrams  whether words get a share of the uniform distribution; else <unk> gets all remaining mass of
                          order 1
    smoothing            smoothing of plain counts; None: modified Kneser-Ney
    collapse             whether each n-gram gets one value, as in `engine.estimate.assemble.assemble`
    """

    order: int
    thresholds: tuple[int, ...]
    vocab_pad: int = 0
    interpolate_unigrams: bool = True
    smoothing: Smoothing | None = None
    collapse: bool = False

    @property
    def suffixed_order(self) -> int:
        """The highest order whose nodes store their suffixes, if it is 3 or more."""
        return self.order if self.collapse else self.order - 1


@dataclass
class Order:
    """The n-grams of one order n, at least 2, of a part. Arrays of uint32 are int64 if values reach 2**32.

    keys      (C, R) uint64, rising keys with `bits` bits a word; None in a part that is the whole model
    raw_R     (R,) uint32, count of each n-gram in the text; count_R itself after `Part.drop_raw_counts`
    suffix_R  (R,) uint32: the row of the suffix of each n-gram in the order below. Order 2: a word id. Order
              3: rows past the end are those of `Part.split_left`. None: not found yet
    count_R   (R,) uint32, adjusted counts; raw_R itself in the highest order
    marked_R  (R,) bool, whether the n-gram is pruned; None if no n-gram of this order is pruned
    links     `Links`, in a part that is the whole model; else None
    """

    n: int
    bits: int
    keys: Any
    raw_R: Any
    suffix_R: Any
    count_R: Any
    marked_R: Any = None
    links: Any = None

    def __len__(self) -> int:
        return len(self.raw_R)

    def sizes(self) -> tuple[int, int]:
        """Return (number of kept n-grams, number of all n-grams)."""
        pruned = 0 if self.marked_R is None else count_true(self.marked_R)
        return len(self) - pruned, len(self)

    def taken(self, rows: Any) -> Order:
        """Return some rows of an order with keys."""
        raw_R = self.raw_R[rows]
        count_R = raw_R if self.count_R is self.raw_R else self.count_R[rows]
        marked_R = None if self.marked_R is None else self.marked_R[rows]
        return Order(self.n, self.bits, self.keys.take(rows, axis=1), raw_R, self.suffix_R[rows], count_R, marked_R)

    def on(self, device: str) -> Order:
        """Return the order with its arrays on a device; without links."""
        keys, suffix_R, count_R = (move_to(array, device) for array in (self.keys, self.suffix_R, self.count_R))
        raw_R = count_R if self.raw_R is self.count_R else move_to(self.raw_R, device)
        marked_R = None if self.marked_R is None else move_to(self.marked_R, device)
        return Order(self.n, self.bits, keys, raw_R, suffix_R, count_R, marked_R)

    def word(self, position: int) -> Any:
        """Return (R,) int64, the id of one word of each n-gram, from keys."""
        return word_ids(self.keys, self.n, self.bits, position)


class SplitLeft(NamedTuple):
    """The numbers of distinct words before split bigrams, P of them.

    place_P  (P,) int64, rising: their places among all split bigrams, of which each split word has V
    left_P   (P,) int64
    """

    place_P: Any
    left_P: Any

    def dense(self, places: int) -> Any:
        """Return (H * V,) int64: the number of each split bigram, 0 for those that are not here."""
        left_L = array_module(self.left_P).zeros(places, np.int64)
        left_L[self.place_P] = self.left_P
        return left_L


def add_split_left(*several: SplitLeft) -> SplitLeft:
    """Return the sum, on the device of the first one."""
    device, xp = device_of(several[0].place_P), array_module(several[0].place_P)
    place_P, left_P = (xp.concatenate([move_to(a, device) for a in arrays]) for arrays in zip(*several, strict=True))
    if not len(place_P):
        return SplitLeft(place_P, left_P)
    order = xp.argsort(place_P)
    place_P, left_P = place_P[order], left_P[order]
    is_last_P = xp.ones(len(place_P), bool)
    is_last_P[:-1] = place_P[1:] != place_P[:-1]
    ends = xp.flatnonzero(is_last_P)
    sums = xp.cumsum(left_P)[ends]
    return SplitLeft(place_P[ends], xp.diff(xp.concatenate([xp.zeros(1, np.int64), sums])))


@dataclass(eq=False)
class Part:
    """A part with its adjusted counts.

    orders            orders 2 to N
    left_V            (V,) int64: the number of distinct words before each word, from the bigrams of this part
    split_left        the same for split bigrams that are suffixes of trigrams of this part; None without split words
    counts_of_counts  {order: number of its n-grams with adjusted count 1, 2, 3, 4}
    sizes             {order: (number of kept n-grams, number of all n-grams)}
    last              `last_ngrams` from the last word of the text on, by split word that the bigram begins with; by -1
                      from order 2 on
    """

    orders: dict[int, Order]
    left_V: Any
    split_left: SplitLeft | None = None
    counts_of_counts: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def drop_raw_counts(self) -> None:
        """Free the raw counts of the orders below the highest: only `engine.estimate.adjusted_counts` reads them."""
        for order in self.orders.values():
            order.raw_R = order.count_R

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name, each once."""
        named = {"left_V": self.left_V}
        if self.split_left is not None:
            named |= {"split": self.split_left.place_P, "split_left": self.split_left.left_P}
        for n, order in self.orders.items():
            found = {"keys": order.keys, "raw": order.raw_R, "suffix": order.suffix_R, "marked": order.marked_R}
            if order.links:
                found |= order.links._asdict() | ({"suffix": None} if n == 2 else {})  # word_R itself
            if order.count_R is not order.raw_R:
                found["count"] = order.count_R
            named |= {f"{n}.{name}": array for name, array in found.items() if array is not None}
        return named

    def with_arrays(self, named: dict[str, Any]) -> Part:
        """Return the part with other arrays, such as copies on another device."""
        orders = {}
        for n, order in self.orders.items():
            keys, raw_R, suffix_R, count_R, marked_R = (
                named.get(f"{n}.{name}") for name in ("keys", "raw", "suffix", "count", "marked")
            )
            links = None if order.links is None else Links(*(named[f"{n}.{name}"] for name in Links._fields))
            suffix_R = links.word_R if links and n == 2 else suffix_R
            count_R = raw_R if count_R is None else count_R
            orders[n] = Order(
                n=n,
                bits=order.bits,
                keys=keys,
                raw_R=raw_R,
                suffix_R=suffix_R,
                count_R=count_R,
                marked_R=marked_R,
                links=links,
            )
        split_left = SplitLeft(named["split"], named["split_left"]) if "split" in named else None
        return replace(self, orders=orders, left_V=named["left_V"], split_left=split_left)


@dataclass
class Unigrams:
    """The whole of order 1; arrays over the vocabulary.

    prob_V   (V,) float32, P(word)
    kept_V   (V,) bool, False for pruned words
    finite   whether the log10 of 0 is -99 (-100 for <unk>), as in SRILM; else -inf, as in lmplz
    """

    prob_V: Any
    kept_V: Any
    finite: bool = False


@dataclass
class Contexts:
    """The contexts of the n-grams of one order, C of them, of one part or of the whole model.

    columns   (B, C) uint64, rising keys; None in the whole model, whose contexts are the rows of the order below
    values    (C,) float32, log10 backoffs
    first_C1  (C + 1,) uint32, int64 from 2**32 on: the kept n-grams that continue context c are first_C1[c] to
              first_C1[c + 1] - 1; None in the whole model
    """

    columns: Any
    values: Any
    first_C1: Any = None


class OrderNodes(NamedTuple):
    """The n-grams of an order of the whole model, as nodes of a trie; `Order` and `Links` describe the arrays.

    suffix_R  None in order 2
    """

    word_R: Any
    first_M1: Any
    suffix_R: Any
    marked_R: Any


@dataclass(eq=False)
class Estimated:
    """The estimated values of a part.

    probabilities  {order: (R,) float32, log10 probabilities}, orders 2 to N; in one of several parts, of kept n-grams
    words          {order: (R,) uint32, ids of their last words}, in one of several parts
    contexts       {order: its n-grams that are contexts}, orders 1 to N - 1; in one of several parts, contexts of kept
                   n-grams. Other parts may have them
    nodes          {order: nodes}, orders 2 to N, only for a part that is the whole model
    suffixes       {order: rows of the order below that are the suffixes of its kept n-grams}, in one of several parts,
                   for orders from 3 on whose nodes store their suffixes. Only kept n-grams are rows. Order 3: rows past
                   the end are places of split bigrams
    """

    probabilities: dict[int, Any]
    words: dict[int, Any]
    contexts: dict[int, Contexts]
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[int, OrderNodes] = field(default_factory=dict)
    suffixes: dict[int, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        vectors = {"p": self.probabilities, "w": self.words, "s": self.suffixes}
        named = {f"{kind}{n}": array for kind, arrays in vectors.items() for n, array in arrays.items()}
        named |= {f"c{n}.{name}": a for n, contexts in self.contexts.items() for name, a in vars(contexts).items()}
        named |= {f"n{n}.{name}": a for n, nodes in self.nodes.items() for name, a in nodes._asdict().items()}
        return {name: array for name, array in named.items() if array is not None}

    def with_arrays(self, named: dict[str, Any]) -> Estimated:
        """Return the same with other arrays."""
        return Estimated(
            probabilities={n: named[f"p{n}"] for n in self.probabilities},
            words={n: named[f"w{n}"] for n in self.words},
            contexts={
                n: Contexts(*(named.get(f"c{n}.{name}") for name in ("columns", "values", "first_C1")))
                for n in self.contexts
            },
            seconds=self.seconds,
            nodes={n: OrderNodes(*(named.get(f"n{n}.{name}") for name in OrderNodes._fields)) for n in self.nodes},
            suffixes={n: named[f"s{n}"] for n in self.suffixes},
        )


def word_ids(keys: Any, order: int, bits: int, position: int) -> Any:
    """Return (G,) int64, the id of one word of each n-gram."""
    return (words_at(keys, order, bits, position) - np.uint64(1)).view(np.int64)
