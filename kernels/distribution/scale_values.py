"""Convert log10 values to the scale of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.powers import LN_10, POWERS, power10
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

SCALES = ("prob", "log10", "ln")
MIN_POWER, MAX_POWER = -46.0, 39.0  # 10 ** x is 0 below, and infinity above, in float32
CONSTANTS = POWERS | {"LN_10": LN_10, "MIN_POWER": MIN_POWER, "MAX_POWER": MAX_POWER}
VARIANTS = (CONSTANTS,)


def scale_values(log10_G: Any, scale: str) -> Any:
    """Return log10 values in another scale.

    log10_G  (G,) float32, log10 of probabilities or backoffs; -inf is log10 of 0. No NaN
    scale    "log10": the same array; "ln": natural logarithms; "prob": 10 ** x

    Returns (G,) float32, computed in float64 by products and sums alone, so every device gives the same bits, and
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
    prob_G = np.empty(len(log10_G), np.float32)
    for g in range(len(log10_G)):
        prob_G[g] = np.float32(power10(min(max(np.float64(log10_G[g]), MIN_POWER), MAX_POWER)))
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
