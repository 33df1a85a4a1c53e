"""Compute logarithms of probabilities, the same on every device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import check
from ..common.powers import LOG10_E
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS: tuple[dict[str, Any], ...] = ({},)
TERMS = 11  # terms of the series of ln((1 + s) / (1 - s)), |s| < 0.172; the remainder is below 2**-56
LOG10_2 = math.log10(2)


def log10_values(values: Any) -> Any:
    """Return log10 of values.

    values  (R,) float32, 0 or positive normal numbers

    Returns (R,) float32, computed in float64 by the same sums and products on all devices and rounded once. The result
    is -inf for 0, and 0 for values above 1: lmplz clips probabilities that rounding has made too large.
    """
    check.dtype(values, np.float32)
    return pick(cpu=_cpu, cuda=_cuda, values=values)(values)


def _cpu(values):
    out = np.empty(len(values), np.float32)
    _log10(values.view(np.uint32), out)
    return out


@njit(nogil=True, cache=True, error_model="numpy")  # without a test for a divisor of 0, LLVM makes SIMD code
def _log10(bits_R, out):
    for r in range(len(bits_R)):
        exponent = np.int32(bits_R[r] >> np.uint32(23)) - np.int32(127)  # AVX-512 converts int32, not int64, fast
        fraction = 1.0 + np.float64(np.int32(bits_R[r] & np.uint32(0x7FFFFF))) * 2.0**-23
        is_above = fraction > 1.4142135623730951
        fraction = 0.5 * fraction if is_above else fraction
        s = (fraction - 1.0) / (fraction + 1.0)
        square, total = s * s, 0.0
        for k in range(TERMS - 1, -1, -1):
            total = total * square + 1.0 / (2 * k + 1)
        log = np.float64(exponent + np.int32(is_above)) * LOG10_2 + 2.0 * s * total * LOG10_E
        out[r] = min(log, 0.0) if bits_R[r] else -np.inf


def _cuda(values):
    import cupy

    R = len(values)
    out = cupy.empty(R, np.float32)
    if R:
        args = (values, np.float64(LOG10_2), np.float64(LOG10_E), R, out)
        launch(kernel("estimate/log10_values", "log10_values"), grid_for(R, 256), 256, args)
    return out


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    values = 10.0 ** rng.uniform(-30, 0.1, size)
    values[::7] = 1 - rng.integers(0, 99, len(values[::7])) * 2.0**-24
    values[::31] = 0
    return {"values": values.astype(np.float32)}
