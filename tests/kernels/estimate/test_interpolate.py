"""Probabilities by hand."""

import numpy as np

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.interpolate import interpolate


def test_probabilities_by_hand(to_device):
    """(count - discount) / total + gamma * lower; a count of 4 has the discount of 3."""
    prob_R = interpolate(
        to_device(np.array([1, 2, 3, 4])),
        to_device(np.array([0, 0, 1, 1], np.uint32)),
        to_device(np.array([2, 0, 1, 0])),
        to_device(np.array([4, 8], np.float32)),
        to_device(np.array([0.5, 0.25], np.float32)),
        to_device(np.array([0.25, 0.5, 1], np.float32)),
        (0.5, 1, 2),
    )
    assert to_host(prob_R).tolist() == [0.125 + 0.5, 0.25 + 0.125, 0.125 + 0.125, 0.25 + 0.0625]
