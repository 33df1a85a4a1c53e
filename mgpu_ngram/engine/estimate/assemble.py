"""Assemble estimated parts of the n-grams into one trie.

In each order of a trie, nodes are sorted by their words, first word first. A stretch is the set of n-grams, of all
orders, whose first word is in one range of words; it is a contiguous range of each order. Stretches are assembled one
by one, on any worker, and joined. Only suffixes cross stretches, because they begin with other words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import UNK_ID
from mgpu_ngram.core.models.arpa import UNK_LOG10, ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.engine.estimate.part import Estimated, Unigrams, Weights
from mgpu_ngram.engine.trie.build import FANOUT, Level, join_levels, negative
from mgpu_ngram.kernels.count.merge_tables import merge_tables
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams
from mgpu_ngram.kernels.estimate.link_histories import link_histories
from mgpu_ngram.kernels.estimate.log10_values import log10_values

SAMPLED_NGRAMS = 1 << 14  # one of so many n-grams is sampled to decide where to cut


@dataclass
class Stretch:
    """The nodes of n-grams whose first word is in one range.

    levels   orders 1 to N; children are numbered within the stretch, suffixes within the order
    keys     order -> (C, G) uint64 of its n-grams, orders 2 to N - 1, until suffixes are found; empty up to N = 3
    seconds  by step
    """

    levels: list[Level]
    keys: dict[int, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        named = {f"{i}.{name}": a for i, level in enumerate(self.levels) for name, a in vars(level).items()}
        return {k: a for k, a in named.items() if a is not None} | {f"keys.{n}": a for n, a in self.keys.items()}

    def with_arrays(self, named: dict[str, Any]) -> Stretch:
        """Return the stretch with other arrays."""
        levels = [
            replace(level, **{name: named[f"{i}.{name}"] for name, a in vars(level).items() if a is not None})
            for i, level in enumerate(self.levels)
        ]
        return Stretch(levels, {n: named[f"keys.{n}"] for n in self.keys}, self.seconds)

    def map_arrays(self, fn: Callable[[Any], Any]) -> Stretch:
        """Return the stretch with `fn` applied to its arrays one by one, such as a copy to a device."""
        return self.with_arrays({name: fn(array) for name, array in self.arrays().items()})


def assemble(unigrams: Unigrams, parts: Sequence[Estimated], bits: int, collapse: bool = False) -> Trie:
    """Return the trie of all parts' n-grams. Consumes the parts.

    bits      bits of a word in keys
    collapse  give each n-gram one value instead of a probability and a backoff (Heafield, Koehn and Lavie, 2012,
              "Language model rest costs and space-efficient storage", q); the values of a text add up to its score
    """
    if parts and parts[0].nodes:
        levels = _levels_of_nodes(unigrams, parts[0], collapse)
    else:
        levels = _levels(unigrams, parts, bits, (0, len(unigrams.kept_V)), collapse)
    if collapse:
        _collapse(levels)
    else:
        _negate(levels)
    return join_levels([levels], FANOUT)


def sample_first_words(part: Estimated, bits: int) -> np.ndarray:
    """Return (S,) uint64: the first word of every SAMPLED_NGRAMS-th n-gram of a part."""
    shift, begin = np.uint64(64 - bits), SAMPLED_NGRAMS // 2
    firsts = [(w.columns[0, begin::SAMPLED_NGRAMS] >> shift) - np.uint64(1) for w in part.probabilities.values()]
    return np.concatenate([np.empty(0, np.uint64), *map(to_host, firsts)])


def cut_words(samples: Sequence[np.ndarray], symbols: int, stretches: int) -> list[tuple[int, int]]:
    """Return (first, past the last) word of each stretch, with about equal numbers of n-grams.

    Returns fewer than `stretches` stretches if one word has most n-grams, and one stretch if there are too few samples.
    """
    words = np.sort(np.concatenate(samples))
    cuts = words[len(words) * np.arange(1, stretches) // stretches].tolist() if len(words) else []
    return list(pairwise(sorted({0, *cuts, symbols})))


def take_stretch(part: Estimated, bits: int, words: tuple[int, int]) -> Estimated:
    """Return a part's n-grams that begin with words[0] to words[1] - 1, as views."""
    shift = 64 - bits
    # Codes are ids + 1: search the last key that begins with a word below each of the two.
    bounds = np.array([(word << shift) + (1 << shift) - 1 for word in words], np.uint64)

    def taken(weights: Weights) -> Weights:
        xp = array_module(weights.columns)
        rows = slice(*to_host(xp.searchsorted(weights.columns[0], xp.asarray(bounds), "right")).tolist())
        return Weights(weights.columns[:, rows], weights.values[rows])

    probabilities, backoffs = (
        {n: taken(w) for n, w in weights.items()} for weights in (part.probabilities, part.backoffs)
    )
    return Estimated(probabilities, backoffs)


def assemble_stretch(unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int]) -> Stretch:
    """Return the nodes of all parts' n-grams that begin with words[0] to words[1] - 1, without suffixes."""
    stretch = Stretch([])
    stretch.levels = _levels(unigrams, parts, bits, words, keys=stretch.keys)
    _negate(stretch.levels)
    return stretch


def searched_keys(stretch: Stretch) -> dict[int, Any]:
    """Return the keys in which all stretches search suffixes: of orders 2 to N - 2."""
    return {n: keys for n, keys in stretch.keys.items() if n < len(stretch.levels) - 1}


def add_suffixes(
    stretch: Stretch, searched: Sequence[dict[int, Any]], bits: int, move: Callable[[Any], Any]
) -> Stretch:
    """Return the stretch with the suffixes of nodes of orders 3 to N - 1, and without keys.

    searched  `searched_keys` of all stretches, in order
    move      copies keys, one order at a time, to the device that searches them
    """
    levels = list(stretch.levels)
    for n in range(3, len(levels)):
        keys, *below = map(move, [stretch.keys[n], *(of_one[n - 1] for of_one in searched)])
        below = array_module(keys).concatenate(below, axis=1)
        levels[n - 1] = replace(levels[n - 1], suffix_G=_suffixes(below, n, bits, keys))
    return Stretch(levels, seconds=stretch.seconds)


def join_stretches(stretches: Sequence[Stretch]) -> Trie:
    """Return the trie of all stretches, in order. Consumes their levels."""
    return join_levels([stretch.levels for stretch in stretches], FANOUT)


def merge_weights(parts: Sequence[Weights]) -> Weights:
    """Merge the values of several parts, which have no n-grams in common."""
    if len(parts) == 1:
        return parts[0]
    tables = [(p.columns, p.values.view(np.uint32).astype(np.int64), np.array([len(p.values)])) for p in parts]
    columns, bits, _ = merge_tables(tables)
    return Weights(columns, bits.astype(np.uint32).view(np.float32))


def _levels_of_nodes(unigrams: Unigrams, whole: Estimated, collapse: bool) -> list[Level]:
    """Return the levels of a part that is the whole model."""
    xp, N = array_module(unigrams.prob_V), max(whole.nodes)
    kept_M = xp.flatnonzero(unigrams.kept_V)
    new_V = (xp.cumsum(unigrams.kept_V) - 1).astype(np.uint32)  # ids without pruned words
    levels = [Level(new_V[kept_M], _log10_of_words(unigrams, kept_M), None)]
    if len(kept_M) == len(new_V):
        kept_M = new_V = None
    new_M1: Any = None  # rows of the order below, without pruned ones; None: none is pruned, as kept_M
    for n in range(2, N + 1):
        word_R, first_M1, suffix_R, marked_R = whole.nodes.pop(n)
        prob_R, backoff_M = whole.probabilities.pop(n).values, whole.backoffs.pop(n - 1).values
        levels[-1].backoff_G = backoff_M if kept_M is None else backoff_M[kept_M]
        if n == 2 or (n == N and not collapse):
            suffix_R = None
        elif new_M1 is not None:
            suffix_R = new_M1[suffix_R]
        new_R1 = kept_R = None
        if marked_R is not None:
            kept_R, new_R1 = xp.flatnonzero(~marked_R), xp.zeros(len(marked_R) + 1, node_dtype(len(marked_R)))
            xp.cumsum(~marked_R, out=new_R1[1:])
            word_R, prob_R, first_M1 = word_R[kept_R], prob_R[kept_R], new_R1[first_M1]
            suffix_R = None if suffix_R is None else suffix_R[kept_R]
        if kept_M is not None:
            first_M1 = xp.concatenate([first_M1[kept_M], first_M1[-1:]])
        word_R = word_R if new_V is None else new_V[word_R]
        levels.append(Level(word_R, prob_R, None, suffix_G=suffix_R, first_child_M=first_M1))
        new_M1, kept_M = new_R1, kept_R
    return levels


def _levels(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int], collapse: bool = False,
    keys: dict[int, Any] | None = None,
) -> list[Level]:  # fmt: skip
    """Return the levels of the n-grams that begin with some words.

    keys  receives the keys needed to find suffixes later. None: the part holds all words, so suffixes are searched
          immediately
    """
    first, last = words
    xp = array_module(unigrams.prob_V)
    N = max(parts[0].probabilities, default=1) if parts else 1
    new_V = (xp.cumsum(unigrams.kept_V) - 1).astype(np.uint32)  # ids without pruned words
    kept = first + xp.flatnonzero(unigrams.kept_V[first:last])
    levels = [Level(new_V[kept], _log10_of_words(unigrams, kept), None)]
    below = (kept + 1).astype(np.uint64)[None] << np.uint64(64 - bits)  # keys of the order below
    for n in range(2, N + 1):
        merged = merge_weights([p.probabilities.pop(n) for p in parts])
        weights = merge_weights([p.backoffs.pop(n - 1) for p in parts])
        columns = merged.columns
        word_R, _, first_M1 = link_histories(below, columns, n, bits)
        level = Level(new_V[word_R], merged.values, None, first_child_M=first_M1)
        levels[-1].backoff_G = _backoffs(below, n - 1, bits, first_M1, weights)
        if keys is None and 3 <= n < N + collapse:
            level.suffix_G = _suffixes(below, n, bits, columns)
        if keys is not None and N > 3 and n < N:
            keys[n] = columns
        levels.append(level)
        below = columns
    return levels


def _backoffs(below: Any, order: int, bits: int, first_M1: Any, weights: Weights) -> Any:
    """Return (M,) float32: the backoffs of n-grams, 0 for n-grams that are no contexts.

    below     keys of the n-grams
    first_M1  their first children: of n-grams that begin with them
    weights   backoffs of contexts, of which some may not be in `below`
    """
    xp = array_module(below)
    backoff_M = xp.zeros(below.shape[1], np.float32)
    nodes = xp.flatnonzero(first_M1[1:] > first_M1[:-1])
    if len(nodes) == len(weights.values):  # without pruning, the contexts are the n-grams with children
        backoff_M[nodes] = weights.values
        return backoff_M
    node_C = find_ngrams(below, order, bits, weights.columns, 0)
    is_kept_C = node_C >= 0
    backoff_M[node_C[is_kept_C]] = weights.values[is_kept_C]
    return backoff_M


def _log10_of_words(unigrams: Unigrams, kept: Any) -> Any:
    """Return the log10 probabilities of some words."""
    log10_K = log10_values(unigrams.prob_V[kept])
    if not unigrams.finite:
        return log10_K
    xp = array_module(log10_K)
    return xp.maximum(log10_K, xp.where(kept == UNK_ID, UNK_LOG10, ZERO_LOG10).astype(np.float32))


def _suffixes(below: Any, order: int, bits: int, columns: Any) -> Any:
    """Return (G,) uint32 or int64: for n-grams without their first words, their rows in the order below."""
    return find_ngrams(below, order - 1, bits, columns, 1).astype(node_dtype(below.shape[1]))


def _negate(levels: Sequence[Level]) -> None:
    for level in levels:
        level.prob_G = negative(level.prob_G)


def _collapse(levels: Sequence[Level]) -> None:
    """Replace two values by one: probability times the backoffs of the n-gram and of all its suffixes, divided by those
    of its history and of all the history's suffixes.
    """
    xp = array_module(levels[0].word_G)
    lower = xp.zeros(1, np.float32)  # backoffs of the order below, summed with those of suffixes
    for n, level in enumerate(levels, 1):
        backoff_G = xp.zeros(len(level.word_G), np.float32) if level.backoff_G is None else level.backoff_G
        suffix_G = level.word_G if n == 2 else level.suffix_G
        parent_G = 0 if n == 1 else _parents(level)
        total_G = backoff_G if n == 1 else backoff_G + lower[suffix_G]
        level.prob_G = level.prob_G + total_G - lower[parent_G]
        if level.backoff_G is not None:
            level.backoff_G = xp.zeros_like(backoff_G)
        lower = total_G


def _parents(level: Level) -> Any:
    """Return (G,) int64: the parent of each node in the order before."""
    xp = array_module(level.word_G)
    nodes_G = xp.arange(len(level.word_G), dtype=level.first_child_M.dtype)
    return xp.searchsorted(level.first_child_M, nodes_G, "right") - 1
