"""Whole rows of mixtures beside values worked by hand and the equations in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.mixture.mixture_rows import example, mixture_rows


def test_a_row_by_hand(to_device):
    """Weights 1/8, 2/8, 1/8 of words and 4/8 of a distribution; the logits of the second row have no sum."""
    logits = np.log(np.array([[1, 2, 1, 4, 99]] * 2, np.float32))
    logits[1, 0] = np.nan
    rows = np.array([[[1, 0, 0]], [[1, 0, 0]]], np.float32)
    found = to_host(mixture_rows(to_device(logits), 3, to_device(rows)))
    np.testing.assert_allclose(found, [[5 / 8, 2 / 8, 1 / 8], [np.nan] * 3], rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5000))
def test_rows_of_the_equations(seed, size):
    logits_RX, words, rows_RNV = example(np.random.default_rng(seed), size).values()
    N = rows_RNV.shape[1]
    weights = np.exp(singles(logits_RX[:, : words + N]).astype(np.float64))
    weights /= weights.sum(1, keepdims=True)
    wanted = weights[:, :words] + np.einsum("rn,rnv->rv", weights[:, words:], singles(rows_RNV).astype(np.float64))
    np.testing.assert_allclose(mixture_rows(logits_RX, words, rows_RNV), wanted, rtol=1e-5, atol=1e-12)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"rows_RNV has shape \(2, 1, 4\) but logits of 3 words have 2 rows"):
        mixture_rows(np.zeros((2, 5), np.float32), 3, np.zeros((2, 1, 4), np.float32))
