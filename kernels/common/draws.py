"""Random numbers by counter; include/draws.cuh has the same functions for a GPU.

Number d = 0, 1, ... of item n of a run is mix64(mix64(mix64(seed + g) + n + g) + d + g), with g = 0x9e3779b97f4a7c15
(Steele et al., "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import numpy as np

from ..compile_cpu import njit
from .integer_hash import mix64

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64


@njit(nogil=True, cache=True, inline="always")
def stream_of(seed, number):
    """Return the stream of random numbers of an item."""
    return mix64(mix64(seed + GAMMA) + np.uint64(number) + GAMMA)


@njit(nogil=True, cache=True, inline="always")
def random_of(stream, draw):
    """Return 64 random bits: number `draw` of a stream."""
    return mix64(stream + np.uint64(draw) + GAMMA)


@njit(nogil=True, cache=True, inline="always")
def uniform_of(stream, draw):
    """Return `random_of` as a float64 of 53 bits, in [0, 1)."""
    return (random_of(stream, draw) >> np.uint64(11)) * 2.0**-53
