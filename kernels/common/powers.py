"""Powers of 10 with the same bits on every device; include/powers.cuh has the same functions for a GPU."""

from __future__ import annotations

import math

import numpy as np

from ..compile_cpu import njit

LOG10_E, LN_10 = math.log10(math.e), math.log(10)
LOG2_10 = 3.321928094887362
LOG10_2_HIGH = 0.30102999566383914  # log10(2) cut to 42 bits after the point, so its product with k is exact
LOG10_2_LOW = 1.42050232272661e-13  # the rest
COEFFICIENTS = (  # ln(10) ** i / i!, of r ** i in 10 ** r; the next one adds under 2 ** -57 while |r| < 0.1506
    1.0, 2.302585092994046, 2.650949055239199, 2.034678592293476, 1.171255148912267, 0.5393829291955814,
    0.2069958486968681, 0.06808936507443707, 0.019597694626478524, 0.00501392883377544, 0.0011544997789984348,
    0.00024166672554424694, 4.6371516642572196e-05, 8.213412535439387e-06,
)  # fmt: skip
MIN_LOG10 = -45.15449934959718  # log10(2 ** -150): the probability is 0 in float32
EXPONENTS = 300.0  # weights are 10 ** -300 to 10 ** 300, or 0
POWERS = {  # the definitions that powers.cuh needs
    "LOG2_10": LOG2_10, "LOG10_2_HIGH": LOG10_2_HIGH, "LOG10_2_LOW": LOG10_2_LOW, "DEGREE": len(COEFFICIENTS) - 1,
    "COEFFICIENTS": ", ".join(map(repr, COEFFICIENTS)), "MIN_LOG10": MIN_LOG10, "EXPONENTS": EXPONENTS,
}  # fmt: skip


@njit(nogil=True, cache=True)
def power10(x):
    """Return 10 ** x = 2 ** k * 10 ** r in float64, with k the integer nearest to x / log10(2); |x| up to 300."""
    k = np.floor(x * LOG2_10 + 0.5)
    r = x - k * LOG10_2_HIGH - k * LOG10_2_LOW
    power = COEFFICIENTS[-1]
    for i in range(len(COEFFICIENTS) - 2, -1, -1):
        power = power * r + COEFFICIENTS[i]
    return power * np.int64(int(k + 1023) << 52).view(np.float64)  # the bits of 2 ** k


@njit(nogil=True, cache=True)
def raised(log10, exponent):
    """Return (10 ** log10) ** exponent in float64, 0 below 10 ** -300."""
    x = log10 * exponent
    return power10(min(x, EXPONENTS)) if x >= -EXPONENTS else 0.0
