"""Logarithms, rounded once."""

import math

import numpy as np

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.log10_values import log10_values


def test_logarithms_by_hand(to_device):
    """log10(0) is -inf, and values that rounding has made larger than 1 count as 1."""
    values = np.array([1, 0.1, 10**-0.5, 0, 1.0000001, 1.5, np.finfo(np.float32).tiny], np.float32)
    got = to_host(log10_values(to_device(values)))
    assert got.tolist() == [0, -1, -0.5, -np.inf, 0, 0, np.float32(-37.92978)]


def test_logarithms_are_rounded_once(to_device):
    values = np.random.default_rng(0).random(5000, np.float32) * np.float32(0.9999) + np.float32(1e-9)
    expected = [np.float32(math.log10(v)) for v in values.tolist()]
    assert to_host(log10_values(to_device(values))).tolist() == expected
