"""Sparse backoff models of any size, drawn on the device, and their whole rows, for `bench tools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import END_ID, SPECIALS, START_ID
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes, logs_of, subtrie
from mgpu_ngram.engine.trie.build import FANOUT
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings

PAIRS = 0.3  # of a model's n-grams
DRAWN = 1.5  # times as many n-grams are drawn as are kept: some are equal, and some words have no successor
SKEW = 2.0  # word V * u**SKEW for uniform u: low ids are frequent
MASS = 0.5  # of a history's probability that its n-grams have


def sparse_model(ngrams: int, symbols: int, seed: int, xp: Any) -> Trie:
    """Return a trie of order 3 whose rows sum to 1, on the device of `xp`.

    ngrams   of all orders, about; at least the words
    symbols  V; words 0, 1, 2 are <unk>, <s> and </s>

    Pairs are of skewed words, so that frequent histories have many successors. The last word of a trigram follows its
    second word, so that every suffix is an n-gram.
    """
    rng, V = xp.random.default_rng(seed), symbols
    pairs = int(PAIRS * max(0, ngrams - V))
    first = xp.maximum((V * rng.random(int(DRAWN * pairs)) ** SKEW).astype(np.int64), START_ID)
    second = (V * rng.random(len(first)) ** SKEW).astype(np.int64)
    keys = (first * V + second)[(first != END_ID) & (second > START_ID)]
    del first, second
    pair_G = _distinct(keys, pairs, xp)
    parent, word = pair_G // V, pair_G % V
    children = xp.searchsorted(parent, xp.arange(V + 1))  # of each word, among the pairs
    history = (len(pair_G) * rng.random(int(DRAWN * max(0, ngrams - V - len(pair_G))))).astype(np.int64)
    middle = word[history]
    successors = children[middle + 1] - children[middle]
    drawn = children[middle] + (successors * rng.random(len(history))).astype(np.int64)
    follows = successors > 0
    keys = history[follows] * V + word[drawn[follows]]
    del history, middle, successors, drawn, follows
    triple_G = _distinct(keys, ngrams - V - len(pair_G), xp)
    del keys
    inner, last = triple_G // V, triple_G % V
    del triple_G
    starts = (0, V, V + len(pair_G), V + len(pair_G) + len(last))
    suffix = V + xp.searchsorted(pair_G, word[inner] * V + last)
    single = xp.full(V, -1)
    first_child_M = xp.concatenate([V + children[:-1], starts[2] + xp.searchsorted(inner, xp.arange(len(pair_G)))])
    nodes = BackoffNodes(
        starts=starts,
        word_G=xp.concatenate([xp.arange(V), word, last]).astype(np.uint32),
        first_child_M=xp.concatenate([first_child_M, xp.full(1, starts[3])]),
        parent_G=xp.concatenate([single, parent, V + inner]),
        suffix_G=xp.concatenate([single, word, suffix]),
        listed_G=xp.ones(starts[3], bool),
        prob_G=0.1 + 0.9 * rng.random(starts[3]),
        backoff_M=xp.ones(starts[2]),
    )
    del inner, last, suffix, parent, word, pair_G
    nodes.prob_G[START_ID] = 0
    nodes.prob_G[:V] /= nodes.prob_G[:V].sum()
    total_M = sum_siblings(nodes.prob_G[V:], nodes.first_child_M)
    nodes.prob_G[V:] *= MASS / total_M[nodes.parent_G[V:]]
    nodes.normalise()
    return subtrie(nodes, logs_of(nodes.prob_G), logs_of(nodes.backoff_M), FANOUT)


def _distinct(keys: Any, most: int, xp: Any) -> Any:
    """Return distinct keys, sorted; at most so many, evenly spaced among them."""
    keys = xp.sort(keys)
    keys = keys[xp.diff(keys, prepend=-1) != 0]
    return keys if len(keys) <= most else keys[xp.arange(most) * len(keys) // most]


def word_names(symbols: int, reverse: bool) -> Words:
    """Return the words of a model; in `reverse`, the same words with other ids."""
    names = [b"w%d" % v for v in range(len(SPECIALS), symbols)]
    return Words.of([*SPECIALS, *(names[::-1] if reverse else names)])


def row_of(trie: Trie, history: Sequence[int], xp: Any) -> Any:
    """Return (V,) float64, the probabilities of all words after a history of word ids; <s> has 0."""
    prob_V = 10.0 ** trie.prob_G[: trie.symbols].astype(np.float64)
    prob_V[START_ID] = 0
    for n in range(1, len(history) + 1):
        node = node_of(trie, history[-n:], xp)
        if node < 0:
            continue
        prob_V *= 10.0 ** float(trie.backoff_M[node])
        begin, end = (int(trie.first_child_M[m]) for m in (node, node + 1))
        prob_V[trie.word_G[begin:end]] = 10.0 ** trie.prob_G[begin:end].astype(np.float64)
    return prob_V


def node_of(trie: Trie, ngram: Sequence[int], xp: Any) -> int:
    """Return the node of an n-gram; -1 if the trie lacks it."""
    node = ngram[0]
    for word in ngram[1:]:
        if node >= trie.histories:
            return -1
        begin, end = (int(trie.first_child_M[m]) for m in (node, node + 1))
        at = begin + int(xp.searchsorted(trie.word_G[begin:end], xp.asarray([word], np.uint32))[0])
        if at == end or int(trie.word_G[at]) != word:
            return -1
        node = at
    return node
