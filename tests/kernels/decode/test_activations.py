"""Activations beside float64, within the errors that their docstrings give."""

import numpy as np
import pytest

from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.decode import activations
from mgpu_ngram.kernels.decode.activations import (
    GROW_LIMIT,
    PARTS,
    exponential,
    grown,
    sigmoid,
    singles,
    stored,
    sum_parts,
    tanh,
)
from mgpu_ngram.kernels.launch import FOLDER

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


def test_growth():
    x = np.linspace(-GROW_LIMIT, GROW_LIMIT, 100_001).astype(np.float32)
    exact = np.exp(2 * x.astype(np.float64))
    assert (np.abs(each(grown, x) / exact - 1) < 3e-7 + 1.2e-7 * np.abs(x)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("power", [0, 1, 60, 124])
def test_inverses_are_correctly_rounded_on_a_gpu(power):
    """Of all numbers from one power of 2 to the next."""
    cupy = pytest.importorskip("cupy")
    headers = "".join((FOLDER / "include" / f"{name}.cuh").read_text() for name in ("grid", "floats", "activations"))
    code = (
        headers
        + """
extern "C" __global__ void inverses(const float* x_N, i64 N, float* y_N) {
  GRID_STRIDE_LOOP(i, N) y_N[i] = inverse(x_N[i]);
}
"""
    )
    x = (np.arange(1 << 23, dtype=np.uint32) + np.uint32(127 + power << 23)).view(np.float32)
    x_N, y_N = cupy.asarray(x), cupy.empty(len(x), np.float32)
    cupy.RawModule(code=code, options=("-std=c++17",)).get_function("inverses")((1024,), (256,), (x_N, len(x), y_N))
    np.testing.assert_array_equal(y_N.get(), np.float32(1) / x)
