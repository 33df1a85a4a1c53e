"""Sum weights of children: by hand, and against NumPy."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.sum_children import sum_children


def sums(to_device, logs, words, first_child, **settings):
    arrays = np.array(logs, np.float32), np.array(words, np.uint32), np.array(first_child, np.uint32)
    sums_G = to_host(sum_children(*map(to_device, arrays), **settings))
    assert sums_G.dtype == np.float64
    return sums_G


def test_by_hand(to_device):
    """Three words; children of 0 are nodes 3 and 4, of 1 none, of 2 node 5."""
    logs, words, first_child = [-1, -2, -1, 0, -1, -3], [0, 1, 2, 1, 2, 1], [3, 5, 5, 6]
    assert sums(to_device, logs, words, first_child) == pytest.approx([0.1, 0.11, 0.21, 1, 1.1, 0.001], rel=1e-15)
    assert sums(to_device, logs, words, first_child, left_out=1) == pytest.approx([0.1, 0.1, 0.2, 0, 0.1, 0])
    assert sums(to_device, logs, words, first_child, inverse=2) == pytest.approx([0.01, 0.0101, 0.0201, 1, 1.01, 1e-6])


def test_words_without_a_weight(to_device):
    """0 in float32, or a weight below 10^-300."""
    logs = [-99, -np.inf, -45.16, -45.15, -np.inf]
    found = sums(to_device, logs, range(5), [5])
    assert found[:3].tolist() == [0, 0, 0] and found[3] == found[4] == pytest.approx(10**-45.15, rel=1e-5)
    assert sums(to_device, logs, range(5), [5], inverse=1e-9) == pytest.approx([0, 0, 0, 1, 1])
    assert sums(to_device, [-44, -31, -30, -29], range(4), [4], inverse=10) == pytest.approx([0, 0, 1e-300, 1e-290])


@pytest.mark.parametrize("inverse", [1.0, 0.3, 6.5])
def test_sums_are_those_of_numpy(to_device, inverse):
    """Groups of 0 to 100 siblings, and one of 3,000."""
    rng = np.random.default_rng(2)
    first_child = np.cumsum([70, *rng.integers(0, 100, 50), 3000, 0, 1])
    logs = (-6 * rng.random(first_child[-1])).astype(np.float32)
    groups = np.split(10.0 ** (inverse * logs.astype(float)), first_child[:-1])
    expected = np.concatenate([np.cumsum(group) for group in groups])
    assert sums(to_device, logs, range(len(logs)), first_child, inverse=inverse) == pytest.approx(expected, rel=1e-13)


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="got 2 words and 3 probabilities; pass one of each per node"):
        sums(np.array, [0, 0, 0], [0, 1], [3])
    with pytest.raises(TypeError, match="expected uint32 or int64 but got float64"):
        sum_children(np.zeros(1, np.float32), np.zeros(1, np.uint32), np.zeros(2))
