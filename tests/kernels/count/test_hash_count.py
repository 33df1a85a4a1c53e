"""The hash table of n-grams, against collections.Counter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.hash_count import MIN_CAPACITY, hash_count
from mgpu_ngram.kernels.dispatch import to_host


def expected_counts(codes, order):
    windows = Counter(tuple(codes[t : t + order]) for t in range(len(codes) - order + 1))
    return {ngram: count for ngram, count in windows.items() if 0 not in ngram}


def run(tokens_T, codes, order, lut=None):
    """Return n-gram -> count; `codes` are the codes of the tokens."""
    positions_G, counts_G = (to_host(a) for a in hash_count(tokens_T, order, lut))
    assert positions_G.dtype == counts_G.dtype == np.int64
    ngrams = [tuple(codes[p : p + order]) for p in positions_G.tolist()]
    assert len(set(ngrams)) == len(ngrams), "an n-gram has two slots"
    return dict(zip(ngrams, counts_G.tolist(), strict=True))


def test_by_hand(to_device):
    codes = [1, 2, 2, 0, 1, 2]
    tokens_T = to_device(np.array(codes, np.uint32))
    assert run(tokens_T, codes, 1) == {(1,): 2, (2,): 3}
    assert run(tokens_T, codes, 2) == {(1, 2): 2, (2, 2): 1}
    assert run(tokens_T, codes, 4) == {}
    assert run(to_device(np.array([1], np.uint32)), [1], 2) == {}
    assert run(to_device(np.empty(0, np.uint32)), [], 1) == {}


@given(st.integers(1, 9), st.lists(st.integers(0, 3), max_size=80))
def test_against_counter(to_device, order, codes):
    expected = expected_counts(codes, order)
    assert run(to_device(np.array(codes, np.uint32)), codes, order) == expected
    assert run(to_device(np.array(codes, np.uint8)), codes, order) == expected


def test_bytes_through_a_table_of_codes(to_device):
    lut = np.zeros(256, np.uint16)
    lut[list(b"qcba")] = [1, 2, 3, 4]
    lut[ord("A")] = 4  # two bytes with one code are one symbol
    text = np.random.default_rng(4).choice(list(b"abcA\nq"), 5003).astype(np.uint8)
    codes = lut[text].tolist()
    assert run(to_device(text), codes, 3, lut) == expected_counts(codes, 3)


@pytest.mark.parametrize("order", [1, 2])
def test_growth_past_the_first_capacity(order, device, to_device):
    """More distinct n-grams than half of the first table, twice each: the table grows and stays exact."""
    distinct = MIN_CAPACITY if device == "cpu" else 5 << 19  # a GPU starts at 1 << 22
    half = np.random.default_rng(6).permutation(distinct).astype(np.uint32) + np.uint32(1)
    tokens_T = np.concatenate([half, [np.uint32(0)], half])
    positions_G, counts_G = (to_host(a) for a in hash_count(to_device(tokens_T), order))
    assert (counts_G == 2).all()
    first_G = np.sort(positions_G % (distinct + 1))
    assert (first_G == np.arange(distinct - order + 1)).all()
