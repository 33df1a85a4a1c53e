"""Scoring in plain array code, NumPy or CuPy: to check the kernels and to count the reads of their searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Scores
from mgpu_ngram.core.counts.vocabulary import END_ID, START_ID
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.trie.child_filters import child_filters

BLOCK_TOKENS = 1 << 23  # walked at once


@dataclass(frozen=True)
class ScoreWork:
    """The scores of a text, and the work that they take.

    A search looks for an n-gram's last word among the children of its history.

    scores    as `kernels.score.score_tokens` returns them
    searches  for n-grams of order 2, 3, ...: in an edge table a lookup at most, see `lookups`
    parents   those of them that meet children, and
    stumps    at most `fanout` of them
    lines     of 128 bytes that a B+-tree reads: of a search where the children are, and one for each level of the index
              that it looks at; of a token its probability and each backoff
    """

    scores: Scores
    searches: np.ndarray
    parents: np.ndarray
    stumps: np.ndarray
    lines: int

    @classmethod
    def of(cls, trie: Trie, codes_T: Any) -> ScoreWork:
        """Of a text of one or more sentences, each ended by a 0, with <s> and </s>; the trie is not quantised."""
        xp = array_module(codes_T)
        parts = [_work(trie, codes) for codes in _blocks(codes_T)]
        prob, order = zip(*(part.scores for part in parts), strict=True)
        searches, parents, stumps = np.sum([(p.searches, p.parents, p.stumps) for p in parts], axis=0)
        lines = sum(part.lines for part in parts)
        return cls((xp.concatenate(prob), xp.concatenate(order)), searches, parents, stumps, lines)

    def check(self, found: Scores) -> None:
        """Raise WrongResult unless scores are these, bit for bit."""
        for name, expected, values in zip(("log10 probabilities", "orders"), self.scores, found, strict=True):
            wrong = int((expected != values).sum())
            if wrong:
                raise WrongResult(f"{wrong:,} of {len(values):,} {name} are not those of array code; not timed")


def lookups(trie: Trie, codes_T: Any, filter_bits: int) -> int:
    """Searches that the filters of an edge table let through: each reads one sector of 32 bytes most times."""
    xp = array_module(codes_T)
    filter_M = child_filters(trie.word_G, trie.first_child_M, trie.symbols, filter_bits)
    passed = 0
    for codes in _blocks(codes_T):
        (word_T, *_), histories = walk(trie, codes)
        hash_T = word_T.astype(np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
        for n, node_T in enumerate(histories, 1):
            bit_T = hash_T * np.uint64(64 if n == 1 else filter_bits) >> np.uint64(32)
            there_T = filter_M[xp.maximum(node_T, 0)] >> bit_T & np.uint64(1)
            passed += int((there_T * (node_T >= 0).astype(np.uint64)).sum())
    return passed


def _blocks(codes_T: Any) -> Iterator[Any]:
    """Whole sentences, about BLOCK_TOKENS at a time."""
    xp = array_module(codes_T)
    ends_S = xp.flatnonzero(codes_T == 0) + 1
    cuts = ends_S[xp.searchsorted(ends_S, xp.arange(BLOCK_TOKENS, len(codes_T), BLOCK_TOKENS))].tolist()
    for a, b in zip([0, *cuts], [*cuts, len(codes_T)], strict=True):
        yield codes_T[a:b]


def _work(trie: Trie, codes_T: Any) -> ScoreWork:
    found, histories = walk(trie, codes_T)
    prob_T, order_T = _scores(trie, found, histories)
    lines = len(codes_T)
    searches, parents, stumps = [], [], []
    for n, node_T in enumerate(histories, 1):
        lines += int(((node_T >= 0) & (n >= order_T)).sum())
        nodes = node_T[node_T >= 0]
        children, levels = _children(trie, nodes), _levels(trie, nodes)
        lines += len(nodes) + int(levels.sum())
        searches.append(len(nodes))
        parents.append(int((children > 0).sum()))
        stumps.append(int(((children > 0) & (children <= trie.fanout)).sum()))
    return ScoreWork((prob_T, order_T), np.array(searches), np.array(parents), np.array(stumps), lines)


def walk(trie: Trie, codes_T: Any) -> tuple[list[Any], list[Any]]:
    """(found, histories), of orders 1, 2, ...: nodes as (T,) int64, -1 where there is none.

    found      that of the n words that end with each token
    histories  that of the n words before it, after which it is searched for; below the order of the trie
    """
    xp, V = array_module(codes_T), trie.symbols
    node_E = xp.arange(V, len(trie))
    parent_E = xp.searchsorted(trie.first_child_M, node_E.astype(trie.first_child_M.dtype), side="right") - 1
    key_E = parent_E << 32 | trie.word_G[V:]  # rises from node to node
    word_T = xp.where(codes_T == 0, END_ID, codes_T.astype(np.int64) - 1)
    begins_T = xp.concatenate([xp.ones(1, bool), codes_T[:-1] == 0])
    found, histories = [word_T], []
    for n in range(1, trie.order):
        before_T = xp.concatenate([found[-1][:1], found[-1][:-1]])
        history_T = xp.where(begins_T, START_ID if n == 1 else -1, before_T)
        key_T = history_T << 32 | word_T
        at_T = xp.minimum(xp.searchsorted(key_E, key_T), len(key_E) - 1)
        histories.append(history_T)
        found.append(xp.where((history_T >= 0) & (key_E[at_T] == key_T), at_T + V, -1))
    return found, histories


def _scores(trie: Trie, found: list[Any], histories: list[Any]) -> Scores:
    """The longest match, then backoffs, the shortest history's first."""
    xp = array_module(found[0])
    prob_T, order_T = trie.prob_G[found[0]], xp.ones(len(found[0]), np.uint8)
    for n, node_T in enumerate(found[1:], 2):
        prob_T = xp.where(node_T >= 0, trie.prob_G[node_T], prob_T)
        order_T[node_T >= 0] = n
    for n, node_T in enumerate(histories, 1):
        backs_off_T = (node_T >= 0) & (n >= order_T)
        prob_T = xp.where(backs_off_T, prob_T + trie.backoff_M[node_T], prob_T)
    return prob_T, order_T


def stump_shares(trie: Trie) -> list[float]:
    """Of nodes that lead to n-grams of order 2, 3, ..., the share of B-stumps: those with at most `fanout` children."""
    children_M = _children(trie, array_module(trie.word_G).arange(trie.histories))
    shares = []
    for begin, end in zip(trie.starts, trie.starts[1:-1], strict=False):
        children = children_M[begin:end]
        parents = int((children > 0).sum())
        shares.append(int(((children > 0) & (children <= trie.fanout)).sum()) / max(1, parents))
    return shares


def _children(trie: Trie, nodes: Any) -> Any:
    return trie.first_child_M[nodes + 1].astype(np.int64) - trie.first_child_M[nodes]


def _levels(trie: Trie, nodes: Any) -> Any:
    """Levels of the B+-tree that a search among the children of each node looks at; 0 where there are none."""
    first, last = trie.first_child_M[nodes].astype(np.int64), trie.first_child_M[nodes + 1].astype(np.int64) - 1
    levels = (first <= last).astype(np.int64)
    for t in range(len(trie.sample_starts) - 1):
        levels += last // trie.fanout**t - first // trie.fanout**t > trie.fanout
    return levels
