"""Dense histograms, against collections.Counter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.histogram_global import histogram_global
from mgpu_ngram.kernels.dispatch import to_host

CASES = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(st.just(shape), st.lists(st.integers(0, shape[1]), max_size=60))
)


def expected_bins(codes, order, symbols):
    windows = Counter(tuple(codes[t : t + order]) for t in range(len(codes) - order + 1))
    bins = [0] * symbols**order
    for ngram, count in windows.items():
        if 0 not in ngram:
            bins[sum((c - 1) * symbols ** (order - 1 - i) for i, c in enumerate(ngram))] = count
    return bins


def run(tokens_T, order, symbols, lut=None):
    bins = histogram_global(tokens_T, order, symbols, lut)
    assert bins.dtype == np.uint32
    return to_host(bins).tolist()


def test_by_hand(to_device):
    tokens_T = to_device(np.array([1, 2, 2, 0, 1, 2], np.uint32))
    assert run(tokens_T, 1, 2) == [2, 3]
    assert run(tokens_T, 2, 2) == [0, 2, 0, 1]  # 11, 12, 21, 22
    assert run(tokens_T, 3, 2) == [0, 0, 0, 1, 0, 0, 0, 0]


def test_streams_shorter_than_the_order(to_device):
    for codes in ([], [1], [1, 2]):
        assert run(to_device(np.array(codes, np.uint32)), 3, 2) == [0] * 8
        assert run(to_device(np.array(codes, np.uint8)), 3, 2) == [0] * 8


@given(CASES)
def test_against_counter(to_device, case):
    (order, symbols), codes = case
    expected = expected_bins(codes, order, symbols)
    assert run(to_device(np.array(codes, np.uint32)), order, symbols) == expected
    assert run(to_device(np.array(codes, np.uint8)), order, symbols) == expected


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0, 1, 15])
def test_bytes_through_a_table_of_codes(order, offset, to_device):
    """`offset`: wide loads on a GPU need aligned memory, which a slice is not."""
    text = np.random.default_rng(order).choice(list(b"abc\nq"), 1000 + offset).astype(np.uint8)
    lut = np.zeros(256, np.uint16)
    lut[list(b"qcba")] = [1, 2, 3, 4]
    codes = lut[text[offset:]].tolist()
    assert run(to_device(text)[offset:], order, 4, lut) == expected_bins(codes, order, 4)
