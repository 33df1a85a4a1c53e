"""Scales of values: special values by hand, and the nearest float32 from exact decimal arithmetic."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.scale_values import scale_values

MIN_SUBNORMAL = 2.0**-149


def scaled(values, scale, to_device):
    return to_host(scale_values(to_device(np.array(values, np.float32)), scale))


def assert_nearest(found, exact, value):
    """Assert that no float32 is nearer to the exact number (a Decimal)."""
    assert found.dtype == np.float32 and np.isfinite(found)
    below, above = (Decimal(float(np.nextafter(found, np.float32(side)))) for side in (-np.inf, np.inf))
    middle = Decimal(float(found))
    assert (below + middle) / 2 <= exact <= (middle + above) / 2, f"{value!r} became {found!r}"


def test_by_hand(to_device):
    values = [0.0, -0.0, 1, 2, -1, -99, -46, -np.inf, 38, 39, 1e30]
    assert scaled(values, "prob", to_device).tolist() == [
        1, 1, 10, 100, float(np.float32(0.1)), 0, 0, 0, float(np.float32(1e38)), np.inf, np.inf,
    ]  # fmt: skip
    ln = scaled([0.0, -0.0, 1, -1, -np.inf], "ln", to_device)
    assert ln.tolist() == [0, 0, float(np.float32(2.302585093)), float(np.float32(-2.302585093)), -np.inf]
    assert np.signbit(ln).tolist() == [False, True, False, True, True]


def test_log10_is_the_same_array(to_device):
    array = to_device(np.array([-1, -2], np.float32))
    assert scale_values(array, "log10") is array


def test_where_numbers_become_subnormal_and_zero(to_device):
    """Half of the least subnormal number is 10 ** -45.15450; greater numbers round up to the least subnormal."""
    assert scaled([-45.1545, -45.1546, -44.9, -44.8], "prob", to_device).tolist() == [
        MIN_SUBNORMAL, 0, MIN_SUBNORMAL, MIN_SUBNORMAL,
    ]  # fmt: skip
    assert scaled([-44.5], "prob", to_device).tolist() == [2 * MIN_SUBNORMAL]


def samples(rng, size):
    """Return values of models and far beyond, values where the power of 2 changes, and neighbours of whole numbers."""
    edges = np.log10(2) * (rng.integers(-149, 4, size) + rng.choice([0, 0.5], size))
    whole = rng.integers(-45, 2, size).astype(np.float64)
    near = (1 + rng.integers(-3, 4, size) * 2.0**-24) * np.concatenate([edges, whole])[rng.permutation(2 * size)[:size]]
    small = -(10.0 ** rng.uniform(-44, 0, size))
    values = np.concatenate([1 - 46 * rng.random(size), -9 * rng.random(size), near, small])
    return values.astype(np.float32)


@pytest.mark.parametrize("scale", ["prob", "ln"])
def test_every_value_is_the_nearest(scale, to_device):
    """The hardest of very many to round: nearly halfway between two float32 numbers."""
    values = samples(np.random.default_rng(1), 100_000)
    about = 10.0 ** values.astype(np.float64) if scale == "prob" else values * np.log(10)
    rounded = about.astype(np.float32)
    values = values[np.argsort(-np.abs(about - rounded) / np.spacing(np.abs(rounded)))[:4000]]
    found = scaled(values, scale, to_device)
    with localcontext(prec=50):
        ln_10 = Decimal(10).ln()
        for value, result in zip(values.tolist(), found, strict=True):
            exact = Decimal(10) ** Decimal(value) if scale == "prob" else Decimal(value) * ln_10
            assert_nearest(result, exact, value)


def test_probabilities_rise_with_their_logs(to_device):
    values = np.sort(samples(np.random.default_rng(2), 50_000))
    assert np.all(np.diff(scaled(values, "prob", to_device)) >= 0)


@pytest.mark.parametrize("size", [0, 1, 31, 257, 5000])
@pytest.mark.parametrize("scale", ["prob", "ln"])
def test_each_value_alone(size, scale, to_device):
    """Neither the size of an array nor the position in it changes a value."""
    values = samples(np.random.default_rng(size), 1 + size // 4)[:size]
    found = scaled(values, scale, to_device)
    assert found.shape == values.shape
    for i in range(0, size, 61):
        assert scaled(values[i : i + 1], scale, to_device).tobytes() == found[i : i + 1].tobytes()


def test_what_is_refused():
    with pytest.raises(ValueError, match="scale is 'log2' but must be one of prob, log10, ln"):
        scale_values(np.zeros(1, np.float32), "log2")
    with pytest.raises(TypeError, match="expected float32 but got float64"):
        scale_values(np.zeros(1), "prob")
