"""The bytes that each algorithm of counting must move, which bound its time."""

from __future__ import annotations

from mgpu_ngram.engine.count.strategy import dense_bytes
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.radix_sort import digits_of_column


def keys_bytes(T: int, token_bytes: int, order: int, bits: int) -> int:
    """ngram_keys: tokens in, keys out."""
    return token_bytes * T + 8 * check.num_columns(order, bits) * T


def radix_bytes(T: int, order: int, bits: int) -> int:
    """radix_sort: each column is read for its digits' counts, then every digit moves all columns."""
    columns = check.num_columns(order, bits)
    digits = sum(digits_of_column(c, order * bits)[1] for c in range(columns))
    return 8 * columns * T + digits * 2 * 8 * columns * T


def runs_bytes(T: int, order: int, bits: int) -> int:
    """count_prefixes, its tables apart: keys in to count the heads, and again to write the n-grams."""
    return 2 * 8 * check.num_columns(order, bits) * T


def table_bytes(order: int, bits: int, distinct: int) -> int:
    """A table of `distinct` n-grams."""
    return 8 * (check.num_columns(order, bits) + 1) * distinct


def sort_bytes(T: int, token_bytes: int, order: int, bits: int) -> int:
    """Counting orders up to `order` by one sort, the tables apart."""
    return keys_bytes(T, token_bytes, order, bits) + radix_bytes(T, order, bits) + runs_bytes(T, order, bits)


def bins_bytes(order: int, symbols: int, histograms: int, device: str) -> int:
    """Clearing dense histograms. A CPU's operating system hands out cleared pages, and only those that are touched."""
    return dense_bytes(order, symbols, histograms) if device == "gpu" else 0


def strategy_bytes(strategy: str, T: int, order: int, symbols: int, distinct: int, histograms: int, device: str) -> int:
    """Counting one order of bytes by a strategy, to the sorted table."""
    bits = check.code_bits(symbols)
    table = table_bytes(order, bits, distinct)
    if strategy == "sort":
        return sort_bytes(T, 1, order, bits) + table
    if strategy == "hash":
        return T + 2 * table
    return T + bins_bytes(order, symbols, histograms, device) + dense_bytes(order, symbols) + table
