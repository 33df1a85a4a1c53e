"""Counts by other means than our kernels: plain Python, and NumPy's or CuPy's `unique`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.suite import WrongResult
from mgpu_ngram.core.shards import words_at
from mgpu_ngram.core.tables import ShardedTable, Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.kernels.dispatch import array_module, to_host


def python_loop(text: bytes, n: int) -> dict[str, int]:
    """The sequential baseline of Bianco, "Ngrams with CUDA": a window, its string, a dictionary."""
    counts: dict[str, int] = {}
    for i in range(len(text) - n + 1):
        ngram = text[i : i + n].decode("latin-1")
        if ngram in counts:
            counts[ngram] += 1
        else:
            counts[ngram] = 1
    return counts


def count_lines(lines: Iterable[bytes], order: int) -> list[Counter]:
    """Word n-grams of orders 1..order in one process: what collections.Counter does best."""
    counters: list[Counter] = [Counter() for _ in range(order)]
    for line in lines:
        words = line.split()
        for n, counter in enumerate(counters, 1):
            counter.update(zip(*(words[i:] for i in range(n)), strict=False))
    return counters


def unique_windows(text_B: Any, n: int) -> tuple[Any, Any]:
    """The distinct windows of n <= 8 bytes as base-256 numbers, ascending, and their counts: sort and reduce."""
    xp = array_module(text_B)
    G = max(0, len(text_B) - n + 1)
    window_G = xp.zeros(G, np.uint64)
    for i in range(n):
        window_G <<= np.uint64(8)
        window_G |= text_B[i : i + G]
    return xp.unique(window_G, return_counts=True)


def unique_ngrams(codes_T: Any, order: int) -> list[tuple[Any, Any]]:
    """For n = 1..order the distinct n-grams (n, G) uint32, ascending, and their counts, by rank refinement.

    An n-gram's key is the rank of its first n - 1 words among all (n-1)-grams, and its last word.
    """
    xp = array_module(codes_T)
    tables = []
    rank_T, words = xp.zeros(len(codes_T), np.int64), xp.empty((0, 1), np.uint32)
    start_T = xp.arange(len(codes_T))
    for n in range(1, order + 1):
        inside = start_T + n <= len(codes_T)
        start_T, rank_T = start_T[inside], rank_T[inside]
        last_T = codes_T[start_T + (n - 1)]
        whole = last_T > 0
        start_T, rank_T = start_T[whole], rank_T[whole]
        keys = (rank_T << 32) | last_T[whole].astype(np.int64)
        keys, rank_T, counts = xp.unique(keys, return_inverse=True, return_counts=True)
        words = xp.concatenate([words[:, keys >> 32], (keys & 0xFFFFFFFF).astype(np.uint32)[None]])
        tables.append((words, counts))
    return tables


def ngrams_of(table: Table | ShardedTable, vocabulary: Vocabulary) -> list[tuple[bytes, ...]]:
    """The n-grams of a table, spelt out."""
    keys = to_host(table.keys)
    codes = [words_at(keys, table.order, table.bits, i).tolist() for i in range(table.order)]
    return [tuple(vocabulary.symbol(code - 1) for code in row) for row in zip(*codes, strict=True)]


def check_bytes(table: Table, alphabet_A: np.ndarray, oracle: tuple[Any, Any], what: str) -> None:
    """Raise WrongResult unless a table of byte n-grams is the oracle's; symbol v is byte alphabet_A[v]."""
    values, counts = oracle
    _check_sizes(table, counts, what)
    xp = array_module(table.keys)
    symbols_A = xp.asarray(alphabet_A.astype(np.uint64))
    found = xp.zeros(len(table), np.uint64)
    for i in range(table.order):
        codes = words_at(table.keys, table.order, table.bits, i).astype(np.int64)
        found = (found << np.uint64(8)) | symbols_A[codes - 1]
    _check_equal(found, values, "n-grams", what)
    _check_equal(table.counts, counts, "counts", what)


def check_words(table: Table, oracle: tuple[Any, Any], what: str) -> None:
    """Raise WrongResult unless a table of codes is the oracle's."""
    words, counts = oracle
    _check_sizes(table, counts, what)
    for i in range(table.order):
        _check_equal(words_at(table.keys, table.order, table.bits, i), words[i], f"words {i + 1}", what)
    _check_equal(table.counts, counts, "counts", what)


def check_same(table: Table, other: Table, what: str) -> None:
    """Raise WrongResult unless two tables are equal."""
    _check_sizes(table, other.counts, what)
    _check_equal(table.keys, other.keys, "keys", what)
    _check_equal(table.counts, other.counts, "counts", what)


def check_total(found: int, expected: int, what: str) -> None:
    """Raise WrongResult unless two totals are equal."""
    if found != expected:
        raise WrongResult(f"{what}: total is {found:,} but must be {expected:,}; it is not timed")


def _check_sizes(table: Table, counts: Any, what: str) -> None:
    if len(table) != len(counts):
        raise WrongResult(
            f"{what}: {len(table):,} distinct n-grams but the oracle has {len(counts):,}; it is not timed"
        )


def _check_equal(found: Any, expected: Any, part: str, what: str) -> None:
    wrong = int((found != expected).sum())
    if wrong:
        raise WrongResult(f"{what}: {wrong:,} of {len(expected):,} {part} differ from the oracle's; it is not timed")
