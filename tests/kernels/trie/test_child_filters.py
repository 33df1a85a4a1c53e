"""Filters of children: by hand, and with Python's integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.child_filters import child_filters, filter_bit


def filters(runs, symbols, filter_bits, to_device, dtype=np.uint32):
    word_G = np.array([word for run in runs for word in run], np.uint32)
    first_child_M = np.cumsum([0, *map(len, runs)]).astype(dtype)
    found = to_host(child_filters(to_device(word_G), to_device(first_child_M), symbols, filter_bits))
    assert found.dtype == np.uint64
    return found.tolist()


def test_by_hand(to_device):
    """Word 1 is 0x9E3779B1 / 2**32 = 0.618 of the way, word 2 0.236, word 3 0.854."""
    assert [int(filter_bit(w, 64)) for w in (0, 1, 2, 3)] == [0, 39, 15, 54]
    assert [int(filter_bit(w, 3)) for w in (0, 1, 2, 3)] == [0, 1, 0, 2]
    runs = [[1, 2], [], [0, 1, 2], [3], []]
    assert filters(runs, 2, 3, to_device) == [1 << 39 | 1 << 15, 0, 0b11, 0b100, 0]
    assert filters(runs, 5, 3, to_device)[2:] == [1 | 1 << 39 | 1 << 15, 1 << 54, 0]
    assert filters(runs, 0, 1, to_device) == [1, 0, 1, 1, 0]
    assert filters([], 0, 1, to_device) == []


@given(
    runs=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=80), max_size=8),
    symbols=st.integers(0, 9),
    filter_bits=st.integers(1, 64),
    dtype=st.sampled_from([np.uint32, np.int64]),
)
def test_every_child_and_no_other_sets_a_bit(to_device, runs, symbols, filter_bits, dtype):
    expected = []
    for m, run in enumerate(runs):
        bits = 64 if m < symbols else filter_bits
        expected.append(sum(1 << bit for bit in {word * 0x9E3779B1 % 2**32 * bits // 2**32 for word in run}))
    assert filters(runs, symbols, filter_bits, to_device, dtype) == expected


@pytest.mark.parametrize("filter_bits", [0, 65])
def test_filters_of_no_bits_or_too_many(filter_bits):
    with pytest.raises(ValueError, match=f"filters have {filter_bits} bits but must have 1 to 64"):
        child_filters(np.zeros(1, np.uint32), np.zeros(1, np.uint32), 0, filter_bits)
