"""Normalised rows beside values worked by hand and float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.layer_norm import layer_norm
from mgpu_ngram.kernels.dispatch import to_host


def test_rows_by_hand(to_device):
    """Columns 0 to 2 have mean 2 and variance 8/3 - that is deviation sqrt(8/3) -, column 3 has variance 0."""
    x, scale = np.array([[0, 2, 4, 9]], np.float32), np.array([1, 1, 3, 5], np.float32)
    shift = np.array([0, 0, 1, 7], np.float32)
    found = to_host(layer_norm(*map(to_device, (x, scale, shift)), (3, 1), 1e-5))
    one = 2 / np.sqrt(8 / 3 + 1e-5)
    np.testing.assert_allclose(found, [[-one, 0, 3 * one + 1, 7]], rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_rows_of_the_equation(seed, R, first, second, shifted):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(R, first + second)) * 5 + 2).astype(np.float32)
    scale, shift = (rng.normal(size=first + second).astype(np.float32) for _ in range(2))
    found = layer_norm(x, scale, shift if shifted else None, (first, second), 1e-5)
    parts = np.split(x.astype(np.float64), [first], axis=1)
    normed = [(p - p.mean(1, keepdims=True)) / np.sqrt(p.var(1, keepdims=True) + 1e-5) for p in parts]
    expected = np.concatenate(normed, axis=1) * scale + shifted * shift
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)
    for r in range(R):  # alone, a row has the same bits
        alone = layer_norm(x[r : r + 1], scale, shift if shifted else None, (first, second), 1e-5)
        np.testing.assert_array_equal(alone[0], found[r])


def test_segments_must_cover_the_columns():
    x, scale = np.zeros((1, 4), np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match=r"segments \(3,\), scale_Y \(4,\) and shift_Y None do not fit rows of 4 col"):
        layer_norm(x, scale, None, (3,), 1e-5)
    with pytest.raises(ValueError, match=r"scale_Y \(3,\)"):
        layer_norm(x, scale[:3], None, (4,), 1e-5)
