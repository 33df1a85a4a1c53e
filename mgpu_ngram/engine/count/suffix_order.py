"""Count n-grams in suffix order, and put them back into the order of the text.

The words of an n-gram w1 ... wn in **suffix order** are w(n-1), wn, w(n-2), ..., w1: the last context word, the
predicted word, then the context backwards (kernels.count.select_windows). Its prefixes are its suffixes, so one sort
serves all orders of a shard. In the order of tables, the first word is first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.ngrams.trie import node_dtype
from mgpu_ngram.kernels.common.count_ids import count_ids
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import array_module


def to_suffix_order(n: int) -> list[int]:
    """Return the places in the text of the words of an n-gram in suffix order."""
    return [n - 2, n - 1, *range(n - 3, -1, -1)]


def to_text_order(n: int) -> list[int]:
    """Return the places in suffix order of the words of an n-gram of the text."""
    return [*range(n - 1, 1, -1), 0, 1]


def tables_of_windows(columns: Any, order: int, bits: int) -> dict[int, Table]:
    """Return the tables of orders 2 to N in suffix order.

    columns  (C, R) uint64, keys of `select_windows`, in any order; overwritten
    """
    columns = radix_sort(columns, order * bits)
    return {n: Table(*found, n, bits) for n, found in enumerate(count_prefixes(columns, bits, 2, order), 2)}


def in_text_order(table: Table) -> Table:
    """Return a table of suffix order with its n-grams in the order of tables."""
    n = table.order
    if n == 2:  # the same in both orders
        return table
    keys = reorder_words(table.keys, table.bits, to_text_order(n))
    row_R = rows_in_text_order(keys, n, table.bits)
    return replace(table, keys=keys.take(row_R, axis=1), counts=table.counts[row_R])


def rows_in_text_order(keys: Any, n: int, bits: int) -> Any:
    """Return (R,) int64: the rows of keys in rising order.

    keys  (C, R) uint64: n-grams of order n, first word first, whose rows are in suffix order

    Sorts the first n - 2 words and row numbers, which take fewer columns than the keys with row numbers. The sort is
    stable, so n-grams with equal first words keep the order of their last two words.
    """
    xp, R, key_bits = array_module(keys), keys.shape[1], (n - 2) * bits
    C, row_bits = -(-key_bits // 64), R.bit_length()
    row_R, spare = xp.arange(R, dtype=np.uint64), np.uint64(64 * C - key_bits)
    if spare >= row_bits:  # the last column has room for row numbers
        columns = keys[:C].copy()
        columns[-1] = columns[-1] >> spare << spare | row_R
    else:
        columns = with_column(keys[:C], row_R)
    del row_R
    rows = radix_sort(columns, key_bits)[-1]
    return (rows & np.uint64((1 << row_bits) - 1) if len(columns) == C else rows).astype(np.int64)


def sort_by_first_word(first_R: Any, suffix_R: Any, place_M: Any, bits: int) -> tuple[Any, Any]:
    """Return the rows of n-grams of one order in the order of tables, and their first words (R,) uint64.

    first_R   (R,) uint64: codes of the first words of n-grams in suffix order
    suffix_R  (R,) rising: the row of each one's suffix among the M n-grams of the order below, in suffix order
    place_M   (M,) the row of each of these in the order of tables; None if suffixes are in that order already

    The n-grams with one suffix are neighbours. So they are put in the order of their suffixes without a sort, and one
    stable sort of the first word does the rest. R must be below 2**(64 - `bits`).
    """
    xp, R = array_module(first_R), len(first_R)
    key_R = first_R << np.uint64(64 - bits)
    key_R |= xp.arange(R, dtype=np.uint64)
    if place_M is not None:
        size_M = count_ids(suffix_R, len(place_M))
        start_M = xp.empty(len(place_M), np.int64)  # in the order of tables
        start_M[place_M] = size_M
        start_M = (xp.cumsum(start_M) - start_M)[place_M]
        start_M += size_M
        start_M -= xp.cumsum(size_M)  # how far the n-grams with each suffix move
        to_R = start_M[suffix_R]
        to_R += xp.arange(R)
        moved_R = xp.empty(R, np.uint64)
        moved_R[to_R] = key_R
        key_R = moved_R
        del size_M, start_M, to_R, moved_R
    key_R = radix_sort(key_R[None], bits)[0]
    row_R = (key_R & np.uint64((1 << 64 - bits) - 1)).astype(node_dtype(R))
    return row_R, key_R >> np.uint64(64 - bits)


def with_column(keys: Any, values_R: Any) -> Any:
    """Return keys (C, R) and another column of values, (C + 1, R) uint64."""
    columns = array_module(keys).empty((len(keys) + 1, keys.shape[1]), np.uint64)
    columns[:-1], columns[-1] = keys, values_R
    return columns
