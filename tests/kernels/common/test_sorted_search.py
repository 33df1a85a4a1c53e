"""A search in rising numbers is that of Python's bisect."""

from bisect import bisect_left

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.sorted_search import first_from


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
