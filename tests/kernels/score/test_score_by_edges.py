"""Scores by edges equal those of `score_tokens`, whose tests compare with independent results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_tokens import TrieValues, score_tokens, text_and_trie
from mgpu_ngram.kernels.trie.edges import edge_home, make_edges
from mgpu_ngram.kernels.trie.find_children import TrieIndex

ALL = np.uint64(2**64 - 1)


def both(made, to_device, load=0.5, change=lambda table: table):
    *index, fanout = made["index"]
    prob_G, backoff_M, *_ = made["values"]
    table = make_edges(*index[:2], prob_G, backoff_M, load)
    rest = {name: made[name] for name in ("order", "begin", "end")} | {"codes_T": to_device(made["codes_T"])}
    found = score_by_edges(change(table).map_arrays(to_device), **rest)
    values = TrieValues(to_device(prob_G), to_device(backoff_M))
    expected = score_tokens(TrieIndex(*map(to_device, index), fanout), values, **rest)
    return [to_host(a) for a in found], [to_host(a) for a in expected]


def equal(found, expected):
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 3000), load=st.sampled_from([0.3, 0.5, 0.95]))
def test_any_text(to_device, seed, size, load):
    assert equal(*both(text_and_trie(np.random.default_rng(seed), size), to_device, load))


def test_orders_are_met(to_device):
    (_, order_T), _ = both(text_and_trie(np.random.default_rng(0), 5000), to_device)
    assert set(order_T.tolist()) == {0, 1, 2, 3}, "or the test above shows little"


def filters_of(table, value, words=True, edges=True):
    """Return a table with all filters replaced by `value`."""
    words_V2, slots_E2 = table.words_V2.copy(), table.slots_E2.copy()
    if words:
        words_V2[:, 0] = value
    if edges:
        bits = ((1 << table.filter_bits) - 1) << table.node_bits
        there = slots_E2[:, 0] != 0
        slots_E2[there, 0] = slots_E2[there, 0] & np.uint64(2**64 - 1 - bits) | value & np.uint64(bits)
    return table._replace(words_V2=words_V2, slots_E2=slots_E2)


def test_filters_end_walks_and_nothing_else(to_device):
    made = text_and_trie(np.random.default_rng(1), 4000)
    (_, order_T), expected = both(made, to_device)
    full, _ = both(made, to_device, change=lambda table: filters_of(table, ALL))
    assert equal(full, expected)
    none, _ = both(made, to_device, change=lambda table: filters_of(table, np.uint64(0)))
    assert np.array_equal(none[1], np.minimum(order_T, 1))
    pairs, _ = both(made, to_device, change=lambda table: filters_of(table, np.uint64(0), words=False))
    assert np.array_equal(pairs[1], np.minimum(order_T, 2)) and 2 in pairs[1]


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_walks_do_not_look_past_a_greater_key(load, to_device):
    """Slots past the end of a search may hold anything."""
    V = 40
    rng = np.random.default_rng(3)
    runs = [np.flatnonzero(rng.random(V) < 0.5) for _ in range(V)]
    word_G = np.concatenate([np.arange(V), *runs]).astype(np.uint32)
    first_child_M = (V + np.cumsum([0, *map(len, runs)])).astype(np.uint32)
    table = make_edges(word_G, first_child_M, np.zeros(len(word_G), np.float32), np.zeros(V, np.float32), load)
    shift, step = np.uint64(table.node_bits + table.filter_bits), np.uint64(1) << np.uint64(table.check_bits)
    within = {0: 0, 1: 0, 2: 0}  # how far searches go
    for node in range(V):
        for word in set(range(V)) - set(runs[node].tolist()):
            slot, tag = edge_home(table, node, word)
            slots_E2, end = table.slots_E2.copy(), int(slot)
            while slots_E2[end, 0] >> shift > tag:  # smaller keys, as tests of the table say
                end, tag = end + 1, tag + step
            within[min(2, end - int(slot))] += 1
            for past in range(end + 1, min(end + 9, len(slots_E2))):
                tag += step
                slots_E2[past, 0] = tag << shift | np.uint64(V)
            changed = filters_of(table._replace(slots_E2=slots_E2), ALL, edges=False)
            codes_T = to_device(np.array([node + 1, word + 1], np.uint32))
            _, order_T = score_by_edges(changed.map_arrays(to_device), order=2, begin=-1, end=-1, codes_T=codes_T)
            assert order_T.tolist() == [1, 1]
    assert min(within.values()) > 5


def test_slots_of_many_keys(to_device):
    """Many keys with one home: searches go far."""
    made = text_and_trie(np.random.default_rng(2), 3000)
    table = make_edges(*made["index"][:2], *made["values"][:2], load=1e6)
    assert table.buckets == 1 and len(table.slots_E2) > 500
    assert equal(*both(made, to_device, load=1e6))


def test_orders_that_do_not_fit(to_device):
    table = make_edges(np.zeros(1, np.uint32), np.ones(2, np.uint32), *(np.zeros(1, np.float32),) * 2)
    with pytest.raises(ValueError, match="order is 0 but must be 1 to 96"):
        score_by_edges(table, order=0, begin=-1, end=-1, codes_T=np.zeros(1, np.uint32))
