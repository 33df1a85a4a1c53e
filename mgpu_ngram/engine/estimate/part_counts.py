"""What several parts keep of their n-grams until the discounts are known: adjusted counts, in text order.

Discounts depend on the counts of all parts. Until then a part waits as its kept n-grams, the contexts of these, and the
pruned count of each context: about as many bytes as an estimated part, where all its n-grams with their keys take
several times as many.

An order is put into text order by one sort of its first words, because the order below is already in text order, and
the n-grams with one suffix are neighbours (engine.count.suffix_order). Keys are moved only of n-grams that stay: often
one of ten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.shards import words_at
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.engine.count.suffix_order import sort_by_first_word, to_text_order
from mgpu_ngram.engine.estimate.adjusted_counts import narrow
from mgpu_ngram.engine.estimate.part import EstimateOptions, Order, Part, word_ids
from mgpu_ngram.engine.estimate.probabilities import sums_of_pruned
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.estimate.may_have_kept import NO_CONTEXT, may_have_kept


@dataclass
class OrderCounts:
    """N-grams of one order of one of several parts in text order, R of them, and their contexts, C of them.

    columns   (B, C) uint64, rising keys of the contexts
    first_C1  (C + 1,) uint32, int64 from 2**32 on: the n-grams of context c are first_C1[c] to first_C1[c + 1] - 1
    words_R   (R,) uint32, ids of last words
    count_R   (R,) uint32 or int64, adjusted counts; 0 for split bigrams: their counts are sums over all parts
    suffix_R  (R,) rows of the suffixes in the order below. Order 3: rows past the end are those of
              `PartCounts.place_P`. Order 2: None, because a suffix is the last word
    node_K    (K,) suffixes of kept n-grams, as in `Estimated.suffixes`; None if they are `suffix_R`, or no node of the
              order stores its suffix
    pruned_C  (C,) uint32 or int64, sum of the counts of the pruned n-grams of each context, which are no rows; None if
              there are none
    marked_R  (R,) bool, whether an n-gram is pruned; None if pruned n-grams are no rows
    """

    columns: Any
    first_C1: Any
    words_R: Any
    count_R: Any
    suffix_R: Any
    node_K: Any
    pruned_C: Any
    marked_R: Any


@dataclass(eq=False)
class PartCounts:
    """One of several parts of a model with its adjusted counts.

    bits     bits of a word in keys
    orders   orders 2 to N
    place_P  (P,) int64, rising: places of split bigrams that are suffixes of trigrams, as in `SplitLeft`; None without
             split words
    """

    bits: int
    orders: dict[int, OrderCounts]
    place_P: Any = None

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        named = {f"{n}.{name}": array for n, order in self.orders.items() for name, array in vars(order).items()}
        return {name: array for name, array in (named | {"split": self.place_P}).items() if array is not None}

    def with_arrays(self, named: Mapping[str, Any]) -> PartCounts:
        """Return the same with other arrays."""
        names = [field.name for field in fields(OrderCounts)]
        orders = {n: OrderCounts(*(named.get(f"{n}.{name}") for name in names)) for n in self.orders}
        return PartCounts(self.bits, orders, named.get("split"))


@dataclass(eq=False)
class CountedParts:
    """Some parts of a model.

    totals  the sums of their numbers; without n-grams
    """

    totals: Part
    parts: list[PartCounts]

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        of_parts = {f"{i}.{name}": array for i, part in enumerate(self.parts) for name, array in part.arrays().items()}
        return self.totals.arrays() | of_parts

    def with_arrays(self, named: Mapping[str, Any]) -> CountedParts:
        """Return the same with other arrays."""

        def of_part(i: int) -> dict[str, Any]:
            return {name.removeprefix(f"{i}."): a for name, a in named.items() if name.startswith(f"{i}.")}

        parts = [part.with_arrays(of_part(i)) for i, part in enumerate(self.parts)]
        return CountedParts(self.totals.with_arrays(dict(named)), parts)


@dataclass(frozen=True)
class _Below:
    """The order below, M n-grams in suffix order, which are the suffixes of an order. S of them were sorted: all, or
    those whose contexts may have n-grams that stay, and which others therefore need.

    row_S       (S,) rising: which ones were sorted; None if all
    place_S     (S,) their rows in text order; None if they are in that order already
    context_S1  (S + 1,) uint32, the context of each row in text order, and the number of contexts
    kept_S1     (S + 1,) the number of kept n-grams before each row in text order; None if all are kept
    size        M
    split_P     (P,) places of the split bigrams of the part, whose rows follow; None if there can be none
    symbols     words of the vocabulary
    """

    row_S: Any
    place_S: Any
    context_S1: Any
    kept_S1: Any
    size: int
    split_P: Any = None
    symbols: int = 0

    def on(self, device: str) -> _Below:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: move_to(a, device) for name, a in found.items() if a is not None and not isinstance(a, int)}
        return replace(self, **arrays)

    def contexts(self) -> Any:
        """Return (S + P,) uint32, the context of each row in text order; those of split words follow the others."""
        context_S = self.context_S1[:-1]
        if self.split_P is None:
            return context_S
        context_P = self.context_S1[-1:] + (self.split_P // self.symbols).astype(np.uint32)
        return array_module(context_S).concatenate([context_S, context_P])

    def contexts_in_suffix_order(self) -> Any:
        """Return (M + P,) uint32, the context of each row in suffix order; `NO_CONTEXT` where it was not sorted."""
        context_S, S = self.contexts(), len(self.context_S1) - 1
        xp = array_module(context_S)
        if self.place_S is not None:
            context_S = context_S[self.place_S]
        if self.row_S is None:
            return context_S
        context_M = xp.full(self.size, NO_CONTEXT, np.uint32)
        context_M[self.row_S] = context_S[:S]
        return context_M

    def sorted_rows(self, suffix_R: Any) -> Any:
        """Return the suffixes of n-grams that are sorted, as rows among S."""
        if self.row_S is None:
            return suffix_R
        xp = array_module(suffix_R)
        number_M = xp.empty(self.size, node_dtype(self.size))
        number_M[self.row_S] = xp.arange(len(self.row_S), dtype=number_M.dtype)
        return number_M[suffix_R]

    def nodes(self, suffix_K: Any) -> Any:
        """Return suffixes, rows of text order, as rows of kept n-grams; places of split bigrams follow these."""
        if self.split_P is None:
            return suffix_K if self.kept_S1 is None else self.kept_S1[suffix_K]
        S = len(self.context_S1) - 1
        xp = array_module(suffix_K)
        kept_S = xp.arange(S) if self.kept_S1 is None else self.kept_S1[:-1].astype(np.int64)
        M = S if self.kept_S1 is None else int(self.kept_S1[-1])
        node_L = xp.concatenate([kept_S, M + self.split_P])
        return node_L.astype(node_dtype(int(node_L[-1]) if len(node_L) else 0))[suffix_K]

    def kept_rows(self, suffix_K: Any) -> Any:
        """Return suffixes, rows of text order, as rows of kept n-grams; rows of split bigrams follow these."""
        if self.kept_S1 is None:
            return suffix_K
        xp, kept_S1 = array_module(suffix_K), self.kept_S1
        if self.split_P is not None:
            kept_P = kept_S1[-1:] + xp.arange(1, len(self.split_P) + 1, dtype=kept_S1.dtype)
            kept_S1 = xp.concatenate([kept_S1, kept_P])
        return kept_S1[suffix_K]


def counts_of_part(part: Part, symbols: int, options: EstimateOptions, device: str) -> PartCounts:
    """Return a part with its adjusted counts in text order, from one in suffix order. Consumes the part.

    An order for which the device has no room is put into text order in host memory. Pruned n-grams stay as rows only
    for smoothings of plain counts.
    """
    below, N = None, max(part.orders)
    place_P = None if part.split_left is None else part.split_left.place_P
    made = PartCounts(part.orders[2].bits, {}, place_P)
    for n in sorted(part.orders):
        if n == 3 and place_P is not None and below is not None:
            below = replace(below, split_P=place_P, symbols=symbols)
        fn = partial(_order_counts, part.orders.pop(n), below, options, n == N)
        made.orders[n], below = on_device_or_host(fn, device)
        del fn  # frees the order
    return made


def _order_counts(
    order: Order, below: _Below | None, options: EstimateOptions, is_highest: bool, device: str
) -> tuple[OrderCounts, _Below | None]:
    """Return (the n-grams of an order in text order, the `_Below` of the order above)."""
    n, bits, M = order.n, order.bits, len(order)
    below, moved = below and below.on(device), order.on(device)
    keys, count_R, marked_R = moved.keys, moved.count_R, moved.marked_R
    is_plain = options.smoothing is not None
    leaves = marked_R is not None and not is_plain
    sorted_S, place_S, row_S, suffix_S, context_S1 = _in_text_order(moved, below, leaves)
    del moved  # frees copies of an order that is in host memory
    if row_S is not None:
        count_R, marked_R = count_R[row_S], None if marked_R is None else marked_R[row_S]
    xp = array_module(keys)
    kept = xp.flatnonzero(~marked_R) if leaves else slice(None)
    context_K = context_S1[:-1][kept]
    first_C1 = first_rows(context_K)
    context_C = context_K[first_C1[:-1]]
    pruned_C = sums_of_pruned(context_S1, count_R, marked_R)[context_C] if leaves else None
    del context_C, context_K
    row_K = kept if row_S is None else row_S[kept]
    row_C = first_C1[:-1] if isinstance(row_K, slice) else row_K[first_C1[:-1]]
    last_two = keys[: check.num_columns(2, bits)]  # the first two words in suffix order
    last_two = last_two[:, row_K] if isinstance(row_K, slice) else last_two.take(row_K, axis=1)
    suffix_K = node_K = above = None
    if below is not None:
        suffix_K = suffix_S if is_plain else below.kept_rows(suffix_S[kept])
        is_other = below.split_P is not None or (is_plain and (marked_R is not None or below.kept_S1 is not None))
        if is_other and n <= options.suffixed_order:
            node_K = below.nodes(suffix_S if marked_R is None else suffix_S[xp.flatnonzero(~marked_R)])
    if not is_highest:
        above = _Below(sorted_S, place_S, context_S1, _kept_before(marked_R), M)
    made = OrderCounts(
        columns=_contexts(keys.take(row_C, axis=1), n, bits),
        first_C1=first_C1.astype(node_dtype(int(first_C1[-1]))),
        words_R=word_ids(last_two, 2, bits, 1).astype(np.uint32),
        count_R=count_R[kept],
        suffix_R=suffix_K,
        node_K=node_K,
        pruned_C=None if pruned_C is None else narrow(pruned_C),
        marked_R=None if leaves else marked_R,
    )
    return made, above


def _kept_before(marked_R: Any) -> Any:
    """Return (R + 1,) the number of kept n-grams before each row; None if none is pruned."""
    if marked_R is None:
        return None
    xp, R = array_module(marked_R), len(marked_R)
    kept_R1 = xp.zeros(R + 1, node_dtype(R))
    xp.cumsum(~marked_R, out=kept_R1[1:])
    return kept_R1


def first_rows(context_R: Any) -> Any:
    """Return (C + 1,) int64: the first row of each context, and the number of rows; contexts rise."""
    xp, R = array_module(context_R), len(context_R)
    is_first_R1 = xp.ones(R + 1, bool)
    is_first_R1[1:R] = context_R[1:] != context_R[:-1]
    return xp.flatnonzero(is_first_R1)


def _contexts(keys: Any, n: int, bits: int) -> Any:
    """Return (B, C) uint64: the n-grams of some keys (C, R) of suffix order without their last words, in text order."""
    keys = keys if n == 2 else reorder_words(keys, bits, to_text_order(n))
    B = check.num_columns(n - 1, bits)
    columns = keys if B == len(keys) else keys[:B].copy()
    columns[-1] &= ~np.uint64(0) << np.uint64(64 * B - (n - 1) * bits)
    return columns


def _in_text_order(order: Order, below: _Below | None, leaves: bool) -> tuple[Any, Any, Any, Any, Any]:
    """Return (`row_S` and `place_S` as in `_Below`; and of the n-grams in text order the row in suffix order, or None
    if it is the same; the row in text order of the suffix; (S + 1,) uint32, the context, and the number of contexts).

    leaves  pruned n-grams leave, so contexts that have no others are not needed: they are left out of the sort if most
            n-grams are pruned, and then in all orders above
    """
    n, bits = order.n, order.bits
    xp, suffix_S = array_module(order.keys), order.suffix_R
    first_S = words_at(order.keys, n, bits, 0 if n == 2 else n - 1)
    sorted_S = place_S = row_S = context_S = None
    if below is not None:  # bigrams have the same order
        if leaves and (below.row_S is not None or 2 * count_true(order.marked_R) > len(order)):
            contexts = below.contexts_in_suffix_order()
            sorted_S = xp.flatnonzero(may_have_kept(first_S, suffix_S, contexts, order.marked_R))
            first_S, suffix_S = first_S[sorted_S], suffix_S[sorted_S]
        suffix_S = below.sorted_rows(suffix_S)
        row_S, first_S = sort_by_first_word(first_S, suffix_S, below.place_S, bits)
        suffix_S = suffix_S[row_S]
        suffix_S = suffix_S if below.place_S is None else below.place_S[suffix_S]
        context_S = below.contexts()[suffix_S]
        place_S = xp.empty(len(row_S), node_dtype(len(row_S)))
        place_S[row_S] = xp.arange(len(row_S), dtype=place_S.dtype)
        row_S = row_S if sorted_S is None else sorted_S[row_S]
    S = len(suffix_S)
    is_new_S1 = xp.ones(S + 1, bool)
    is_new_S1[0] = False
    is_new_S1[1:S] = first_S[1:] != first_S[:-1]
    if context_S is not None:
        is_new_S1[1:S] |= context_S[1:] != context_S[:-1]
    return sorted_S, place_S, row_S, suffix_S, xp.cumsum(is_new_S1, dtype=np.uint32)
