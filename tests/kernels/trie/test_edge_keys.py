"""Keys of edges: by hand, and by Python's integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.edge_keys import edge_keys
from tests.support.edge_numbers import scrambled


@pytest.mark.parametrize("bits", [2, 3, 7, 8, 15, 16])
def test_scrambling_is_a_bijection(bits):
    assert sorted(scrambled(x, bits) for x in range(1 << bits)) == list(range(1 << bits))


def test_by_hand(to_device):
    """Two words; the first is followed by the second, the second by nothing; a bigram is followed by the first."""
    word_G, first_child_M = np.array([0, 1, 1, 0], np.uint32), np.array([2, 3, 3, 4], np.uint32)
    found = to_host(edge_keys(to_device(word_G), to_device(first_child_M), 1, 3))
    # Node 0 and word 1: 0b001; times the factors' last bits, 0b101 and 0b011: 5, then 5 ^ 2 = 7, 7 * 3 % 8 = 5, 5 ^ 2.
    # Node 2 and word 0: 0b100; 4 ^ 2 = 6, 6 * 5 % 8 = 6, 6 ^ 3 = 5, 5 * 3 % 8 = 7, 7 ^ 3.
    assert found.tolist() == [[7 << 61, 4 << 61], [2, 3]]
    assert edge_keys(to_device(word_G[:2]), to_device(np.array([2, 2], np.int64)), 1, 2).shape == (2, 0)


@given(st.data(), st.sampled_from([np.uint32, np.int64]))
def test_against_pythons_integers(to_device, data, dtype):
    V = data.draw(st.integers(1, 5))
    runs = data.draw(st.lists(st.lists(st.integers(0, V - 1), max_size=4), min_size=V, max_size=12))
    nodes = V + sum(map(len, runs))
    runs = runs[:nodes]
    words = [*range(V), *(w for run in runs for w in run)]
    word_bits = max(1, (V - 1).bit_length())
    key_bits = data.draw(st.integers(max(2, word_bits + (len(runs) - 1).bit_length()), 64))
    first_child_M = to_device(np.cumsum([V, *map(len, runs)]).astype(dtype))
    found = to_host(edge_keys(to_device(np.array(words, np.uint32)), first_child_M, word_bits, key_bits))
    edges = [(m, w) for m, run in enumerate(runs) for w in run]
    expected = [scrambled(m << word_bits | w, key_bits) << 64 - key_bits for m, w in edges]
    assert found.dtype == np.uint64 and found.tolist() == [expected, list(range(V, V + len(edges)))]
