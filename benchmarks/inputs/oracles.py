"""Counts and models by other means than our kernels: plain Python, and NumPy's or CuPy's `unique`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs.corpora import splitmix64
from mgpu_ngram.core.counts.shards import words_at
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.kernels.dispatch import array_module, to_host

CHECKSUM_ITEMS = 1 << 24  # windows or bins at once


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


def count_lines(lines: Iterable[bytes], order: int) -> list[Counter[Any]]:
    """Return a Counter of word n-grams for each order 1..order."""
    counters: list[Counter[Any]] = [Counter() for _ in range(order)]
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


def checksum_of_windows(text_B: Any, n: int, symbols: int, lut: np.ndarray) -> int:
    """Return the sum modulo 2**64 of the scrambled bin numbers of all windows of n bytes.

    lut  (256,) uint16, code of each byte, from 1 to `symbols`; every byte of the text has one
    """
    xp, total = array_module(text_B), 0
    lut = xp.asarray(lut)
    for first in range(0, len(text_B) - n + 1, CHECKSUM_ITEMS):
        codes_T = lut[text_B[first : first + CHECKSUM_ITEMS + n - 1]].astype(np.uint64) - np.uint64(1)
        bin_G = xp.zeros(len(codes_T) - n + 1, np.uint64)
        for i in range(n):
            bin_G = bin_G * np.uint64(symbols) + codes_T[i : i + len(bin_G)]
        total += int(splitmix64(bin_G + np.uint64(1)).sum())
    return total % 2**64


def checksum_of_bins(bins_A: Any) -> int:
    """Return `checksum_of_windows` from a histogram. Counts in other bins change it, except by a chance of 2**-64."""
    xp, total = array_module(bins_A), 0
    for first in range(0, len(bins_A), CHECKSUM_ITEMS):
        part_A = bins_A[first : first + CHECKSUM_ITEMS]
        used = xp.flatnonzero(part_A)
        total += int((splitmix64(used.astype(np.uint64) + np.uint64(first + 1)) * part_A[used].astype(np.uint64)).sum())
    return total % 2**64


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


def kneser_ney(
    sentences: Iterable[Sequence[bytes]], order: int, fallback: Sequence[float]
) -> dict[tuple[bytes, ...], tuple[float, float]]:
    """{n-gram: (log10 P, log10 backoff)} of an interpolated modified Kneser-Ney model, order 2 or more, word by word
    (Chen and Goodman, 1998), with <unk> as lmplz has it.

    fallback  discounts of orders for which none can be computed
    """
    raw: dict[int, Counter[Any]] = {n: Counter() for n in range(1, order + 1)}
    for words in sentences:
        marked = (b"<s>", *words, b"</s>")
        for n, counter in raw.items():
            counter.update(zip(*(marked[i:] for i in range(n)), strict=False))
    model: dict[tuple[bytes, ...], tuple[float, float]] = {(b"<s>",): (0.0, 0.0)}
    lower: dict[tuple[bytes, ...], float] = {(): 1 / len(raw[1])}  # of all words and <unk>, without <s>
    for n in range(1, order + 1):
        count = raw[n]
        if n < order:  # how many words stand before it; nothing does before <s>
            count = Counter(longer[1:] for longer in raw[n + 1])
            count.update({ngram: c for ngram, c in raw[n].items() if n > 1 and ngram[0] == b"<s>"})
        discounts = _discounts(Counter(count.values()), fallback)
        total: Counter[Any] = Counter()
        left: defaultdict[tuple[bytes, ...], float] = defaultdict(float)
        for ngram, c in count.items():
            total[ngram[:-1]] += c
            left[ngram[:-1]] += discounts[min(c, 3)]
        gamma = {context: left[context] / total[context] for context in total}
        probability = {}
        for ngram, c in (count | {(b"<unk>",): 0} if n == 1 else count).items():
            share = (c - discounts[min(c, 3)]) / total[ngram[:-1]]
            probability[ngram] = share + gamma[ngram[:-1]] * lower[ngram[1:]]
            model[ngram] = math.log10(probability[ngram]), 0.0
        for context, weight in gamma.items() if n > 1 else ():
            model[context] = model[context][0], math.log10(weight)
        lower = probability
    return model


def _discounts(counts_of_counts: Counter[Any], fallback: Sequence[float]) -> list[float]:
    """Of counts 0, 1, 2, and 3 or more."""
    n1, n2, n3, n4 = (counts_of_counts[j] for j in range(1, 5))
    if not n1 or not n2 or not n3:
        return [0.0, *fallback]
    y = n1 / (n1 + 2 * n2)
    found = [j - (j + 1) * y * above / at for j, at, above in ((1, n1, n2), (2, n2, n3), (3, n3, n4))]
    return [0.0, *(found if all(0 <= d <= j for j, d in enumerate(found, 1)) else fallback)]


def table_ngrams(table: Table | ShardedTable, vocabulary: Vocabulary) -> list[tuple[bytes, ...]]:
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
