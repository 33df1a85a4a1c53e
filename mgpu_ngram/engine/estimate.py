"""Estimate one part of a model from counts of marked text: modified Kneser-Ney, or by the rules of `engine.smooth`.

A part holds all n-grams of orders 2 to N whose last context word belongs to it. So all continuations of a context are
in one part, and so are an n-gram and the same n-gram without its first word. Parts exchange only vectors over the
vocabulary, counts of counts and the finished model. Every part has all words of order 1.

If a word is split (core.shards.split_words), the word before it selects the part of its trigrams and longer n-grams.
Its bigrams ("split bigrams") are all in one part. The other parts send that part the number of words before each
split bigram, and receive its probability: vectors over the vocabulary for each split word.

A part that is alone is the whole model. Its n-grams become the nodes of a trie at once: they are linked to their
histories, which are rows of the order below, so that neither suffixes nor contexts are searched in a whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams
from mgpu_ngram.kernels.estimate.find_suffixes import find_suffixes
from mgpu_ngram.kernels.estimate.interpolate import interpolate
from mgpu_ngram.kernels.estimate.link_histories import Links, link_histories
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule, smooth_contexts
from mgpu_ngram.kernels.estimate.sum_contexts import sum_contexts
from mgpu_ngram.kernels.estimate.weigh_contexts import weigh_contexts

UNK_ID, START_ID, END_ID = 0, 1, 2  # ids
COUNTED = 4  # counts of counts cover counts 1 to 4
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

    keys      (C, R) uint64 of words of `bits` bits, rising; None in a part that is the whole model
    raw_R     (R,) uint32, count of each n-gram in the text
    suffix_R  (R,) uint32: the row in the order below of each n-gram without its first word. Order 2: a word id. Order
              3: may be a number past all rows, the place of a split bigram
    count_R   (R,) uint32, adjusted counts; raw_R itself in the highest order
    marked_R  (R,) bool, whether it is pruned; None if no n-gram of this order is
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

    def word(self, position: int) -> Any:
        """Return (R,) int64, the id of one word of each n-gram, from keys."""
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
            orders[n] = Order(n, order.bits, keys, raw_R, suffix_R, count_R, marked_R, links)
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

    columns  (C, G) uint64, rising keys; None in the whole model, whose values are those of all rows of `Order`
    values   (G,) float32, log10 probabilities, or backoffs
    """

    columns: Any
    values: Any


class Nodes(NamedTuple):
    """The n-grams of an order of the whole model, as nodes of a trie; the arrays are those of `Order` and `Links`.

    suffix_R  None in order 2
    """

    word_R: Any
    first_M1: Any
    suffix_R: Any
    marked_R: Any


@dataclass(eq=False)
class Estimated:
    """The estimated values of a part.

    probabilities  order -> values of its kept n-grams of orders 2 to N
    backoffs       order -> values of its contexts, which are n-grams of orders 1 to N - 1; these may be in another
                   part, or pruned
    nodes          order -> nodes of orders 2 to N, only of a part that is the whole model
    """

    probabilities: dict[int, Weights]
    backoffs: dict[int, Weights]
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[int, Nodes] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        both = {"p": self.probabilities, "b": self.backoffs}
        named = {f"{k}{n}.{name}": a for k, ws in both.items() for n, w in ws.items() for name, a in vars(w).items()}
        named |= {f"n{n}.{name}": a for n, nodes in self.nodes.items() for name, a in nodes._asdict().items()}
        return {name: array for name, array in named.items() if array is not None}

    def with_arrays(self, named: dict[str, Any]) -> Estimated:
        """Return the same with other arrays."""

        def named_weights(kind: str, weights: dict[int, Weights]) -> dict[int, Weights]:
            return {n: Weights(named.get(f"{kind}{n}.columns"), named[f"{kind}{n}.values"]) for n in weights}

        both = named_weights("p", self.probabilities), named_weights("b", self.backoffs)
        nodes = {n: Nodes(*(named.get(f"n{n}.{name}") for name in Nodes._fields)) for n in self.nodes}
        return Estimated(*both, self.seconds, nodes)


def adjust_counts(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any = None, split: Sequence[int] = (),
    threads: int = 1, whole: bool = False,
) -> Part:  # fmt: skip
    """Return a part with adjusted counts.

    The adjusted count of an n-gram of order N is its raw count. Below, it is the number of distinct words before the
    n-gram, or its raw count if the n-gram begins with <s>, because no word precedes <s>.

    tables  of orders 2 to N, each sorted by key; counts of marked text
    bad_V   (V,) bool, words outside a limited vocabulary; None: it is not limited
    split   words that are split; their bigrams have count 0 until `with_split_counts`
    threads  as of `side_by_side`, one order each
    whole    whether the part is the whole model: link its n-grams to their histories. No word is split then
    """
    N, orders = options.order, orders_of(tables, symbols, options, bad_V, split, threads, whole)
    xp = array_module(tables[2].keys)
    part = Part(orders, xp.bincount(orders[2].suffix_R, minlength=symbols).astype(np.int64), xp.empty(0, np.int64))

    def adjust(order: Order) -> None:
        n = order.n
        if n < N and whole:
            rows = _rows_of_start(orders, n)
            if order.raw_R.dtype != order.count_R.dtype:
                order.count_R = order.count_R.astype(np.int64)
            order.count_R[rows] = order.raw_R[rows]
        elif n < N:
            R = len(order)
            places = len(split) * symbols if n == 2 else 0
            left_L = xp.bincount(orders[n + 1].suffix_R, minlength=R + places)
            order.count_R = _narrow(xp.where(order.word(0) == START_ID, order.raw_R, left_L[:R]))
            if places:
                part.split_left_L = left_L[R:].astype(np.int64)
        part.counts_of_counts[n] = count_counts(order.count_R, COUNTED)
        pruned = 0 if order.marked_R is None else int(order.marked_R.sum())
        part.sizes[n] = len(order) - pruned, len(order)

    list(side_by_side(adjust, orders.values(), threads))
    return part


def orders_of(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, split: Sequence[int],
    threads: int = 1, whole: bool = False,
) -> dict[int, Order]:  # fmt: skip
    """Return the n-grams of each order with the rows of their suffixes and their raw counts; see `adjust_counts`.

    In a whole model, counts of orders 2 to N - 1 are the numbers of words before the n-grams.
    """
    if whole:
        return _linked_orders(tables, symbols, options, bad_V, threads)

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
        marked_R = _marked(table, raw_R, options.thresholds[n - 1], bad_V)
        return Order(n, table.bits, table.keys, raw_R, suffix_R, raw_R, marked_R)

    orders = {order.n: order for order in side_by_side(order_of, sorted(tables), threads)}
    return dict(sorted(orders.items()))


def _linked_orders(
    tables: dict[int, Table], symbols: int, options: EstimateOptions, bad_V: Any, threads: int
) -> dict[int, Order]:
    """Return the orders of a whole model; see `orders_of`."""
    xp, bits = array_module(tables[2].keys), tables[2].bits
    words = (xp.arange(1, symbols + 1, dtype=np.uint64) << np.uint64(64 - bits))[None]

    def linked(n: int) -> Order:
        table = tables[n]
        links = link_histories(tables[n - 1].keys if n > 2 else words, table.keys, n, bits)
        raw_R = _narrow(table.counts)
        marked_R = _marked(table, raw_R, options.thresholds[n - 1], bad_V)
        return Order(n, bits, None, raw_R, links.word_R, raw_R, marked_R, links)

    orders = dict[int, Order]()
    for order in side_by_side(linked, sorted(tables), threads):
        if order.n > 2:
            below, (word_R, history_R, _) = orders[order.n - 1], order.links
            word_M, _, first_L1 = below.links
            order.suffix_R, below.count_R = find_suffixes(word_R, history_R, word_M, first_L1, below.suffix_R)
        orders[order.n] = order
    return orders


def _rows_of_start(orders: dict[int, Order], n: int) -> slice:
    """Return the rows of the n-grams of a whole model that begin with <s>."""
    first, last = START_ID, START_ID + 1
    for m in range(2, n + 1):
        first_M1 = orders[m].links.first_M1
        first, last = int(first_M1[first]), int(first_M1[last])
    return slice(first, last)


def _narrow(counts: Any) -> Any:
    """Return counts as uint32 if they fit: half the memory."""
    return counts.astype(np.uint32 if not len(counts) or int(counts.max()) < 1 << 32 else np.int64)


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
    if order.links:
        rows = (order.suffix_R == _row_of(part, suffix)).nonzero()[0]
    else:
        here_R = array_module(order.count_R).ones(len(order), bool)
        for position, word in enumerate(suffix, 1):
            here_R &= order.word(position) == word
        rows = here_R.nonzero()[0]
    if not len(rows):
        return -1, -1, 0, 0
    first_K = to_host(_first_words(part, order.n, rows))
    best = int(place_V[first_K].argmax())
    row, word = int(rows[best]), int(first_K[best])
    return int(place_V[word]), word, int(order.count_R[row]), int(order.raw_R[row])


def _row_of(part: Part, words: Sequence[int]) -> int:
    """Return the row of an n-gram of a whole model."""
    row = words[0]
    for n, word in enumerate(words[1:], 2):
        word_R, _, first_M1 = part.orders[n].links
        first, last = int(first_M1[row]), int(first_M1[row + 1])
        row = first + int((word_R[first:last] == word).argmax())
    return row


def _first_words(part: Part, n: int, rows: Any) -> Any:
    """Return the ids of the first words of some n-grams of order n."""
    if not part.orders[n].links:
        return part.orders[n].word(0)[rows]
    for m in range(n, 1, -1):
        rows = part.orders[m].links.history_R[rows]
    return rows


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


def _marked(table: Table, raw_R: Any, threshold: int, bad_V: Any) -> Any:
    """Return which n-grams are pruned; None if none is."""
    marked_R = raw_R <= threshold if threshold else None
    if bad_V is not None:
        outside_R = array_module(table.keys).zeros(len(table), bool)
        for position in range(table.order):
            outside_R |= bad_V[word_ids(table.keys, table.order, table.bits, position)]
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
    gamma = weigh_contexts(total, kinds.astype(np.uint32), count_V[~kept_V].sum(keepdims=True), discounts)
    uniform = f(1) / f(max(options.vocab_pad, int(kept_V.sum()) - 1))
    discount_V = xp.asarray(np.array([0, *discounts], f))[xp.minimum(count_V, 3)]
    prob_V = (count_V.astype(f) - discount_V) / total.astype(f)
    if options.interpolate_unigrams:
        prob_V = prob_V + gamma * uniform
    else:
        prob_V[UNK_ID] += gamma[0]
    prob_V[START_ID] = 1
    return Unigrams(prob_V, kept_V)


def estimate_part(
    part: Part, rules: Mapping[int, Discounts | Rule], prob_V: Any, split_L: Any = None, threads: int = 1
) -> Estimated:
    """Return probabilities and backoffs of a part.

    rules    order -> Kneser-Ney discounts, or the rule of a smoothing of plain counts
    prob_V   (V,) float32, of single words
    split_L  (H * V,) float32, of split bigrams
    threads  as of `side_by_side`, one order each
    """
    backoffs, nodes = dict[int, Weights](), dict[int, Nodes]()

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
        if order.marked_R is not None and not order.links:
            kept = array_module(values).flatnonzero(~order.marked_R)
            columns, values = columns[:, kept], values[kept]
        return order.n, Weights(columns, values)

    for n, order in part.orders.items():
        if order.links:
            suffix_R = None if n == 2 else order.suffix_R
            nodes[n] = Nodes(order.links.word_R, order.links.first_M1, suffix_R, order.marked_R)
    return Estimated(dict(side_by_side(weights, interpolated(), threads)), backoffs, nodes=nodes)


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
    if order.links:
        contexts, C = None, len(order.links.first_M1) - 1
    else:
        [(contexts, sizes_C)] = count_prefixes(order.keys, order.bits, order.n - 1, order.n - 1)
        C = len(sizes_C)
    if isinstance(rule, Rule):
        first_C1 = xp.zeros(C + 1, np.int64)
        if order.links:
            first_C1[:] = order.links.first_M1
        else:
            xp.cumsum(sizes_C, out=first_C1[1:])

        def smooth(lower_L: Any) -> tuple[Any, Weights]:
            arrays = order.count_R, order.marked_R, order.suffix_R, lower_L, first_C1
            prob_R, backoff_C = smooth_contexts(*arrays, rule)
            return prob_R, Weights(contexts, backoff_C)

        return smooth
    context_R = order.links.history_R if order.links else _contexts(sizes_C, len(order))
    total_C, kinds_C3, pruned_C = sum_contexts(context_R, order.count_R, order.marked_R, C)
    gamma_C = weigh_contexts(total_C, kinds_C3, pruned_C, rule)

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
