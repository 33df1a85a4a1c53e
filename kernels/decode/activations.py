"""Hyperbolic tangents, logistic functions and exponentials on the CPU; include/activations.cuh has the same arithmetic.

Each step is one float32 operation, so all devices give the same bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import float32

from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import array_module
from ..intrinsics import multiply_add, power_of_2
from ..launch import LANES
from .exponential_sums import LOG2_E

# tanh(x) = x P(x^2) / Q(x^2) with the least relative error on [0, 9.01], above which tanh rounds to 1.
P0, P1, P2, P3, P4 = map(
    float32, (1.0, 0.13380368053913116, 0.0034948070533573627, 2.0596204194589518e-05, 1.3336745929848348e-08)
)
Q0, Q1, Q2, Q3, Q4 = map(
    float32, (1.0, 0.46713683009147644, 0.02587401121854782, 0.00032843564986251295, 7.769242529320763e-07)
)
TANH_LIMIT = float32(9.01)
HALF = float32(0.5)
MIN_EXPONENT = float32(-87.0)  # exp(MIN_EXPONENT) is not subnormal
SHIFT = float32(1.5 * 2**23 + 127)  # adding it rounds to an integer, plus the bias of an exponent
# 2^f for f in [-1/2, 1/2] by the terms of its series
E1, E2, E3, E4, E5, E6 = (float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 7))
GROW_LIMIT = float32(21.5)  # exp(4 * GROW_LIMIT) < 2^125
PARTS = 128  # numbers i, i + 128, ... of a row add to part i, then the parts are added in pairs


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def tanh(x):
    """Return tanh(x); the error is below 6 units in the last place."""
    x = TANH_LIMIT if x > TANH_LIMIT else x
    x = -TANH_LIMIT if x < -TANH_LIMIT else x
    z = x * x
    p = multiply_add(multiply_add(multiply_add(multiply_add(P4, z, P3), z, P2), z, P1), z, P0)
    q = multiply_add(multiply_add(multiply_add(multiply_add(Q4, z, Q3), z, Q2), z, Q1), z, Q0)
    return (x * p) / q


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) with an error below 4e-7."""
    return multiply_add(HALF, tanh(HALF * x), HALF)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def exponential(x):
    """Return exp(x) for x <= 0; its relative error is below 3e-7 + 6e-8 |x|. It is 0 below -87."""
    limited = MIN_EXPONENT if x < MIN_EXPONENT else x
    whole = multiply_add(limited, LOG2_E, SHIFT)
    f = multiply_add(limited, LOG2_E, SHIFT - whole)
    p = multiply_add(multiply_add(multiply_add(E6, f, E5), f, E4), f, E3)
    p = multiply_add(multiply_add(multiply_add(p, f, E2), f, E1), f, float32(1))
    return float32(0) if x < MIN_EXPONENT else p * power_of_2(whole)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def grown(x):
    """Return exp(2 x) for |x| <= GROW_LIMIT, with the error of `exponential`.

    For other numbers the result is undefined.
    """
    whole = multiply_add(x, float32(2) * LOG2_E, SHIFT)
    f = multiply_add(x, float32(2) * LOG2_E, SHIFT - whole)
    p = multiply_add(multiply_add(multiply_add(E6, f, E5), f, E4), f, E3)
    p = multiply_add(multiply_add(multiply_add(p, f, E2), f, E1), f, float32(1))
    return p * power_of_2(whole)


@njit(nogil=True, cache=True)
def sum_parts(parts):
    """Return the sum of PARTS parts as a warp adds them, four for each lane; overwrites parts."""
    for lane in range(LANES):
        parts[lane] = (parts[4 * lane] + parts[4 * lane + 1]) + (parts[4 * lane + 2] + parts[4 * lane + 3])
    half = LANES // 2
    while half:
        for lane in range(half):
            parts[lane] += parts[lane + half]
        half //= 2
    return parts[0]


def singles(array):
    """Return an array as float32; uint16 holds the bits of bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32, copy=False)


def stored(array, dtype):
    """Return float32 numbers rounded to the nearest of a dtype, ties to even; uint16 holds the bits of bfloat16."""
    if dtype == np.uint16:
        bits = array.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return array_module(array).where(array == array, rounded, np.uint32(0x7FFF)).astype(np.uint16)
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def number_format(array):
    """Return the definitions that activations.cuh takes for a dtype."""
    return FORMATS[(np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16)).index(array.dtype)]
