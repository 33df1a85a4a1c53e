"""Activations beside float64, within the errors that their docstrings give."""

import numpy as np
import pytest

from mgpu_ngram.kernels.compile import njit
from mgpu_ngram.kernels.decode import activations
from mgpu_ngram.kernels.decode.activations import PARTS, exponential, sigmoid, singles, stored, sum_parts, tanh

X = np.concatenate([np.linspace(-20, 20, 100_001), np.geomspace(1e-38, 1, 10_001), [0.0, -0.0, 9.01, -9.01, np.inf]])
X = X.astype(np.float32)


def each(function, x):
    @njit()
    def apply(x, out):
        for i in range(len(x)):
            out[i] = function(x[i])

    out = np.empty_like(x)
    function.built()
    apply(x, out)
    return out


def test_tanh():
    exact = np.tanh(X.astype(np.float64))
    assert (np.abs(each(tanh, X) - exact) <= 6 * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_sigmoid():
    assert (np.abs(each(sigmoid, X) - 1 / (1 + np.exp(-X.astype(np.float64)))) < 4e-7).all()


def test_exponential():
    x = -np.abs(X[np.isfinite(X)])
    x = np.concatenate([x, np.linspace(-87, 0, 50_000).astype(np.float32)])
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(each(exponential, x) / exact - 1) < 3e-7 + 6e-8 * np.abs(x)).all()
    assert each(exponential, np.array([0, -87.01, -1e30, -np.inf], np.float32)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("function", [tanh, sigmoid, exponential])
def test_nan_stays(function):
    assert np.isnan(each(function, np.full(40, np.nan, np.float32))).all()


def test_sum_of_parts():
    parts = np.arange(PARTS, dtype=np.float32)
    assert sum_parts(parts) == PARTS * (PARTS - 1) / 2


def test_half_precision_rounds_ties_to_even():
    x = np.array([1, 1 + 2**-9, 1 + 3 * 2**-8, -(2**-133), 3.4e38, np.inf, -np.inf], np.float32)
    bits = stored(x, np.dtype(np.uint16))
    assert [hex(b) for b in bits] == ["0x3f80", "0x3f80", "0x3f82", "0x8001", "0x7f80", "0x7f80", "0xff80"]
    assert np.isnan(
        singles(
            stored(
                np.array([np.nan], np.float32).view(np.uint32).__or__(np.uint32(0x7FFFFFFF)).view(np.float32),
                np.dtype(np.uint16),
            )
        )
    ).all()
    assert stored(np.array([1 + 2**-11, 70000], np.float32), np.dtype(np.float16)).tolist() == [1, np.inf]
    assert activations.singles(np.array([0x3FC0], np.uint16)).tolist() == [1.5]
