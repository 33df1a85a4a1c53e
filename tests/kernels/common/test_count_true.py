"""Count the True of masks as Python does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.count_true import count_true


def test_by_hand(to_device):
    assert count_true(to_device(np.array([True, False, True]))) == 2
    assert count_true(to_device(np.zeros(0, bool))) == 0
    assert count_true(to_device(np.eye(3, dtype=bool))) == 3
    assert count_true(to_device(np.eye(4, dtype=bool))[:, ::2]) == 2


@given(st.lists(st.booleans(), max_size=100), st.integers(0, 40), st.integers(0, 40))
def test_any_part_of_a_mask(to_device, values, first, left_out):
    part = slice(first, max(first, len(values) - left_out))
    assert count_true(to_device(np.array(values, bool))[part]) == sum(values[part])


@pytest.mark.parametrize("size", [2**20 + 5, 2**26 + 17])
def test_more_bytes_than_lanes(to_device, size):
    mask = np.ones(size, bool)
    mask[::3] = False
    assert count_true(to_device(mask)[1:]) == size - 1 - (size - 1) // 3


def test_numbers_are_refused(to_device):
    with pytest.raises(TypeError, match="expected bool but got int64"):
        count_true(to_device(np.arange(3)))
