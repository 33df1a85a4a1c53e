"""Private histograms and the count of raw bytes, against collections.Counter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.histogram_private import count_bytes, histogram_private
from mgpu_ngram.kernels.dispatch import to_host

every_K = pytest.mark.parametrize("histograms", [1, 2, 7])


def expected_bins(codes, order, symbols):
    windows = Counter(tuple(codes[t : t + order]) for t in range(len(codes) - order + 1))
    bins = np.zeros(symbols**order, np.int64)
    for ngram, count in windows.items():
        if 0 not in ngram:
            bins[sum((c - 1) * symbols ** (order - 1 - i) for i, c in enumerate(ngram))] = count
    return bins.tolist()


def run(tokens_T, order, symbols, histograms, lut=None):
    bins = histogram_private(tokens_T, order, symbols, lut, histograms)
    assert bins.dtype == np.uint32
    return to_host(bins).tolist()


@every_K
def test_by_hand(histograms, to_device):
    tokens_T = to_device(np.array([1, 2, 2, 0, 1, 2], np.uint32))
    assert run(tokens_T, 2, 2, histograms) == [0, 2, 0, 1]


@every_K
def test_streams_shorter_than_the_order(histograms, to_device):
    for codes in ([], [1], [1, 2]):
        assert run(to_device(np.array(codes, np.uint32)), 3, 2, histograms) == [0] * 8


@every_K
@given(order=st.integers(1, 4), codes=st.lists(st.integers(0, 4), max_size=60))
def test_against_counter(histograms, to_device, order, codes):
    expected = expected_bins(codes, order, 4)
    assert run(to_device(np.array(codes, np.uint32)), order, 4, histograms) == expected
    assert run(to_device(np.array(codes, np.uint8)), order, 4, histograms) == expected


@every_K
def test_more_bins_than_shared_memory_holds(histograms, to_device):
    codes = np.minimum(np.random.default_rng(3).zipf(1.2, 20_001), 400)  # 640,000 bytes of bins
    codes[::50] = 0
    expected = expected_bins(codes.tolist(), 2, 400)
    assert run(to_device(codes.astype(np.uint32)), 2, 400, histograms) == expected


@every_K
def test_bytes_through_a_table_of_codes(histograms, to_device):
    lut = np.zeros(256, np.uint16)
    lut[list(b"qcba")] = [1, 2, 3, 4]
    text = np.random.default_rng(4).choice(list(b"abc\nq"), 5003).astype(np.uint8)
    for order in (1, 2, 3):
        expected = expected_bins(lut[text[3:]].tolist(), order, 4)
        assert run(to_device(text)[3:], order, 4, histograms, lut) == expected


@given(st.binary(max_size=300))
def test_count_bytes(to_device, text):
    counts_A = count_bytes(to_device(np.frombuffer(text, np.uint8)))
    assert counts_A.dtype == np.int64
    assert to_host(counts_A).tolist() == [Counter(text)[v] for v in range(256)]


def test_count_bytes_of_many_and_of_a_slice(to_device):
    text = np.minimum(np.random.default_rng(5).zipf(1.3, 200_003), 255).astype(np.uint8)
    counts = Counter(text[5:].tolist())
    assert to_host(count_bytes(to_device(text)[5:])).tolist() == [counts[v] for v in range(256)]
