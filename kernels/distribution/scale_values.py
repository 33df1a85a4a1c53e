"""Convert log10 values to the scale of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

SCALES = ("log10", "ln", "prob")
LN_10 = 2.302585092994046
LOG2_10 = 3.321928094887362
LOG10_2_HIGH = 0.30102999566383914  # log10(2) cut to 42 bits after the point, so its product with k is exact
LOG10_2_LOW = 1.42050232272661e-13  # the rest
LEAST, MOST = -46.0, 39.0  # 10 ** x is 0 below, and infinity above, in float32
COEFFICIENTS = (  # ln(10) ** i / i!, of r ** i in 10 ** r; the next one adds under 2 ** -57 while |r| < 0.1506
    1.0, 2.302585092994046, 2.650949055239199, 2.034678592293476, 1.171255148912267, 0.5393829291955814,
    0.2069958486968681, 0.06808936507443707, 0.019597694626478524, 0.00501392883377544, 0.0011544997789984348,
    0.00024166672554424694, 4.6371516642572196e-05, 8.213412535439387e-06,
)  # fmt: skip
CONSTANTS = {
    "LN_10": LN_10, "LOG2_10": LOG2_10, "LOG10_2_HIGH": LOG10_2_HIGH, "LOG10_2_LOW": LOG10_2_LOW,
    "LEAST": LEAST, "MOST": MOST, "DEGREE": len(COEFFICIENTS) - 1, "COEFFICIENTS": ", ".join(map(repr, COEFFICIENTS)),
}  # fmt: skip
VARIANTS = (CONSTANTS,)


def scale_values(log10_G: Any, scale: str) -> Any:
    """Return log10 values in another scale.

    log10_G  (G,) float32, log10 of probabilities or backoffs; -inf is log10 of 0. No NaN
    scale    "log10": the same array; "ln": natural logarithms; "prob": 10 ** x

    Returns (G,) float32, computed in float64 from products and sums alone, so every device gives the same bits, and
    rounded once. Results, also subnormal ones, are the nearest float32 except for about 1 of 10^8 values.
    """
    check.dtype(log10_G, np.float32)
    if scale not in SCALES:
        raise ValueError(f"scale is {scale!r} but must be one of {', '.join(SCALES)}")
    if scale == "log10":
        return log10_G
    return pick(cpu=_cpu, cuda=_cuda, log10_G=log10_G)(log10_G, scale)


def _cpu(log10_G, scale):
    return _to_ln(log10_G) if scale == "ln" else _to_prob(log10_G)


@njit(nogil=True, cache=True)
def _to_ln(log10_G):
    ln_G = np.empty(len(log10_G), np.float32)
    for g in range(len(log10_G)):
        ln_G[g] = np.float32(np.float64(log10_G[g]) * LN_10)
    return ln_G


@njit(nogil=True, cache=True)
def _to_prob(log10_G):
    """Return 10 ** x = 2 ** k * 10 ** r, with k the integer nearest to x / log10(2)."""
    prob_G = np.empty(len(log10_G), np.float32)
    for g in range(len(log10_G)):
        x = min(max(np.float64(log10_G[g]), LEAST), MOST)
        k = np.floor(x * LOG2_10 + 0.5)
        r = x - k * LOG10_2_HIGH - k * LOG10_2_LOW
        power = COEFFICIENTS[-1]
        for i in range(len(COEFFICIENTS) - 2, -1, -1):
            power = power * r + COEFFICIENTS[i]
        prob_G[g] = np.float32(power * np.int64(int(k + 1023) << 52).view(np.float64))  # the bits of 2 ** k
    return prob_G


def _cuda(log10_G, scale):
    import cupy

    G = len(log10_G)
    scaled_G = cupy.empty(G, np.float32)
    if G:
        fn = kernel("distribution/scale_values", f"to_{scale}", **CONSTANTS)
        launch(fn, grid_for(G, 256), 256, (log10_G, G, scaled_G))
    return scaled_G


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return values of a model, values that round to 0 or to subnormals, and special values; mostly for "prob"."""
    log10_G = (-rng.random(size) * rng.choice([1, 7, 50], size)).astype(np.float32)
    special_G = rng.random(size) < 0.05
    log10_G[special_G] = rng.choice([0.0, -0.0, 0.5, 38.53, 39, -45.2, -99, -np.inf], special_G.sum())
    return {"log10_G": log10_G, "scale": ("ln", "prob", "prob", "log10")[size % 4]}
