"""What several parts keep of their n-grams until the discounts are known: adjusted counts, in text order.

Discounts depend on the counts of all parts. Until then a part waits as its kept n-grams, the contexts of these, and the
pruned count of each context: about as many bytes as its values will take, where all its n-grams with their keys take
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
from mgpu_ngram.engine.estimate.part import Order, Part, word_ids
from mgpu_ngram.engine.estimate.probabilities import sums_of_pruned
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import array_module


@dataclass
class OrderCounts:
    """N-grams of one order of one of several parts in text order, R of them, and their contexts, C of them.

    columns   (B, C) uint64, rising keys of the contexts
    first_C1  (C + 1,) uint32, int64 from 2**32 on: the n-grams of context c are first_C1[c] to first_C1[c + 1] - 1
    words_R   (R,) uint32, ids of last words
    count_R   (R,) uint32 or int64, adjusted counts; those of split bigrams are 0 until all parts are summed
    suffix_R  (R,) rows of the suffixes in the order below. Order 3: rows past the end are those of
              `PartCounts.place_P`. Order 2: None, because a suffix is the last word
    pruned_C  (C,) uint32 or int64, sum of the counts of the pruned n-grams of each context, which are no rows; None if
              there are none
    marked_R  (R,) bool, whether an n-gram is pruned; None if pruned n-grams are no rows
    """

    columns: Any
    first_C1: Any
    words_R: Any
    count_R: Any
    suffix_R: Any
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
    """The order below, M n-grams in suffix order, which are the suffixes of an order.

    place_M     (M,) the row in text order of each row in suffix order; None if they are the same
    context_M1  (M + 1,) uint32, the context of each row in text order, and the number of contexts
    kept_M1     (M + 1,) the number of rows that stay before each row in text order; None if all stay
    split_P     (P,) places of the split bigrams of the part, whose rows follow; None if there can be none
    symbols     words of the vocabulary
    """

    place_M: Any
    context_M1: Any
    kept_M1: Any
    split_P: Any = None
    symbols: int = 0

    def on(self, device: str) -> _Below:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: move_to(a, device) for k, a in found.items() if a is not None and k != "symbols"})

    def contexts_of(self, suffix_R: Any) -> Any:
        """Return the numbers of the contexts of suffixes, which are rows in text order; those of split words follow."""
        if self.split_P is None:
            return self.context_M1[suffix_R]
        contexts = self.context_M1[-1:] + (self.split_P // self.symbols).astype(np.uint32)
        return array_module(suffix_R).concatenate([self.context_M1[:-1], contexts])[suffix_R]

    def kept_rows(self, suffix_R: Any) -> Any:
        """Return suffixes that stay as rows among those that stay."""
        return kept_rows(suffix_R, self.kept_M1, 0 if self.split_P is None else len(self.split_P))


def kept_rows(suffix_R: Any, kept_M1: Any, splits: int) -> Any:
    """Return suffixes that are kept as rows of kept n-grams; rows of split bigrams follow these.

    kept_M1  (M + 1,) the number of kept n-grams before each row of the order below; None if all are kept
    splits   number of split bigrams
    """
    if kept_M1 is None:
        return suffix_R
    xp = array_module(suffix_R)
    if splits:
        kept_M1 = xp.concatenate([kept_M1, kept_M1[-1:] + xp.arange(1, splits + 1, dtype=kept_M1.dtype)])
    return kept_M1[suffix_R]


def kept_before(marked_R: Any) -> Any:
    """Return (R + 1,) the number of kept n-grams before each row; None if none is pruned."""
    if marked_R is None:
        return None
    xp, R = array_module(marked_R), len(marked_R)
    kept_R1 = xp.zeros(R + 1, node_dtype(R))
    xp.cumsum(~marked_R, out=kept_R1[1:])
    return kept_R1


def counts_of_part(part: Part, symbols: int, keeps_pruned: bool, device: str) -> PartCounts:
    """Return a part with its adjusted counts in text order, from one in suffix order. Consumes the part.

    keeps_pruned  whether pruned n-grams stay as rows, which smoothings of plain counts need

    An order for which the device has no room is put into text order in host memory.
    """
    below, N = None, max(part.orders)
    place_P = None if part.split_left is None else part.split_left.place_P
    made = PartCounts(part.orders[2].bits, {}, place_P)
    for n in sorted(part.orders):
        if n == 3 and place_P is not None and below is not None:
            below = replace(below, split_P=place_P, symbols=symbols)
        fn = partial(_order_counts, part.orders.pop(n), below, keeps_pruned, n == N)
        made.orders[n], below = on_device_or_host(fn, device)
        del fn  # frees the order
    return made


def _order_counts(
    order: Order, below: _Below | None, keeps_pruned: bool, is_highest: bool, device: str
) -> tuple[OrderCounts, _Below | None]:
    """Return (the n-grams of an order in text order, the `_Below` of the order above)."""
    n, bits = order.n, order.bits
    below, moved = below and below.on(device), order.on(device)
    keys, marked_R = moved.keys, moved.marked_R
    row_R, suffix_R, context_R1 = _in_text_order(moved, below)
    count_R = moved.count_R
    del moved  # frees copies of an order that is in host memory
    if row_R is not None:
        count_R, marked_R = count_R[row_R], None if marked_R is None else marked_R[row_R]
    xp, leaves = array_module(keys), marked_R is not None and not keeps_pruned
    kept = xp.flatnonzero(~marked_R) if leaves else slice(None)
    context_K = context_R1[:-1][kept]
    first_C1 = first_rows(context_K)
    context_C = context_K[first_C1[:-1]]
    pruned_C = sums_of_pruned(context_R1, count_R, marked_R)[context_C] if leaves else None
    above = None if is_highest else _Below(_places(row_R), context_R1, kept_before(marked_R if leaves else None))
    del context_R1, context_C, context_K
    row_K = kept if row_R is None else row_R[kept]
    row_C = first_C1[:-1] if isinstance(row_K, slice) else row_K[first_C1[:-1]]
    last_two = keys[: check.num_columns(2, bits)]  # the first two words in suffix order
    last_two = last_two[:, row_K] if isinstance(row_K, slice) else last_two.take(row_K, axis=1)
    made = OrderCounts(
        columns=_contexts(keys.take(row_C, axis=1), n, bits),
        first_C1=first_C1.astype(node_dtype(int(first_C1[-1]))),
        words_R=word_ids(last_two, 2, bits, 1).astype(np.uint32),
        count_R=count_R[kept],
        suffix_R=None if below is None else below.kept_rows(suffix_R[kept]),
        pruned_C=None if pruned_C is None else narrow(pruned_C),
        marked_R=None if leaves else marked_R,
    )
    return made, above


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


def _in_text_order(order: Order, below: _Below | None) -> tuple[Any, Any, Any]:
    """Return (rows in suffix order of the n-grams in text order, or None if they are the same; rows of their suffixes;
    (R + 1,) uint32, their contexts, and the number of contexts).
    """
    n, bits, R = order.n, order.bits, len(order)
    xp = array_module(order.keys)
    row_R, suffix_R = None, order.suffix_R
    first_R = words_at(order.keys, n, bits, 0 if n == 2 else n - 1)
    if below is not None:  # bigrams have the same order
        row_R, first_R = sort_by_first_word(first_R, suffix_R, below.place_M, bits)
        suffix_R = suffix_R[row_R]
        suffix_R = suffix_R if below.place_M is None else below.place_M[suffix_R]
    is_new_R1 = xp.ones(R + 1, bool)
    is_new_R1[0] = False
    is_new_R1[1:R] = first_R[1:] != first_R[:-1]
    if below is not None:
        context_R = below.contexts_of(suffix_R)
        is_new_R1[1:R] |= context_R[1:] != context_R[:-1]
    return row_R, suffix_R, xp.cumsum(is_new_R1, dtype=np.uint32)


def _places(row_R: Any) -> Any:
    """Return (R,) the row in text order of each row in suffix order; None if they are the same."""
    if row_R is None:
        return None
    xp, R = array_module(row_R), len(row_R)
    place_R = xp.empty(R, node_dtype(R))
    place_R[row_R] = xp.arange(R, dtype=place_R.dtype)
    return place_R
