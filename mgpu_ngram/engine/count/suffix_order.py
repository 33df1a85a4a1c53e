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


def with_column(keys: Any, values_R: Any) -> Any:
    """Return keys (C, R) and another column of values, (C + 1, R) uint64."""
    columns = array_module(keys).empty((len(keys) + 1, keys.shape[1]), np.uint64)
    columns[:-1], columns[-1] = keys, values_R
    return columns
