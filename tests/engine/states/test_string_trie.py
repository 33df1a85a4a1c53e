"""Tries of strings, beside a dictionary of all beginnings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.engine.states.string_trie import make_string_trie

NONE = 10**9


def trie_of(strings, singles=0):
    data = np.array([symbol for string in strings for symbol in string], np.uint32)
    lengths_S = np.array([len(string) for string in strings], np.int64)
    return make_string_trie(data, np.cumsum(lengths_S) - lengths_S, lengths_S, singles)


def spelled(trie, node):
    return () if node < 0 else (*spelled(trie, trie.parent_G[node]), int(trie.symbol_G[node]))


def test_a_trie_by_hand():
    trie = trie_of([(1,), (1, 0), (1, 2), (3, 2)])
    assert trie.symbol_G.tolist() == [1, 3, 0, 2, 2] and trie.symbol_G.dtype == np.uint32
    assert trie.parent_G.tolist() == [-1, -1, 0, 0, 1]
    assert trie.depth_G.tolist() == [1, 1, 2, 2, 2]
    assert trie.first_G.tolist() == [0, 3, 1, 2, 3] and trie.end_G.tolist() == [3, 4, 2, 3, 4]
    assert trie.node_S.tolist() == [0, 2, 3, 4]
    assert trie.least(np.array([5, 3, 4, 9]), NONE).tolist() == [3, 9, 3, 4, 9]


def test_all_single_symbols():
    trie = trie_of([(1, 0), (3,)], singles=5)
    assert trie.symbol_G.tolist() == [0, 1, 2, 3, 4, 0] and trie.node_S.tolist() == [5, 3]
    assert trie.least(np.array([7, 8]), NONE).tolist() == [NONE, 7, NONE, 8, NONE, 7]


def test_no_strings():
    assert [len(array) for array in trie_of([])] == [0] * 6
    trie = trie_of([], singles=2)
    assert trie.symbol_G.tolist() == [0, 1] and trie.least(np.empty(0, np.int64), NONE).tolist() == [NONE, NONE]


@given(st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), max_size=40), st.sampled_from([0, 4]))
def test_nodes_are_the_beginnings(strings, singles):
    strings = sorted(strings)
    trie = trie_of(strings, singles)
    beginnings = {string[:n] for string in strings for n in range(1, len(string) + 1)} | {(s,) for s in range(singles)}
    nodes = [spelled(trie, node) for node in range(len(trie.symbol_G))]
    assert nodes == sorted(beginnings, key=lambda beginning: (len(beginning), beginning))
    assert [nodes[node] for node in trie.node_S] == strings
    assert trie.depth_G.tolist() == [len(node) for node in nodes]
    value_S = np.arange(len(strings))[::-1].copy()
    for node, first, end, least in zip(nodes, trie.first_G, trie.end_G, trie.least(value_S, NONE), strict=True):
        having = [s for s, string in enumerate(strings) if string[: len(node)] == node]
        assert having == list(range(first, end))
        assert least == min((value_S[s] for s in having), default=NONE)
