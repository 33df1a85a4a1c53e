"""A search in rising numbers is that of Python's bisect."""

from bisect import bisect_left

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.sorted_search import TOGETHER, buckets_of, find_in_buckets, first_from


def test_by_hand():
    numbers = np.array([1, 3, 3, 7], np.uint32)
    assert [first_from(numbers, 0, 4, number) for number in (0, 1, 2, 3, 4, 7, 8)] == [0, 0, 1, 1, 3, 3, 4]
    assert (first_from(numbers, 2, 4, 1), first_from(numbers, 2, 2, 9)) == (2, 2)


@given(numbers=st.lists(st.integers(0, 50)).map(sorted), number=st.integers(0, 50), data=st.data())
def test_against_bisect(numbers, number, data):
    first = data.draw(st.integers(0, len(numbers)))
    end = data.draw(st.integers(first, len(numbers)))
    found = first_from(np.array(numbers, np.uint32), first, end, number)
    assert found == bisect_left(numbers, number, first, end)


NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.integers(2**64 - 3, 2**64 - 1)


@given(numbers=st.lists(NUMBERS).map(sorted), sought=st.lists(NUMBERS, max_size=2 * TOGETHER + 1))
def test_buckets_against_bisect(numbers, sought):
    """Numbers may be equal, and need not be spread evenly."""
    here, sought = np.array(numbers, np.uint64), np.array([*sought, *numbers], np.uint64)
    found = find_in_buckets(here, buckets_of(here), sought)
    assert found.tolist() == [bisect_left(numbers, number) for number in sought.tolist()]


def test_buckets_of_hashes():
    """All hashes are found; buckets are small, and no more than the memory for them allows."""
    rng = np.random.default_rng(0)
    hashes = np.unique(rng.integers(0, 2**64, 100_003, np.uint64))
    starts = buckets_of(hashes)
    assert len(starts) == 2**15 + 1 and np.diff(starts).max() < 20
    order = rng.permutation(len(hashes))
    assert (find_in_buckets(hashes, starts, hashes[order]) == order).all()
