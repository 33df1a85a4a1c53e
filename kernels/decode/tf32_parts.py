"""Write float32 numbers as sums of two TF32 numbers, so that tensor cores multiply them with single precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

LOW_BITS = 13  # bits of a float32 mantissa that TF32 lacks


def tf32_parts(x_RX: Any) -> Any:
    """Return (R, 3X) float32: the high parts of each row, its low parts, and its high parts again.

    x_RX  (R, X) float32, finite

    A high part is the TF32 number (10 bits of mantissa) nearest to x, a low part the one nearest to the rest; ties go
    to even. x (R, X) times W (X, Y) is the product of these rows with `tf32_columns` of W: high * low + low * high +
    high * high, smallest first. It leaves out low * low, 2^-22 of x * W. Source: Ootomo and Yokota, "Recovering single
    precision accuracy from Tensor Cores", 2022.
    """
    check.dtype(x_RX, np.float32)
    if x_RX.ndim != 2:
        raise ValueError(f"x_RX has shape {x_RX.shape} but must have rows and columns")
    return pick(_cpu, _cuda, x_RX=x_RX)(x_RX)


def tf32_columns(weight_XY: Any) -> Any:
    """Return (3X, Y) float32: the low parts of a matrix, its high parts, and its high parts again."""
    X = len(weight_XY)
    high_low_high = tf32_parts(weight_XY.reshape(1, -1)).reshape(3, *weight_XY.shape)
    return high_low_high[[1, 0, 2]].reshape(3 * X, -1)


def _cpu(x_RX):
    high = _nearest(x_RX)
    return np.concatenate([high, _nearest(x_RX - high), high], axis=1)


def _nearest(x_RX):
    """Return the TF32 numbers next to float32 numbers."""
    bits = np.ascontiguousarray(x_RX).view(np.uint32)
    half = np.uint32((1 << LOW_BITS - 1) - 1)
    return ((bits + half + (bits >> np.uint32(LOW_BITS) & np.uint32(1))) >> LOW_BITS << LOW_BITS).view(np.float32)


def _cuda(x_RX):
    import cupy

    R, X = x_RX.shape
    parts = cupy.empty((R, 3 * X), np.float32)
    if x_RX.size:
        fn = kernel("decode/tf32_parts", "tf32_parts")
        launch(fn, grid_for(x_RX.size, 256), 256, (cupy.ascontiguousarray(x_RX), R, X, parts))
    return parts


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of about `size` numbers of many magnitudes."""
    X = 1 + size % 53
    shape = -(-size // X), X
    numbers = rng.standard_normal(shape, np.float32) * np.float32(10) ** rng.integers(-8, 8, shape)
    return {"x_RX": numbers.astype(np.float32)}
