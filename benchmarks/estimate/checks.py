"""Checks of a model: beside plain Python, and sums that every model must have."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.benchmarks.inputs.plain_distributions import row_of
from mgpu_ngram.core.counts.vocabulary import START_ID
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.levels import levels_of
from mgpu_ngram.kernels.dispatch import array_module, to_host

CHECKED_HISTORIES = 300  # histories whose probabilities are added up
TOLERANCE = 1e-5  # tolerance of a sum, and of a log10 compared with float64
NgramEntries = dict[tuple[bytes, ...], tuple[float, float]]


def sentences_of(codes_T: np.ndarray, words: Words) -> list[tuple[bytes, ...]]:
    """The sentences of a stream of codes, word + 1, a 0 after each, spelt out."""
    ends = np.flatnonzero(codes_T == 0)
    return [tuple(words.symbol(c - 1) for c in part.tolist() if c) for part in np.split(codes_T, ends)[: len(ends)]]


def entries_of(trie: Trie, words: Words) -> NgramEntries:
    """{n-gram: (log10 probability, log10 backoff)} of every node."""
    spelt, entries = [words.symbol(v) for v in range(len(words))], NgramEntries()
    for level in levels_of(trie.map_arrays(to_host)):
        backoffs = np.zeros(len(level), np.float32) if level.backoff is None else level.backoff
        for ids, *values in zip(level.ids[:].tolist(), level.prob.tolist(), backoffs.tolist(), strict=True):
            entries[tuple(spelt[v] for v in ids)] = values[0], values[1]
    return entries


def check_entries(found: NgramEntries, expected: NgramEntries, what: str) -> None:
    """Raise WrongResult unless both have the same n-grams, with the same values."""
    if found.keys() != expected.keys():
        different = found.keys() ^ expected.keys()
        raise WrongResult(f"{what}: {len(different):,} n-grams are in one model alone, such as {min(different)}")
    for ngram, values in expected.items():
        if not np.allclose(found[ngram], values, rtol=0, atol=TOLERANCE):
            raise WrongResult(f"{what}: {ngram} has {found[ngram]}, but {values} by plain Python; not timed")


def check_sizes(starts: tuple[int, ...], marked_T: Any, order: int) -> None:
    """Raise WrongResult unless a trie has as many n-grams of each order as a marked stream, which lacks <unk>."""
    for n, (_, counts) in enumerate(oracles.unique_ngrams(marked_T, order), 1):
        oracles.check_total(starts[n] - starts[n - 1], len(counts) + (n == 1), f"n-grams of order {n} of a model")


def check_sums(trie: Trie, seed: int = 0) -> None:
    """Raise WrongResult unless the probabilities of all words but <s> add up to 1, after histories drawn at random."""
    suffix_M, rng = trie.suffixes(), np.random.default_rng(seed)
    for history in rng.integers(0, trie.histories, CHECKED_HISTORIES).tolist():
        nodes = [history]
        while nodes[-1] >= trie.symbols:
            nodes.append(int(suffix_M[nodes[-1]]))
        row_V = array_module(trie.prob_G).power(10.0, row_of(trie, nodes[::-1], "smoothed")[-1])
        total = float(row_V.sum() - row_V[START_ID])
        if abs(total - 1) > TOLERANCE:
            raise WrongResult(f"after node {history} probabilities add up to {total}, not 1; not timed")
