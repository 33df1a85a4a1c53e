"""Sum values of children: by hand, and against NumPy."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.sum_siblings import sum_siblings


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_by_hand(dtype, to_device):
    """Children of 0 are nodes 5 and 6, of 1 none, of 2 node 7."""
    arrays = np.array([0.5, 0.25, 4.0]), np.array([5, 7, 7, 8], dtype)
    assert to_host(sum_siblings(*map(to_device, arrays))).tolist() == [0.75, 0, 4]


def test_sums_are_those_of_numpy(to_device):
    """Groups of 0 to 100 siblings, and one of 3,000."""
    rng = np.random.default_rng(2)
    first_child = np.cumsum([70, *rng.integers(0, 100, 50), 3000, 0, 1])
    values = rng.random(first_child[-1] - 70)
    expected = [group.sum() for group in np.split(values, first_child[1:-1] - 70)]
    found = to_host(sum_siblings(to_device(values), to_device(first_child)))
    assert found == pytest.approx(expected, rel=1e-13)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="expected float64 but got float32"):
        sum_siblings(np.zeros(1, np.float32), np.zeros(2, np.int64))
