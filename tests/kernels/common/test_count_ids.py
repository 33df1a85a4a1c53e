"""Count ids as Python's Counter does."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.count_ids import count_ids
from mgpu_ngram.kernels.dispatch import to_host


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_by_hand(to_device, dtype):
    found = count_ids(to_device(np.array([3, 0, 3], dtype)), 5)
    assert found.dtype == np.int64 and to_host(found).tolist() == [1, 0, 0, 2, 0]
    assert to_host(count_ids(to_device(np.zeros(0, dtype)), 2)).tolist() == [0, 0]


@given(st.lists(st.integers(0, 6), max_size=100), st.integers(0, 5), st.integers(1, 3))
def test_against_counter(to_device, ids, first, step):
    part = slice(first, None, step)
    found = to_host(count_ids(to_device(np.array(ids, np.uint32))[part], 8)).tolist()
    assert dict(enumerate(found)) == {v: Counter(ids[part])[v] for v in range(8)}


def test_one_id_many_times(to_device):
    ids = np.zeros(2**21 + 7, np.int64)
    ids[5::1000] = 9
    assert to_host(count_ids(to_device(ids), 10)).tolist() == [len(ids) - 2098, *[0] * 8, 2098]


def test_other_types_are_refused(to_device):
    with pytest.raises(TypeError, match="expected uint32 or int64 but got float64"):
        count_ids(to_device(np.zeros(3)), 4)
