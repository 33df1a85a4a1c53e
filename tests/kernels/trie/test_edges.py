"""The edge table: it finds its edges and no others, and its layout follows its rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from mgpu_ngram.kernels.common.wide_products import wide_product
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.edges import EdgeTable, edge_home, find_edge, key_layout, make_edges
from tests.support.edge_numbers import scrambled


def trie_of(runs, V):
    """Return words and children of a trie of two orders: words `runs[m]` follow word m."""
    word_G = np.array([*range(V), *(w for run in runs for w in run)], np.uint32)
    first_child_M = V + np.cumsum([0, *map(len, runs)])
    rng = np.random.default_rng(len(word_G))
    return word_G, first_child_M.astype(np.uint32), -rng.random(len(word_G), np.float32), -rng.random(V, np.float32)


RUNS = st.integers(1, 9).flatmap(
    lambda V: st.tuples(st.just(V), st.lists(st.sets(st.integers(0, V - 1)).map(sorted), min_size=V, max_size=V))
)


def edges_of(drawn):
    """Return {(node, word): child} of a trie of two orders."""
    child = iter(range(drawn[0], 10**6))
    return {(m, w): next(child) for m, run in enumerate(drawn[1]) for w in run}


@given(drawn=RUNS, load=st.sampled_from([0.2, 0.5, 0.9]))
def test_every_edge_and_no_other(to_device, drawn, load):
    V, runs = drawn
    arrays = trie_of(runs, V)
    table = make_edges(*map(to_device, arrays), load)
    table = table.map_arrays(to_host)
    slots_E2, expected, (_, _, prob_G, backoff_M) = table.slots_E2, edges_of(drawn), arrays
    for node in range(V):
        for word in range(1 << table.word_bits):
            child, slot = find_edge(table, node, word)
            assert child == expected.get((node, word), -1) and (slot >= 0) == (child >= 0)
            if slot >= 0:
                assert slots_E2[slot, 1:].view(np.float32).tolist() == [prob_G[child], 0]
    values_V2 = table.words_V2[:, 1:].copy().view(np.float32)
    assert np.array_equal(values_V2, np.stack([prob_G[:V], backoff_M], 1))


def keys_of(table, edges):
    """Return {x: edge}, with Python's integers."""
    return {scrambled(node << table.word_bits | word, table.key_bits): (node, word) for node, word in edges}


def rows_of(table, edges):
    """Return {slot: (x, slots past its home)} by the rule."""
    rows, slot = {}, -1
    for x in sorted(keys_of(table, edges)):
        home = 2 * (x * table.buckets >> table.key_bits)
        slot = max(home, slot + 1)
        rows[slot] = x, slot - home
    return rows


def tag_of(table, x, past):
    """Return the tag of a key that lies `past` slots past its home."""
    fraction = x * table.buckets % 2**table.key_bits  # of 2**key_bits
    return (past << table.check_bits) + (1 << table.check_bits) - 1 - (fraction << table.check_bits >> table.key_bits)


@given(drawn=RUNS, load=st.sampled_from([0.5, 0.9]))
def test_the_layout_by_its_rule(to_device, drawn, load):
    arrays, edges = trie_of(drawn[1], drawn[0]), edges_of(drawn)
    table = make_edges(*map(to_device, arrays), load)
    slots_E2, keys, rows = to_host(table.slots_E2), keys_of(table, edges), rows_of(table, edges)
    furthest = max((past for _, past in rows.values()), default=0)
    assert table.filter_bits == 64 - table.node_bits - table.check_bits - furthest.bit_length()
    expected = {}
    for slot, (x, past) in rows.items():  # nodes of the highest order have no children, so their filters are 0
        expected[slot] = tag_of(table, x, past) << table.node_bits + table.filter_bits | edges[keys[x]]
    assert {e: int(slots_E2[e, 0]) for e in range(len(slots_E2)) if slots_E2[e].any()} == expected
    assert len(slots_E2) % 2 == 0 and slots_E2[-1, 0] == 0
    for word, run in enumerate(drawn[1]):
        bits = {w * 0x9E3779B1 % 2**32 >> 26 for w in run}
        assert int(to_host(table.words_V2)[word, 0]) == sum(1 << bit for bit in bits)


def test_filters_of_longer_ngrams(to_device):
    """Four words; 0 1, 0 3, 2 2; 0 1 1, 0 1 3, 2 2 0: nodes 4 to 6 have two children, none and one."""
    word_G = np.array([0, 1, 2, 3, 1, 3, 2, 1, 3, 0], np.uint32)
    first_child_M = np.array([4, 6, 6, 7, 7, 9, 9, 10], np.uint32)
    table = make_edges(*map(to_device, (word_G, first_child_M, np.zeros(10, np.float32), np.zeros(7, np.float32))))
    table = table.map_arrays(to_host)
    slots_E2, bits = table.slots_E2, table.filter_bits
    found = {}
    for node, word in (0, 1), (0, 3), (2, 2), (4, 1), (4, 3), (6, 0):
        child, slot = find_edge(table, node, word)
        found[child] = int(slots_E2[slot, 0]) >> table.node_bits & (1 << bits) - 1
    one, three = 0x9E3779B1 * bits >> 32, (3 * 0x9E3779B1 & 0xFFFFFFFF) * bits >> 32
    assert one != three and found == {4: 1 << one | 1 << three, 5: 0, 6: 1, 7: 0, 8: 0, 9: 0}


@given(drawn=RUNS, load=st.sampled_from([0.5, 0.95]))
def test_a_search_ends_at_a_greater_key(drawn, load):
    """A search ends at the first slot that is empty or has no smaller key, even if its own key lies behind."""
    table = make_edges(*trie_of(drawn[1], drawn[0]), load)
    rows = rows_of(table, edges_of(drawn))
    for node in range(drawn[0]):
        for word in range(1 << table.word_bits):
            [x] = keys_of(table, [(node, word)])
            home = end = 2 * (x * table.buckets >> table.key_bits)
            while end in rows and rows[end][0] < x:
                end += 1
            slots_E2 = table.slots_E2.copy()
            for slot in range(end + 1, len(slots_E2)):
                tag = tag_of(table, x, slot - home) << table.node_bits + table.filter_bits
                slots_E2[slot, 0] = tag % 2**64 | 1
            there = end in rows and rows[end][0] == x
            assert find_edge(table._replace(slots_E2=slots_E2), node, word)[1] == (end if there else -1)


def test_keys_of_more_than_64_bits():
    class Long(np.ndarray):
        def __len__(self):
            return (1 << 33) + 1

    first_child_M = np.array([1 << 32]).view(Long)
    with pytest.raises(OverflowError, match="8,589,934,592 histories by 4,294,967,296 words need keys of 65 bits, and"):
        make_edges(np.zeros(1, np.uint32), first_child_M, None, None)


def test_layout_by_hand():
    """2**5 keys in 1, 8, 9, 33 buckets: 32, 4, 4, 1 keys a bucket; 9 / 32 apart, 3 bits tell fractions, not 2."""
    assert key_layout(4, 7, 9, 1) == (2, 5, 4, 5) and key_layout(4, 7, 9, 8) == (2, 5, 4, 2)
    assert key_layout(4, 7, 9, 9) == (2, 5, 4, 2) and key_layout(4, 7, 9, 7) == (2, 5, 4, 3)
    assert key_layout(5, 8, 8, 32) == (3, 6, 3, 1) and key_layout(1, 0, 1, 4) == (1, 2, 1, 1)
    assert key_layout(4, 7, 9, 33) == (2, 5, 4, 1)
    assert key_layout(2**20, 2**33, 2**34 + 1, 2**34) == (20, 53, 35, 19)


@given(keys=st.integers(2, 12), buckets=st.integers(1, 5000))
def test_fractions_tell_keys_of_a_bucket_apart(keys, buckets):
    """Bucket and fraction rise with the key, whatever the buckets."""
    *_, check_bits = key_layout(2, 2 ** (keys - 1), 2, buckets)
    x = np.arange(1 << keys, dtype=np.uint64) << np.uint64(64 - keys)
    bucket, fraction = wide_product(x, buckets)
    pairs = list(zip(bucket.tolist(), (fraction >> np.uint64(64 - check_bits)).tolist(), strict=True))
    assert pairs == sorted(set(pairs))


@pytest.mark.parametrize("buckets", [2**32 - 1, 2**32 + 11, 2**34])
@given(node=st.integers(0, 2**33 - 1), word=st.integers(0, 2**20 - 1))
def test_more_slots_and_nodes_than_32_bits_number(buckets, node, word):
    """All slots share one row of memory with the key at its home: its home matches, and other slots do not."""
    word_bits, key_bits, node_bits, check_bits = key_layout(2**20, 2**33, 2**35, buckets)
    x = scrambled(node << word_bits | word, key_bits)
    home, fraction = divmod(x * buckets, 2**key_bits)
    tag, child = 2**check_bits - 1 - (fraction << check_bits >> key_bits), 2**35 - 1 - node
    filter_bits = 64 - node_bits - check_bits - 1
    numbers = buckets, word_bits, key_bits, node_bits, check_bits, filter_bits
    entry = tag << node_bits + filter_bits | child
    slots_E2 = as_strided(np.array([entry, 0], np.uint64), (2 * buckets, 2), (0, 8))
    table = EdgeTable(slots_E2, np.zeros((1, 2), np.uint64), *numbers)
    assert edge_home(table, node, word) == (2 * home, tag)
    assert find_edge(table, node, word) == (child, 2 * home)
    empty = as_strided(np.array([0, 0], np.uint64), (2 * buckets, 2), (0, 8))
    assert find_edge(table._replace(slots_E2=empty), node, word) == (-1, -1)


@pytest.mark.parametrize("edges", [0, 1, 2, 60])
def test_few_edges_of_many_words(edges, to_device):
    """An entry has no bit for a filter unless there are more buckets than edges."""
    V = 1 << 22
    words = np.arange(7, V, 69_991, dtype=np.uint32)[:edges]
    first_child_M = np.full(V + 1, V, np.uint32)
    first_child_M[V:] += np.uint32(edges)
    word_G = np.concatenate([np.arange(V, dtype=np.uint32), words])
    arrays = word_G, first_child_M, np.zeros(V + edges, np.float32), np.zeros(V, np.float32)
    table = make_edges(*map(to_device, arrays))
    table = table.map_arrays(to_host)
    slots_E2, child = table.slots_E2, {(V - 1, int(w)): V + e for e, w in enumerate(words)}
    assert table.filter_bits > 0 and table.buckets > 4 and slots_E2[-1, 0] == 0
    asked = [*child, *((V - 1, w) for w in range(0, V, 9973)), (V - 2, 7)]
    found = [find_edge(table, *edge)[0] for edge in asked]
    assert found == [child.get(edge, -1) for edge in asked]


def test_values_that_no_table_holds():
    word_G, first_child_M, prob_G, backoff_M = trie_of([[0]], 1)
    with pytest.raises(TypeError, match="expected float32 but got uint8"):
        make_edges(word_G, first_child_M, prob_G.astype(np.uint8), backoff_M)
    with pytest.raises(ValueError, match="has 0 backoffs for 1 histories, and scores need them"):
        make_edges(word_G, first_child_M, prob_G, backoff_M[:0])
