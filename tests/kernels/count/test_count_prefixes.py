"""Count distinct n-grams of all orders from sorted keys, against collections.Counter."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.count_prefixes import SEGMENT, count_prefixes
from mgpu_ngram.kernels.dispatch import to_host

CASES = st.tuples(
    st.integers(1, 8),  # order
    st.integers(2, 25),  # bits
    st.lists(st.integers(0, 3), max_size=60),
)


def windows_of(codes, order):
    """Sorted windows, cut at the first 0."""
    return sorted(tuple(itertools.takewhile(bool, codes[t : t + order])) for t in range(len(codes)))


def counts_of(windows, weights, n):
    expected = Counter()
    for ngram, weight in zip(windows, weights, strict=True):
        if len(ngram) >= n:
            expected[ngram[:n]] += weight
    return sorted(expected.items())


def run(windows, order, bits, first, last, tools, weights=None):
    """Return [(n-gram, count), ...] for each order from first to last."""
    to_device, pack_keys, unpack_keys = tools
    columns = to_device(pack_keys(windows, order, bits))
    weights_R = None if weights is None else to_device(np.array(weights, np.int64))
    tables = count_prefixes(columns, bits, first, last, weights_R)
    found = []
    for n, (keys, counts) in zip(range(first, last + 1), tables, strict=True):
        assert keys.dtype == np.uint64 and counts.dtype == np.int64
        assert keys.shape == (check.num_columns(n, bits), len(counts))
        found.append(list(zip(unpack_keys(to_host(keys), n, bits), to_host(counts).tolist(), strict=True)))
    return found


@pytest.fixture(scope="session")
def tools(to_device, pack_keys, unpack_keys):
    return to_device, pack_keys, unpack_keys


def test_by_hand(tools):
    windows = [(), (1,), (1, 2), (1, 2), (1, 3), (2, 1)]
    first, second = run(windows, 2, 2, 1, 2, tools)
    assert first == [((1,), 4), ((2,), 1)]
    assert second == [((1, 2), 2), ((1, 3), 1), ((2, 1), 1)]
    (weighted,) = run(windows, 2, 2, 2, 2, tools, weights=[100, 50, 7, 8, 0, 1])
    assert weighted == [((1, 2), 15), ((1, 3), 0), ((2, 1), 1)]


def test_no_rows_and_no_words(tools):
    assert run([], 5, 19, 1, 5, tools) == [[]] * 5
    assert run([()] * 3, 5, 19, 1, 5, tools) == [[]] * 5


@given(CASES)
def test_every_order_against_counter(tools, case):
    order, bits, codes = case
    windows = windows_of(codes, order)
    expected = [counts_of(windows, [1] * len(windows), n) for n in range(1, order + 1)]
    assert run(windows, order, bits, 1, order, tools) == expected


@given(CASES, st.data())
def test_weights_and_first_order(tools, case, data):
    order, bits, codes = case
    first = data.draw(st.integers(1, order))
    last = data.draw(st.integers(first, order))
    windows = windows_of(codes, order)
    weights = data.draw(st.lists(st.integers(1, 2**40), min_size=len(windows), max_size=len(windows)))
    expected = [counts_of(windows, weights, n) for n in range(first, last + 1)]
    assert run(windows, order, bits, first, last, tools, weights) == expected


@pytest.mark.parametrize("R", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 7])
def test_runs_across_segments(R, tools):
    codes = np.minimum(np.random.default_rng(R).zipf(1.5, R), 200).tolist()
    windows = windows_of(codes, 3)
    expected = [counts_of(windows, [1] * R, n) for n in (1, 2, 3)]
    assert run(windows, 3, 8, 1, 3, tools) == expected
    assert run([(1, 1, 1)] * R, 3, 8, 1, 3, tools) == [[((1,) * n, R)] for n in (1, 2, 3)]


def test_more_orders_than_a_warp_has_lanes(tools):
    windows = windows_of([1, 2] * 30, 40)
    expected = [counts_of(windows, [1] * 60, n) for n in range(1, 41)]
    assert run(windows, 40, 2, 1, 40, tools) == expected
