"""Assemble estimated parts of the n-grams into one trie.

In each order of a trie, nodes are sorted by their words, first word first, so that the children of a node are
neighbours. They are all in one part, and neighbours there, too, because a part has all continuations of a context. So
the sizes of these blocks give each n-gram its place: parts are not merged, and need no keys of n-grams. Only contexts
are searched among nodes. A part knows the suffix of each of its n-grams as one of its own rows, or as a place among
split bigrams. So suffixes are not searched.

A stretch is the set of n-grams, of all orders, whose first word is in one range of words; it is a contiguous range of
each order. Stretches are assembled one by one, on any worker, and joined. Only suffixes cross stretches, because they
begin with other words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import UNK_ID
from mgpu_ngram.core.models.arpa import UNK_LOG10, ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.engine.estimate.part import Contexts, Estimated, Unigrams
from mgpu_ngram.engine.estimate.part_rows import PartRows, rows_of, rows_of_parts
from mgpu_ngram.engine.trie.build import FANOUT, Level, join_levels, negative
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.extend_keys import extend_keys
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams
from mgpu_ngram.kernels.estimate.log10_values import log10_values
from mgpu_ngram.kernels.estimate.place_ngrams import NgramBlocks, NgramNodes, place_ngrams

SAMPLED_NGRAMS = 1 << 14  # one of so many n-grams is sampled to decide where to cut


@dataclass
class Stretch:
    """The nodes of n-grams whose first word is in one range.

    levels    orders 1 to N; children are numbered within the stretch, suffixes within the order
    suffixes  {n: (G,) `PartRows.suffix_rows`}, until levels have their suffixes
    places    {n: [the nodes of each part's rows]}, numbered within the stretch, of orders that are suffixes. The last
              array of order 2 has (V,) nodes for each split word of the stretch: of the bigrams that begin with it, by
              their last word; 0 where there is no such bigram
    seconds   by step
    """

    levels: list[Level]
    suffixes: dict[int, Any] = field(default_factory=dict)
    places: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def arrays(self) -> dict[str, Any]:
        """Return all arrays by name."""
        named = {f"{i}.{name}": a for i, level in enumerate(self.levels) for name, a in vars(level).items()}
        named = {k: a for k, a in named.items() if a is not None} | {f"s.{n}": a for n, a in self.suffixes.items()}
        return named | {f"p.{n}.{p}": a for n, arrays in self.places.items() for p, a in enumerate(arrays)}

    def with_arrays(self, named: dict[str, Any]) -> Stretch:
        """Return the stretch with other arrays."""
        levels = [
            replace(level, **{name: named[f"{i}.{name}"] for name, a in vars(level).items() if a is not None})
            for i, level in enumerate(self.levels)
        ]
        suffixes = {n: named[f"s.{n}"] for n in self.suffixes}
        places = {n: [named[f"p.{n}.{p}"] for p in range(len(arrays))] for n, arrays in self.places.items()}
        return Stretch(levels, suffixes, places, self.seconds)


@dataclass(frozen=True)
class Places:
    """`Stretch.places`, and the number of nodes of each of these orders."""

    of_parts: dict[int, list[Any]]
    nodes: dict[int, int]


def assemble(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, collapse: bool = False, split: Sequence[int] = ()
) -> Trie:
    """Return the trie of all parts' n-grams. Consumes the parts.

    bits      bits of a word in keys
    collapse  give each n-gram one value instead of a probability and a backoff (Heafield, Koehn and Lavie, 2012,
              "Language model rest costs and space-efficient storage", q); the values of a text add up to its score
    split     split words, see `PartRows`
    """
    if parts and parts[0].nodes:
        levels = _levels_of_nodes(unigrams, parts[0], collapse)
    else:
        V = len(unigrams.kept_V)
        rows = rows_of_parts([rows_of(part) for part in parts], V, split)
        stretch = _without_suffixes(unigrams, parts, bits, (0, V), rows)
        levels = add_suffixes(stretch, [places_of(stretch)], lambda array: array).levels
        del stretch  # or its arrays would stay in memory
    if collapse:
        _collapse(levels)
    else:
        _negate(levels)
    return join_levels([levels], FANOUT)


def sample_first_words(part: Estimated, bits: int) -> np.ndarray:
    """Return (S,) uint64: the first word of every SAMPLED_NGRAMS-th n-gram of a part."""
    shift, found = np.uint64(64 - bits), [np.empty(0, np.uint64)]
    for contexts in part.contexts.values():
        xp = array_module(contexts.columns)
        rows = xp.arange(SAMPLED_NGRAMS // 2, int(contexts.first_C1[-1]), SAMPLED_NGRAMS)
        context = xp.searchsorted(contexts.first_C1, rows.astype(contexts.first_C1.dtype), "right") - 1
        found.append(to_host((contexts.columns[0, context] >> shift) - np.uint64(1)))
    return np.concatenate(found)


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
    taken = Estimated({}, {}, {})
    for n, log10_R in part.probabilities.items():
        contexts = part.contexts[n - 1]
        xp = array_module(contexts.columns)
        begin, end = to_host(xp.searchsorted(contexts.columns[0], xp.asarray(bounds), "right")).tolist()
        first_C1 = contexts.first_C1[begin : end + 1]
        rows = slice(*to_host(first_C1[xp.asarray([0, -1])]).tolist())
        taken.contexts[n - 1] = Contexts(contexts.columns[:, begin:end], contexts.values[begin:end], first_C1)
        taken.probabilities[n], taken.words[n] = log10_R[rows], part.words[n][rows]
        if n in part.suffixes:
            taken.suffixes[n] = part.suffixes[n][rows]
    return taken


def assemble_stretch(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int], rows: PartRows
) -> Stretch:
    """Return the nodes of all parts' n-grams that begin with words[0] to words[1] - 1, without suffixes.

    parts  `take_stretch` of all parts; consumed
    """
    stretch = _without_suffixes(unigrams, parts, bits, words, rows)
    _negate(stretch.levels)
    return stretch


def places_of(stretch: Stretch) -> Places:
    """Return the places of the nodes of a stretch that are suffixes."""
    return Places(stretch.places, {n: len(stretch.levels[n - 1].word_G) for n in stretch.places})


def add_suffixes(stretch: Stretch, places: Sequence[Places], move: Callable[[Any], Any]) -> Stretch:
    """Return the stretch with the suffixes of its nodes.

    places  `places_of` all stretches, in order
    move    copies arrays, one order at a time, to the device that does the work
    """
    levels = list(stretch.levels)
    for n, rows_G in stretch.suffixes.items():
        nodes = [of_one.nodes[n - 1] for of_one in places]
        starts = list(accumulate(nodes, initial=0))
        of_parts = zip(*(of_one.of_parts[n - 1] for of_one in places), strict=True)
        # The rows of a part that are in one stretch follow those in the stretch before.
        pieces = [piece for of_part in of_parts for piece in zip(of_part, starts, strict=False)]
        rows_G = move(rows_G)
        place_R = array_module(rows_G).empty(sum(len(array) for array, _ in pieces), node_dtype(starts[-1]))
        at = 0
        for array, start in pieces:
            place_R[at : at + len(array)] = move(array)
            place_R[at : at + len(array)] += place_R.dtype.type(start)
            at += len(array)
        levels[n - 1] = replace(levels[n - 1], suffix_G=place_R[rows_G])
        del place_R, rows_G
    return Stretch(levels, seconds=stretch.seconds)


def join_stretches(stretches: Sequence[Stretch], move: Callable[[Any], Any]) -> Trie:
    """Return the trie of all stretches, in order; `move` as for `join_levels`. The stretches keep their arrays."""
    return join_levels([[replace(level) for level in stretch.levels] for stretch in stretches], FANOUT, move)


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
        prob_R, backoff_M = whole.probabilities.pop(n), whole.contexts.pop(n - 1).values
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


def _without_suffixes(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int], rows: PartRows
) -> Stretch:
    """Return the nodes of n-grams that begin with some words, without suffixes. Consumes the parts."""
    xp = array_module(unigrams.prob_V)
    new_V = (xp.cumsum(unigrams.kept_V) - 1).astype(np.uint32)  # ids without pruned words
    words_G = words[0] + xp.flatnonzero(unigrams.kept_V[slice(*words)])
    keys = (words_G + 1).astype(np.uint64)[None] << np.uint64(64 - bits)
    stretch = Stretch([Level(new_V[words_G], _log10_of_words(unigrams, words_G), None)])
    for n in sorted(parts[0].probabilities) if parts else ():
        M, G = keys.shape[1], sum(len(part.probabilities[n]) for part in parts)
        first_M1, backoff_M = xp.zeros(M + 1, node_dtype(G)), xp.zeros(M, np.float32)
        blocks = list[NgramBlocks]()
        for part in parts:
            contexts = part.contexts.pop(n - 1)
            node_C = find_ngrams(keys, n - 1, bits, contexts.columns, 0)  # all are kept, because their n-grams are
            backoff_M[node_C] = contexts.values
            first_M1[1:][node_C] = xp.diff(contexts.first_C1)  # numbers of children, until they are added up
            blocks.append(NgramBlocks(node_C, contexts.first_C1, part.words.pop(n), part.probabilities.pop(n)))
        xp.cumsum(first_M1[1:], out=first_M1[1:])
        stretch.levels[-1].backoff_G = backoff_M
        suffixes = [part.suffixes.pop(n) for part in parts if n in part.suffixes]
        are_suffixes = len(parts[0].suffixes) > 0  # of the order above, which are left
        nodes, places = NgramNodes(xp.empty(G, np.uint32), xp.empty(G, np.float32)), list[Any]()
        del contexts, node_C, backoff_M  # frees memory
        while blocks:
            places.append(place_ngrams(blocks.pop(0), first_M1, nodes, len(suffixes) > 0 or are_suffixes))
        words_G, prob_G = nodes
        if suffixes:
            stretch.suffixes[n] = rows.suffix_rows(suffixes, places, n)
        if are_suffixes:
            stretch.places[n] = places
            if n == 2:
                places.append(_split_places(rows.split, words, first_M1, words_G, unigrams.kept_V))
        stretch.levels.append(Level(new_V[words_G], prob_G, None, first_child_M=first_M1))
        if parts[0].probabilities:
            keys = extend_keys(keys, first_M1, words_G, n, bits)
        del prob_G, places, suffixes, nodes
    return stretch


def _split_places(split: Sequence[int], words: tuple[int, int], first_M1: Any, words_G: Any, kept_V: Any) -> Any:
    """Return, for each split word of a stretch, (V,) places of the bigrams of it and every word; see `Stretch.places`.

    words     first, past the last word of the stretch
    first_M1  first bigram of each kept word of the stretch
    words_G   last words of the bigrams
    """
    xp, V = array_module(kept_V), len(kept_V)
    mine = [word for word in split if words[0] <= word < words[1]]
    places = xp.zeros((len(mine), V), first_M1.dtype)
    for place_V, word in zip(places, mine, strict=True):
        if kept_V[word]:
            node = count_true(kept_V[words[0] : word])
            first, last = to_host(first_M1[node : node + 2]).tolist()
            place_V[words_G[first:last]] = xp.arange(first, last, dtype=place_V.dtype)
    return places.reshape(-1)


def _log10_of_words(unigrams: Unigrams, kept: Any) -> Any:
    """Return the log10 probabilities of some words."""
    log10_K = log10_values(unigrams.prob_V[kept])
    if not unigrams.finite:
        return log10_K
    xp = array_module(log10_K)
    return xp.maximum(log10_K, xp.where(kept == UNK_ID, UNK_LOG10, ZERO_LOG10).astype(np.float32))


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
