"""Assemble estimated parts of the n-grams into one trie.

In each order of a trie, nodes are sorted by their words, first word first, so that the children of a node are
neighbours. They are all in one part, and neighbours there, too, because a part has all continuations of a context. So
the sizes of these blocks give each n-gram its place, and parts are not merged. A part knows the suffix of each of its
n-grams as one of its own rows, or as a place among split bigrams. So suffixes are not searched.

A stretch is the set of n-grams, of all orders, whose first word is in one range of words; it is a contiguous range of
each order. Stretches are assembled one by one, on any worker, and joined. Only suffixes cross stretches, because they
begin with other words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.vocabulary import UNK_ID
from mgpu_ngram.core.models.arpa import UNK_LOG10, ZERO_LOG10
from mgpu_ngram.core.ngrams.trie import Trie, node_dtype
from mgpu_ngram.engine.estimate.owners import Owners, context_words, owners_of, rows_of
from mgpu_ngram.engine.estimate.part import Estimated, Unigrams, Weights
from mgpu_ngram.engine.trie.build import FANOUT, Level, join_levels, negative
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.estimate.find_ngrams import find_ngrams
from mgpu_ngram.kernels.estimate.link_histories import Links, link_histories
from mgpu_ngram.kernels.estimate.log10_values import log10_values

SAMPLED_NGRAMS = 1 << 14  # one of so many n-grams is sampled to decide where to cut


@dataclass
class Stretch:
    """The nodes of n-grams whose first word is in one range.

    levels    orders 1 to N; children are numbered within the stretch, suffixes within the order
    suffixes  {n: (G,) `Owners.suffix_rows`}, until levels have their suffixes
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
    split     split words, see `Owners`
    """
    if parts and parts[0].nodes:
        levels = _levels_of_nodes(unigrams, parts[0], collapse)
    else:
        V = len(unigrams.kept_V)
        owners = owners_of([context_words(part, bits) for part in parts], [rows_of(p) for p in parts], V, split)
        stretch = _without_suffixes(unigrams, parts, bits, (0, V), owners)
        levels = add_suffixes(stretch, [places_of(stretch)], lambda array: array).levels
        del stretch  # or its arrays would stay in memory
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

    def range_of(weights: Weights) -> slice:
        xp = array_module(weights.columns)
        return slice(*to_host(xp.searchsorted(weights.columns[0], xp.asarray(bounds), "right")).tolist())

    taken = Estimated({}, {})
    for n, weights in part.backoffs.items():
        rows = range_of(weights)
        taken.backoffs[n] = Weights(weights.columns[:, rows], weights.values[rows])
    for n, weights in part.probabilities.items():
        rows = range_of(weights)
        taken.probabilities[n] = Weights(weights.columns[:, rows], weights.values[rows])
        if n in part.suffixes:
            taken.suffixes[n] = part.suffixes[n][rows]
    return taken


def assemble_stretch(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int], owners: Owners
) -> Stretch:
    """Return the nodes of all parts' n-grams that begin with words[0] to words[1] - 1, without suffixes.

    parts  `take_stretch` of all parts; consumed
    """
    stretch = _without_suffixes(unigrams, parts, bits, words, owners)
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
    """Return the trie of all stretches, in order; `move` as for `join_levels`."""
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


class _Block(NamedTuple):
    """The n-grams of one order of a part.

    rows_H   rising nodes of the order below that may be their histories
    links    of the n-grams to these nodes
    weights  of the n-grams
    """

    rows_H: Any
    links: Links
    weights: Weights


def _without_suffixes(
    unigrams: Unigrams, parts: Sequence[Estimated], bits: int, words: tuple[int, int], owners: Owners
) -> Stretch:
    """Return the nodes of n-grams that begin with some words, without suffixes. Consumes the parts."""
    xp = array_module(unigrams.prob_V)
    new_V = (xp.cumsum(unigrams.kept_V) - 1).astype(np.uint32)  # ids without pruned words
    words_G = words[0] + xp.flatnonzero(unigrams.kept_V[slice(*words)])
    nodes = _Nodes((words_G + 1).astype(np.uint64)[None] << np.uint64(64 - bits), words_G)
    stretch = Stretch([Level(new_V[words_G], _log10_of_words(unigrams, words_G), None)])
    for n in sorted(parts[0].probabilities) if parts else ():
        rows_of_parts = _rows_of_parts(owners.part_of(nodes.keys, nodes.words_G, n, bits), len(parts))
        M, G = len(nodes.words_G), sum(len(part.probabilities[n].values) for part in parts)
        first_M1, backoff_M = xp.zeros(M + 1, node_dtype(G)), xp.empty(M, np.float32)
        blocks = list[_Block]()
        for part, rows_H in zip(parts, rows_of_parts, strict=True):
            histories, weights = nodes.keys.take(rows_H, axis=1), part.probabilities.pop(n)
            links = link_histories(histories, weights.columns, n, bits)
            first_M1[1:][rows_H] = xp.diff(links.first_M1)  # numbers of children, until they are added up
            backoff_M[rows_H] = _backoffs(histories, n - 1, bits, links.first_M1, part.backoffs.pop(n - 1))
            blocks.append(_Block(rows_H, links, weights))
        xp.cumsum(first_M1[1:], out=first_M1[1:])
        stretch.levels[-1].backoff_G = backoff_M
        suffixes = [part.suffixes.pop(n) for part in parts if n in part.suffixes]
        are_suffixes = len(parts[0].suffixes) > 0  # of the order above, which are left
        del nodes, rows_of_parts, rows_H, histories, weights, links, backoff_M  # frees memory
        with_keys, with_places = len(parts[0].probabilities) > 0, len(suffixes) > 0 or are_suffixes
        nodes, prob_G, places = _placed(blocks, first_M1, with_keys, with_places)
        if suffixes:
            stretch.suffixes[n] = owners.suffix_rows(suffixes, places, n)
        if are_suffixes:
            stretch.places[n] = places
            if n == 2:
                places.append(_split_places(owners.split, words, first_M1, nodes.words_G, unigrams.kept_V))
        stretch.levels.append(Level(new_V[nodes.words_G], prob_G, None, first_child_M=first_M1))
        del prob_G, places, suffixes
    return stretch


class _Nodes(NamedTuple):
    """The keys (C, G) of the nodes of an order, and the ids (G,) of their last words."""

    keys: Any
    words_G: Any


def _rows_of_parts(part_M: Any, parts: int) -> list[Any]:
    """Return the rising rows of each part among rows (M,) that name their parts."""
    xp = array_module(part_M)
    order_M = xp.argsort(part_M, kind="stable")
    ends_P = to_host(xp.searchsorted(part_M[order_M], xp.arange(parts, dtype=part_M.dtype), "right")).tolist()
    return [order_M[first:last] for first, last in pairwise([0, *ends_P])]


def _placed(blocks: list[_Block], first_M1: Any, with_keys: bool, with_places: bool) -> tuple[_Nodes, Any, list[Any]]:
    """Return (all nodes of an order, their probabilities, the nodes of each part's n-grams). Empties the list of the
    parts' blocks.

    first_M1     (M + 1,) the first child of each node of the order below
    with_keys    False: there is no order above, so keys stay empty
    with_places  False: no suffixes depend on places, so these stay empty
    """
    xp, G = array_module(first_M1), sum(len(block.weights.values) for block in blocks)
    keys = xp.empty((len(blocks[0].weights.columns) * with_keys, G), np.uint64)
    words_G, prob_G, places = xp.empty(G, np.uint32), xp.empty(G, np.float32), list[Any]()
    while blocks:
        rows_H, links, weights = blocks.pop(0)
        # The children of a node, which are neighbours in the part, follow each other from its first child on.
        place_R = (first_M1[rows_H] - links.first_M1[:-1].astype(first_M1.dtype))[links.history_R]
        place_R += xp.arange(len(place_R), dtype=place_R.dtype)
        words_G[place_R], prob_G[place_R] = links.word_R, weights.values
        for column, of_part in zip(keys, weights.columns, strict=with_keys):
            column[place_R] = of_part
        if with_places:
            places.append(place_R)
    return _Nodes(keys, words_G), prob_G, places


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
