"""The edge table: what is in it is found, nothing else is, and its layout is that of its rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.edges import find_edge, home_bucket, key_layout, make_edges, scramble


@pytest.mark.parametrize("bits", [2, 3, 7, 8, 15, 16])
def test_scrambling_is_a_bijection(bits):
    assert sorted(scramble(np.arange(1 << bits, dtype=np.uint64), bits).tolist()) == list(range(1 << bits))


@given(x=st.integers(0, 2**64 - 1), bits=st.integers(2, 64), buckets=st.integers(1, 2**32 - 1))
def test_homes(x, bits, buckets):
    x %= 1 << bits
    assert home_bucket(np.array([x], np.uint64), buckets, bits).tolist() == [x * buckets >> bits]


def trie_of(runs, V):
    """Words and children of a trie of two orders: word m has the words `runs[m]` after it."""
    word_G = np.array([*range(V), *(w for run in runs for w in run)], np.uint32)
    first_child_M = V + np.cumsum([0, *map(len, runs)])
    rng = np.random.default_rng(len(word_G))
    return word_G, first_child_M.astype(np.uint32), -rng.random(len(word_G), np.float32), -rng.random(V, np.float32)


RUNS = st.integers(1, 9).flatmap(
    lambda V: st.tuples(st.just(V), st.lists(st.sets(st.integers(0, V - 1)).map(sorted), min_size=V, max_size=V))
)


@given(drawn=RUNS, load=st.sampled_from([0.2, 0.5, 0.9]))
def test_every_edge_and_no_other(to_device, drawn, load):
    V, runs = drawn
    arrays = trie_of(runs, V)
    table = make_edges(*map(to_device, arrays), load)
    slots_E4, (_, _, prob_G, backoff_M) = to_host(table.slots_E4), arrays
    child = iter(range(V, 10**6))
    expected = {(m, w): next(child) for m, run in enumerate(runs) for w in run}
    bits = table.word_bits, table.key_bits, table.check_bits
    for node in range(V):
        for word in range(1 << table.word_bits):
            slot = find_edge(slots_E4, table.buckets, *bits, node, word)
            found = int(slots_E4[slot, 0]) if slot >= 0 else None
            assert found == expected.get((node, word))
            if slot >= 0:
                assert slots_E4[slot, 2:].view(np.float32).tolist() == [prob_G[found], 0]
    assert np.array_equal(to_host(table.words_V2), np.stack([prob_G[:V], backoff_M], 1))


@given(drawn=RUNS, load=st.sampled_from([0.5, 0.9]))
def test_the_layout_by_its_rule(to_device, drawn, load):
    V, runs = drawn
    word_G, first_child_M, prob_G, backoff_M = trie_of(runs, V)
    table = make_edges(*map(to_device, (word_G, first_child_M, prob_G, backoff_M)), load)
    keys = {}
    for child in range(V, len(word_G)):
        parent = int(np.searchsorted(first_child_M, child, "right")) - 1
        key = np.array([parent << table.word_bits | int(word_G[child])], np.uint64)
        keys[int(scramble(key, table.key_bits)[0])] = child
    rows, slot = {}, -1
    for x in sorted(keys):
        home = 2 * (x * table.buckets >> table.key_bits)
        slot = max(home, slot + 1)
        rows[slot] = keys[x], ((slot - home) << table.check_bits) + x % (1 << table.check_bits)
    slots_E4 = to_host(table.slots_E4)
    assert {e: tuple(slots_E4[e, :2].tolist()) for e in range(len(slots_E4)) if slots_E4[e, 0]} == rows
    assert len(slots_E4) % 2 == 0 and slots_E4[-1, 0] == 0


def test_more_nodes_than_slots_can_name():
    class Long(np.ndarray):
        def __len__(self):
            return 1 << 32

    word_G = np.zeros(1, np.uint32).view(Long)
    with pytest.raises(OverflowError, match=r"holds 2\*\*32 - 1 nodes"):
        make_edges(word_G, np.array([1, 1], np.uint32), None, np.zeros(1, np.float32))


def test_layout_by_hand():
    assert key_layout(4, 7, 1) == (2, 5, 5) and key_layout(4, 7, 8) == (2, 5, 2) and key_layout(4, 7, 9) == (2, 5, 2)
    assert key_layout(5, 8, 32) == (3, 6, 1) and key_layout(1, 0, 4) == (1, 2, 0) and key_layout(4, 7, 33) == (2, 5, 0)
    assert key_layout(2**31, 2**32, 2**31) == (31, 63, 32)


@pytest.mark.parametrize("buckets", [2**31, 2**31 + 11, 2**32 - 1])
@given(node=st.integers(0, 2**32 - 2), word=st.integers(0, 2**31 - 1))
def test_more_slots_than_32_bits_number(buckets, node, word):
    """All slots are one row of memory that holds the key at its home: the home is found, and nothing without it."""
    word_bits, key_bits, check_bits = key_layout(2**31, 2**32 - 1, buckets)
    x = int(scramble(np.array([node << word_bits | word], np.uint64), key_bits)[0])
    home, tag = 2 * (x * buckets >> key_bits), x % 2**check_bits
    slots_E4 = as_strided(np.array([1, tag, 0, 0], np.uint32), (2 * buckets, 4), (0, 4))
    assert find_edge(slots_E4, buckets, word_bits, key_bits, check_bits, node, word) == home
    empty = as_strided(np.array([0, tag, 0, 0], np.uint32), (2 * buckets, 4), (0, 4))
    assert find_edge(empty, buckets, word_bits, key_bits, check_bits, node, word) == -1


@pytest.mark.parametrize("edges", [0, 1, 2, 60])
def test_few_edges_of_many_words(edges, to_device):
    """Tags of 32 bits do not tell keys apart until there are more buckets than edges."""
    V = 300_000
    runs = [[]] * V
    runs[V - 1] = list(range(7, V, 4999))[:edges]
    table = make_edges(*map(to_device, trie_of(runs, V)))
    slots_E4, bits = to_host(table.slots_E4), (table.word_bits, table.key_bits, table.check_bits)
    for word in range(0, V, 499):
        slot = find_edge(slots_E4, table.buckets, *bits, V - 1, word)
        found = runs[V - 1][int(slots_E4[slot, 0]) - V] if slot >= 0 else None
        assert found == (word if word in runs[V - 1] else None)
    slots = [find_edge(slots_E4, table.buckets, *bits, V - 1, word) for word in runs[V - 1]]
    assert slots_E4[slots, 0].tolist() == list(range(V, V + edges)) and slots_E4[-1, 0] == 0


def test_values_that_no_table_holds():
    word_G, first_child_M, prob_G, backoff_M = trie_of([[0]], 1)
    with pytest.raises(TypeError, match="expected float32 but got uint8"):
        make_edges(word_G, first_child_M, prob_G.astype(np.uint8), backoff_M)
    with pytest.raises(ValueError, match="has 0 backoffs for 1 histories, and scores need them"):
        make_edges(word_G, first_child_M, prob_G, backoff_M[:0])
