"""The edge table: what is in it is found, nothing else is, and its layout is that of its rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.edges import find_edge, home_bucket, make_edges, scramble


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
