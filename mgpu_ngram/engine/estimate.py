"""Estimate one part of a model from counts of marked text: modified Kneser-Ney, or by the rules of `engine.smooth`.

A part holds all n-grams of orders 2 to N whose last context word belongs to it. So all continuations of a context are
in one part, and so are an n-gram and the same n-gram without its first word. Parts exchange only vectors over the
vocabulary, counts of counts and the finished model. Every part has all words of order 1.

If a word is split (core.shards.split_words), the word before it selects the part of its trigrams and longer n-grams.
Its bigrams ("split bigrams") are all in one part. The other parts send that part the number of words before each
split bigram, and receive its probability: vectors over the vocabulary for each split word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.arpa import ZERO_LOG10
from mgpu_ngram.core.discounts import Discounts
from mgpu_ngram.core.shards import words_at
from mgpu_ngram.core.smoothing import Smoothing
from mgpu_ngram.core.tables import Table
from mgpu_ngram.core.trie import node_dtype
from mgpu_ngram.engine.side_by_side import side_by_side
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts
from mgpu_ngram.kernels.estimate.sum_contexts import sum_contexts

UNK_ID, START_ID, END_ID = 0, 1, 2  # ids
COUNTED = 4  # counts of counts cover counts 1 to 4
CONTEXTS_AT_ONCE = 1 << 24  # contexts per batch of backoff sums: enough for a GPU, little memory
MIN_MASS = np.finfo(np.float32).tiny  # that a context leaves: no reader accepts a backoff of -inf


@dataclass(frozen=True)
class EstimateOptions:
    """Settings of a model, besides its counts. Picklable.

    order                highest order, N
    thresholds           (N,) raw counts: n-grams of order n with count thresholds[n - 1] or less are pruned
    vocab_pad            least number of words of the uniform distribution
    interpolate_unigrams  whether words get a share of the uniform distribution; else <unk> gets all that order 1 leaves
    smoothing            of plain counts; None: modified Kneser-Ney
    """

    order: int
    thresholds: tuple[int, ...]
    vocab_pad: int = 0
    interpolate_unigrams: bool = True
    smoothing: Smoothing | None = None


@dataclass
class Order:
    """The n-grams of one order n, 2 or more, of a part; uint32 becomes int64 for values from 2**32 on.

    keys      (C, R) uint64 of words of `bits` bits, rising
    raw_R     (R,) uint32, count of each n-gram in the text
    suffix_R  (R,) uint32: the row in the order below of each n-gram without its first word. Order 2: a word id. Order
              3: may be a number past all rows, the place of a split bigram
    count_R   (R,) uint32, adjusted counts; raw_R itself in the highest order
    marked_R  (R,) bool, whether it is pruned; None if no n-gram of this order is
    """

    n: int
    bits: int
    keys: Any
    raw_R: Any
    suffix_R: Any
    count_R: Any
    marked_R: Any = None

    def __len__(self) -> int:
        return len(self.raw_R)

    def word(self, position: int) -> Any:
        """Return (R,) int64, the id of one word of each n-gram."""
        return word_ids(self.keys, self.n, self.bits, position)


@dataclass(eq=False)
class Part:
    """A part with its adjusted counts.

    orders            of 2 to N
    left_V            (V,) int64: the number of distinct words before each word, from the bigrams of this part
    split_left_L      (H * V,) int64: the same for split bigrams, from the trigrams of this part
    counts_of_counts  order -> number of its n-grams with adjusted count 1, 2, 3, 4
    sizes             order -> (n-grams that are kept, all n-grams)
    """

    orders: dict[int, Order]
    left_V: Any
    split_left_L: Any
    counts_of_counts: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name, each once."""
        named = {"left_V": self.left_V, "split_left_L": self.split_left_L}
        for n, order in self.orders.items():
            found = {"keys": order.keys, "raw": order.raw_R, "suffix": order.suffix_R, "marked": order.marked_R}
            if order.count_R is not order.raw_R:
                found["count"] = order.count_R
            named |= {f"{n}.{name}": array for name, array in found.items() if array is not None}
        return named

    def with_arrays(self, named: dict[str, Any]) -> Part:
        """Return the part with other arrays, such as copies on another device."""
        orders = {}
        for n, order in self.orders.items():
            keys, raw_R, suffix_R = (named[f"{n}.{name}"] for name in ("keys", "raw", "suffix"))
            count_R, marked_R = named.get(f"{n}.count", raw_R), named.get(f"{n}.marked")
            orders[n] = Order(n, order.bits, keys, raw_R, suffix_R, count_R, marked_R)
        return replace(self, orders=orders, left_V=named["left_V"], split_left_L=named["split_left_L"])


@dataclass
class Unigrams:
    """The whole of order 1; arrays over the vocabulary.

    prob_V   (V,) float32, P(word)
    kept_V   (V,) bool, False for pruned words
    finite   whether a model has -99 as log10 of 0 (-100 of <unk>), as in SRILM; else -inf, as in lmplz
    """

    prob_V: Any
    kept_V: Any
    finite: bool = False


@dataclass
class Weights:
    """Values of the kept n-grams of one order, of one part or of all parts.

    columns  (C, G) uint64, rising keys
    values   (G,) float32, log10 probabilities, or backoffs
    """

    columns: Any
    values: Any


@dataclass(eq=False)
class Estimated:
    """The estimated values of a part.

    probabilities  order -> values of its kept n-grams of orders 2 to N
    backoffs       order -> values of its contexts, which are n-grams of orders 1 to N - 1; these may be in another
                   part, or pruned
    suffixes       order -> (G,) the row in the order below of each n-gram without its first word, from order 3 on; only
                   of a part that is the whole model, where no n-gram of both orders is pruned
    """

    probabilities: dict[int, Weights]
    backoffs: dict[int, Weights]
    seconds: dict[str, float] = field(default_factory=dict)
    suffixes: dict[int, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        both = {"p": self.probabilities, "b": self.backoffs}
        named = {f"{k}{n}.{name}": a for k, ws in both.items() for n, w in ws.items() for name, a in vars(w).items()}
        return named | {f"s{n}": suffix_G for n, suffix_G in self.suffixes.items()}

    def with_arrays(self, named: dict[str, Any]) -> Estimated:
        """Return the same with other arrays."""

        def named_weights(kind: str, weights: dict[int, Weights]) -> dict[int, Weights]:
            return {n: Weights(named[f"{kind}{n}.columns"], named[f"{kind}{n}.values"]) for n in weights}

        both = named_weights("p", self.probabilities), named_weights("b", self.backoffs)
        return Estimated(*both, self.seconds, {n: named[f"s{n}"] for n in self.suffixes})


def adjust_counts(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any = None, split: Sequence[int] = (),
    threads: int = 1,
) -> Part:  # fmt: skip
    """Return a part with adjusted counts.

    The adjusted count of an n-gram of order N is its raw count. Below, it is the number of distinct words before the
    n-gram, or its raw count if the n-gram begins with <s>, because no word precedes <s>.

    tables  of orders 2 to N, each sorted by key; counts of marked text
    bad_V   (V,) bool, words outside a limited vocabulary; None: it is not limited
    split   words that are split; their bigrams have count 0 until `with_split_counts`
    threads  as of `side_by_side`, one order each
    """
    N, orders = options.order, orders_of(tables, symbols, options, bad_V, split, threads)
    xp = array_module(tables[2].keys)
    part = Part(orders, xp.bincount(orders[2].suffix_R, minlength=symbols).astype(np.int64), xp.empty(0, np.int64))

    def adjust(order: Order) -> None:
        n = order.n
        if n < N:
            R = len(order)
            places = len(split) * symbols if n == 2 else 0
            left_L = xp.bincount(orders[n + 1].suffix_R, minlength=R + places)
            order.count_R = _narrow(xp.where(order.word(0) == START_ID, order.raw_R, left_L[:R]))
            if places:
                part.split_left_L = left_L[R:].astype(np.int64)
        part.counts_of_counts[n] = count_counts(order.count_R)
        pruned = 0 if order.marked_R is None else int(order.marked_R.sum())
        part.sizes[n] = len(order) - pruned, len(order)

    list(side_by_side(adjust, orders.values(), threads))
    return part


def orders_of(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, split: Sequence[int],
    threads: int = 1,
) -> dict[int, Order]:  # fmt: skip
    """Return the n-grams of each order with the rows of their suffixes and their raw counts; see `adjust_counts`."""

    def order_of(n: int) -> Order:
        table = tables[n]
        if n == 2:
            suffix_R = word_ids(table.keys, n, table.bits, 1).astype(np.uint32)
        else:
            suffix_R = find_ngrams(tables[n - 1].keys, n - 1, table.bits, table.keys, 1)
            places = len(split) * symbols if n == 3 else 0
            if places:
                first_R, second_R = (word_ids(table.keys, n, table.bits, position) for position in (1, 2))
                place_R = _split_places(first_R, second_R, split, symbols)
                suffix_R = array_module(place_R).where(place_R >= 0, len(tables[2]) + place_R, suffix_R)
            suffix_R = suffix_R.astype(node_dtype(len(tables[n - 1]) + places))
        raw_R = _narrow(table.counts)
        order = Order(n, table.bits, table.keys, raw_R, suffix_R, raw_R)
        order.marked_R = _marked(order, options.thresholds[n - 1], bad_V)
        return order

    found = sorted(tables, reverse=threads > 1)  # the longest search first
    orders = {order.n: order for order in side_by_side(order_of, found, threads)}
    return dict(sorted(orders.items()))


def _narrow(counts: Any) -> Any:
    """Return counts as uint32 if they fit: half the memory."""
    return counts.astype(np.uint32 if not len(counts) or int(counts.max()) < 1 << 32 else np.int64)


def count_counts(counts: Any, most: int = COUNTED) -> list[int]:
    """Return how many counts are 1, 2, ..., most."""
    return [int((counts == j).sum()) for j in range(1, most + 1)]


def places_in_text(first_source_V: np.ndarray, first_offset_V: np.ndarray) -> np.ndarray:
    """Return (V,) int64, numbers in the order of lmplz's ids: specials first, then words by first occurrence."""
    place_V = np.arange(len(first_source_V))
    words = slice(END_ID + 1, None)
    bytes_at_most = np.int64(first_offset_V.max(initial=0)) + 1  # of a source, as far as words begin
    place_V[words] = END_ID + 1 + first_source_V[words].astype(np.int64) * bytes_at_most + first_offset_V[words]
    return place_V


def last_longer(part: Part, suffix: Sequence[int], place_V: np.ndarray) -> tuple[int, int, int, int]:
    """Return (place, first word, adjusted count, raw count) of one n-gram that is a word followed by `suffix`.

    Of all such n-grams of the part, the one whose first word has the greatest of `places_in_text`; place -1 if there
    is none.
    """
    order = part.orders[len(suffix) + 1]
    here_R = array_module(order.count_R).ones(len(order), bool)
    for position, word in enumerate(suffix, 1):
        here_R &= order.word(position) == word
    rows = here_R.nonzero()[0]
    if not len(rows):
        return -1, -1, 0, 0
    first_K = to_host(order.word(0)[rows])
    best = int(place_V[first_K].argmax())
    row, word = int(rows[best]), int(first_K[best])
    return int(place_V[word]), word, int(order.count_R[row]), int(order.raw_R[row])


def _split_places(first_G: Any, second_G: Any, split: Sequence[int], symbols: int) -> Any:
    """Return (G,) int64: the places of bigrams among split bigrams, -1 for other bigrams."""
    xp = array_module(first_G)
    words_H = xp.asarray(split)
    index_G = xp.minimum(xp.searchsorted(words_H, first_G), len(split) - 1)
    return xp.where(words_H[index_G] == first_G, index_G * symbols + second_G, -1)


def with_split_counts(part: Part, split: Sequence[int], symbols: int, left_L: Any) -> Part:
    """Return a part with the adjusted counts of its split bigrams.

    left_L  (H * V,) int64, the sum of `split_left_L` over all parts
    """
    bigrams = part.orders[2]
    place_R = _split_places(bigrams.word(0), bigrams.word(1), split, symbols)
    count_R = _narrow(array_module(left_L).where(place_R >= 0, left_L[place_R], bigrams.count_R))
    return replace(part, orders=part.orders | {2: replace(bigrams, count_R=count_R)})


def word_ids(keys: Any, order: int, bits: int, position: int) -> Any:
    """Return (G,) int64, the id of one word of each n-gram."""
    return (words_at(keys, order, bits, position) - np.uint64(1)).view(np.int64)


def _marked(order: Order, threshold: int, bad_V: Any) -> Any:
    """Return which n-grams are pruned; None if none is."""
    marked_R = order.raw_R <= threshold if threshold else None
    if bad_V is not None:
        outside_R = array_module(order.keys).zeros(len(order), bool)
        for position in range(order.n):
            outside_R |= bad_V[order.word(position)]
        marked_R = outside_R if marked_R is None else marked_R | outside_R
    return marked_R


def adjust_unigrams(left_V: Any, counts_V: Any, options: EstimateOptions, bad_V: Any) -> tuple[Any, Any]:
    """Return (adjusted counts (V,) int64, kept (V,) bool) of single words.

    left_V    summed over all parts
    counts_V  raw counts
    """
    xp = array_module(left_V)
    count_V = (counts_V if options.order == 1 else left_V).copy()
    count_V[START_ID] = 0
    kept_V = counts_V > options.thresholds[0]
    if bad_V is not None:
        kept_V &= ~bad_V
    kept_V[: END_ID + 1] = True
    return count_V, xp.ascontiguousarray(kept_V)


def estimate_unigrams(count_V: Any, kept_V: Any, discounts: Discounts, options: EstimateOptions) -> Unigrams:
    """Return probabilities of single words; <unk> gets its share of the uniform distribution.

    <s> gets 1, as in lmplz.
    """
    xp, f = array_module(count_V), np.float32
    kinds = xp.array(
        [[(kept_V & (count_V == 1)).sum(), (kept_V & (count_V == 2)).sum(), (kept_V & (count_V > 2)).sum()]]
    )
    total = count_V.sum(keepdims=True)
    gamma = _gammas(discounts, kinds, count_V[~kept_V].sum(keepdims=True), total)
    uniform = f(1) / f(max(options.vocab_pad, int(kept_V.sum()) - 1))
    discount_V = xp.asarray(np.array([0, *discounts], f))[xp.minimum(count_V, 3)]
    prob_V = (count_V.astype(f) - discount_V) / total.astype(f)
    if options.interpolate_unigrams:
        prob_V = prob_V + gamma * uniform
    else:
        prob_V[UNK_ID] += gamma[0]
    prob_V[START_ID] = 1
    return Unigrams(prob_V, kept_V)


def _gammas(discounts: Discounts, kinds_C3: Any, pruned_C: Any, total_C: Any) -> Any:
    """Return (C,) float32: the mass that contexts leave to the lower order, from discounts and pruned counts.

    Sums in the order of lmplz.
    """
    gamma_C = array_module(total_C).zeros(len(total_C), np.float32)
    for begin in range(0, len(gamma_C), CONTEXTS_AT_ONCE):
        rows = slice(begin, begin + CONTEXTS_AT_ONCE)
        left_C = gamma_C[rows]
        for kind, discount in enumerate(discounts):
            left_C += np.float32(discount) * kinds_C3[rows, kind].astype(np.float32)
        if pruned_C is not None:
            left_C += pruned_C[rows].astype(np.float32)
        left_C /= total_C[rows].astype(np.float32)
    return gamma_C


def estimate_part(
    part: Part, rules: Mapping[int, Discounts | Rule], prob_V: Any, split_L: Any = None, whole: bool = False,
    threads: int = 1,
) -> Estimated:  # fmt: skip
    """Return probabilities and backoffs of a part.

    rules    order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    prob_V   (V,) float32, of single words
    split_L  (H * V,) float32, of split bigrams
    whole    whether the part is the whole model: return suffixes
    threads  as of `side_by_side`, one order each
    """
    backoffs = dict[int, Weights]()

    def prepared(n: int) -> tuple[int, Callable[[Any], tuple[Any, Weights]]]:
        return n, _estimator(part.orders[n], rules[n])

    def interpolated() -> Iterator[tuple[Order, Any]]:
        lower_L = _of_words(prob_V, rules[1])
        for n, estimate in side_by_side(prepared, sorted(part.orders), threads):
            if n == 3 and split_L is not None:
                lower_L = array_module(lower_L).concatenate([lower_L, split_L])
            lower_L, backoffs[n - 1] = estimate(lower_L)
            del estimate  # frees memory: it holds arrays of contexts
            yield part.orders[n], lower_L

    def weights(made: tuple[Order, Any]) -> tuple[int, Weights]:
        order, prob_R = made
        columns, values = order.keys, prob_R if isinstance(rules[order.n], Rule) else log10_values(prob_R)
        if order.marked_R is not None:
            kept = array_module(values).flatnonzero(~order.marked_R)
            columns, values = columns[:, kept], values[kept]
        return order.n, Weights(columns, values)

    estimated = Estimated(dict(side_by_side(weights, interpolated(), threads)), backoffs)
    for n in range(3, max(part.orders) + 1) if whole else ():
        if part.orders[n].marked_R is None and part.orders[n - 1].marked_R is None:
            estimated.suffixes[n] = part.orders[n].suffix_R
    return estimated


def _of_words(prob_V: Any, rule: Discounts | Rule) -> Any:
    """Return the probabilities of single words as an estimator needs them."""
    if isinstance(rule, Rule):
        return array_module(prob_V).maximum(log10_values(prob_V), np.float32(ZERO_LOG10))
    return prob_V


def _estimator(order: Order, rule: Discounts | Rule) -> Callable[[Any], tuple[Any, Weights]]:
    """Return a function of the probabilities of the lower order that returns (probabilities of the n-grams of one
    order, backoffs of their contexts).

    Probabilities, also those of the lower order, are log10 values if `rule` is a Rule.
    """
    xp = array_module(order.count_R)
    [(contexts, sizes_C)] = count_prefixes(order.keys, order.bits, order.n - 1, order.n - 1)
    if isinstance(rule, Rule):
        first_C1 = xp.zeros(len(sizes_C) + 1, np.int64)
        xp.cumsum(sizes_C, out=first_C1[1:])

        def smooth(lower_L: Any) -> tuple[Any, Weights]:
            arrays = order.count_R, order.marked_R, order.suffix_R, lower_L, first_C1
            prob_R, backoff_C = smooth_contexts(*arrays, rule)
            return prob_R, Weights(contexts, backoff_C)

        return smooth
    context_R = _contexts(sizes_C, len(order))
    del sizes_C  # frees memory: contexts are nearly as many as n-grams
    total_C, kinds_C3, pruned_C = sum_contexts(context_R, order.count_R, order.marked_R, contexts.shape[1])
    gamma_C = _gammas(rule, kinds_C3, pruned_C, total_C)

    def estimate(lower_L: Any) -> tuple[Any, Weights]:
        prob_R = interpolate(order.count_R, context_R, order.suffix_R, total_C, gamma_C, lower_L, rule)
        return prob_R, Weights(contexts, log10_values(xp.maximum(gamma_C, MIN_MASS)))

    return estimate


def split_probs(part: Part, split: Sequence[int], rule: Discounts | Rule, prob_V: Any) -> tuple[Any, Any]:
    """Return (places among split bigrams, probabilities (P,) float32) of a part's split bigrams: whole contexts."""
    bigrams = part.orders[2]
    place_R = _split_places(bigrams.word(0), bigrams.word(1), split, len(prob_V))
    mine = (place_R >= 0).nonzero()[0]
    return place_R[mine], _estimator(bigrams, rule)(_of_words(prob_V, rule))[0][mine]


def _contexts(sizes_C: Any, rows: int) -> Any:
    """Return (R,) uint32, the context of each row, from the number of rows of each context."""
    starts_R = array_module(sizes_C).zeros(rows, np.uint32)
    starts_R[sizes_C.cumsum()[:-1]] = 1
    return starts_R.cumsum(dtype=np.uint32)
