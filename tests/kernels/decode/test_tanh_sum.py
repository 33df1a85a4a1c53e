"""Tangents of sums beside values worked by hand and float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.tanh_sum import tanh_sum
from mgpu_ngram.kernels.dispatch import to_host


def test_sums_by_hand(to_device):
    x, y, z = ([[0.5, -3]], [[0.25, 3]], [[9, 9], [0.25, 0.125]])
    arrays = [to_device(np.array(a, np.float32)) for a in (x, y, z)]
    found = to_host(tanh_sum(*arrays, to_device(np.array([1]))))
    np.testing.assert_allclose(found, np.tanh([[1, 0.125]]), rtol=1e-6)
    np.testing.assert_allclose(to_host(tanh_sum(arrays[0])), np.tanh(x), rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(1, 80), st.booleans(), st.sampled_from([0, 1, 2]))
def test_sums_of_rows(seed, R, Y, second, third):
    rng = np.random.default_rng(seed)
    x, y, z = (rng.normal(size=(n, Y)).astype(np.float32) for n in (R, R, R if third < 2 else 3))
    row = rng.integers(0, 3, R) if third == 2 else None
    found = tanh_sum(x, y if second else None, z if third else None, row)
    total = x.astype(np.float64) + second * y + (0 if third == 0 else z[row] if third == 2 else z)
    np.testing.assert_allclose(found, np.tanh(total), rtol=1e-4, atol=1e-6)


def test_shapes_are_checked():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"y_RY has shape \(1, 3\) but x_RY has shape \(2, 3\)"):
        tanh_sum(x, x[:1])
    with pytest.raises(ValueError, match=r"z_NY has shape \(2, 2\)"):
        tanh_sum(x, None, x[:, :2])
    with pytest.raises(ValueError, match=r"row_R has shape \(1,\) but needs z_NY and shape \(2,\)"):
        tanh_sum(x, None, x, np.zeros(1, np.int64))
