"""Products of rows: right, and the same bits for any number of rows; of cuBLAS, too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.activations import singles, stored
from mgpu_ngram.kernels.decode.panels import row_products, to_panels
from mgpu_ngram.kernels.decode.tf32_parts import tf32_columns, tf32_parts


def test_a_product_by_hand():
    weight = np.array([[1, 2, 3], [10, 20, 30]], np.float32)
    panels = to_panels(weight)
    assert panels.shape == (2, 3)
    x, bias = np.array([[1, 1], [2, 0]], np.float32), np.array([0.5, 0, 0], np.float32)
    assert row_products(x, panels, bias).tolist() == [[11.5, 22, 33], [2.5, 4, 6]]
    assert row_products(x[:0], panels).shape == (0, 3)


def chains(x, weight):
    """Sums by rising column, each step rounded once: float64 holds a product of float32 numbers exactly."""
    sums = np.zeros((len(x), weight.shape[1]), np.float32)
    for k in range(x.shape[1]):
        sums = (x[:, k : k + 1].astype(np.float64) * weight[k] + sums).astype(np.float32)
    return sums


@given(st.integers(0, 2**32 - 1), st.integers(1, 110), st.integers(1, 40), st.integers(1, 150))
def test_each_number_is_a_chain_of_multiply_adds(seed, R, X, Y):
    rng = np.random.default_rng(seed)
    # Numbers of 12 bits: float64 rounds no step before float32 does.
    x, weight = (rng.integers(-(2**11), 2**11, shape).astype(np.float32) / 2**11 for shape in ((R, X), (X, Y)))
    bias = rng.normal(size=Y).astype(np.float32)
    np.testing.assert_array_equal(row_products(x, to_panels(weight), bias), chains(x, weight) + bias)


def test_rows_do_not_depend_on_other_rows():
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((200, 300), (300, 70)))
    panels = to_panels(weight)
    together = row_products(x, panels)
    np.testing.assert_allclose(together, x @ weight, rtol=1e-3, atol=1e-3)
    for first, end in ((0, 1), (3, 5), (7, 11), (50, 55), (1, 200)):
        np.testing.assert_array_equal(row_products(x[first:end], panels), together[first:end])


def test_tf32_parts_by_hand():
    tie = 1 + 2**-11  # between 1 and the next TF32 number; even is 1
    x = np.array([[1.5, 1 + 2**-12, tie, tie + 2**-10]], np.float32)
    high, low, again = tf32_parts(x).reshape(3, 4).tolist()
    assert high == again == [1.5, 1, 1, 1 + 2**-9]
    assert low == [0, 2**-12, 2**-11, -(2**-11)]


def test_tf32_parts_keep_single_precision():
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((20, 300), (300, 70)))
    parts, columns = tf32_parts(x), tf32_columns(weight)
    for array in parts, columns:
        assert not (array.view(np.uint32) & 0x1FFF).any()
    exact = x.astype(np.float64) @ weight
    error = np.abs(parts.astype(np.float64) @ columns - exact)
    assert 0 < error.max() < 2**-21 * (np.abs(x).astype(np.float64) @ np.abs(weight)).max()


@pytest.mark.gpu
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tf32", "tolerance"),
    [(np.float32, False, 1e-5), (np.float32, True, 3e-3), (np.float16, False, 3e-3), (np.uint16, False, 2e-2)],
)
@pytest.mark.parametrize(("X", "Y"), [(512, 3072), (48, 71), (1, 1), (1024, 10_000)])
def test_products_of_cublas(X, Y, dtype, tf32, tolerance, with_bias):
    import cupy

    from mgpu_ngram.kernels.decode.cublas import cublas_products, to_device_matrix

    rng = np.random.default_rng(0)
    x, weight, bias = (
        stored(rng.normal(size=shape).astype(np.float32), np.dtype(dtype)) for shape in ((1300, X), (X, Y), (Y,))
    )
    matrix, rows = to_device_matrix(cupy.asarray(weight), tf32), cupy.asarray(x)
    add = cupy.asarray(bias) if with_bias else None
    together = cublas_products(rows, matrix, add).get()
    exact = singles(x[:20]).astype(np.float64) @ singles(weight) + with_bias * singles(bias)
    np.testing.assert_allclose(singles(together[:20]), exact, rtol=tolerance, atol=tolerance * np.sqrt(X))
    for first, end in ((0, 1), (5, 7), (11, 75), (0, 128), (300, 1300)):
        np.testing.assert_array_equal(cublas_products(rows[first:end], matrix, add).get(), together[first:end])
    assert cublas_products(rows[:0], matrix, add).shape == (0, Y)
