"""Return rows with mean 0 and variance 1, scaled and shifted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import float32

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_add
from ..launch import grid_for, kernel, launch
from .activations import PARTS, number_format, singles, stored, sum_parts

VARIANTS = FORMATS


def layer_norm(x_RY: Any, scale_Y: Any, shift_Y: Any, segments: Sequence[int], epsilon: float) -> Any:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + shift of each row, separately for each segment of columns.

    x_RY      (R, Y) float32, float16, or uint16: the bits of bfloat16
    scale_Y   (Y,) of the same dtype
    shift_Y   None or (Y,) of the same dtype
    segments  widths, at least 1, whose sum is Y
    epsilon   at least 1e-30

    Returns (R, Y) of the same dtype; arithmetic is float32 (Ba et al., "Layer normalization", 2016). All devices return
    the same bits, for any number of rows.
    """
    check.dtype(x_RY, np.float32, np.float16, np.uint16)
    check.dtype(scale_Y, x_RY.dtype)
    if shift_Y is not None:
        check.dtype(shift_Y, x_RY.dtype)
    Y = x_RY.shape[1]
    given = [a for a in (scale_Y, shift_Y) if a is not None]
    if sum(segments) != Y or min(segments, default=1) < 1 or any(a.shape != (Y,) for a in given):
        shifts = None if shift_Y is None else shift_Y.shape
        raise ValueError(
            f"segments {tuple(segments)}, scale_Y {scale_Y.shape} and shift_Y {shifts} do not fit rows of {Y} columns"
        )
    run = pick(_cpu, _cuda, x_RY=x_RY, scale_Y=scale_Y, shift_Y=shift_Y)
    return run(x_RY, scale_Y, shift_Y, np.cumsum([0, *segments]), float32(epsilon))


def _cpu(x_RY, scale_Y, shift_Y, edges, epsilon):
    x, scale = (np.ascontiguousarray(singles(a)) for a in (x_RY, scale_Y))
    shift = np.zeros_like(scale) if shift_Y is None else np.ascontiguousarray(singles(shift_Y))
    new_RY = np.empty_like(x)
    _normalise(x, scale, shift, edges, epsilon, new_RY)
    return stored(new_RY, x_RY.dtype)


@njit(nogil=True, cache=True, error_model="numpy")
def _normalise(x_RY, scale_Y, shift_Y, edges, epsilon, new_RY):
    parts = np.empty(PARTS, np.float32)
    for r in range(len(x_RY)):
        for k in range(len(edges) - 1):
            first, end = edges[k], edges[k + 1]
            x, new, width = x_RY[r, first:end], new_RY[r, first:end], float32(end - first)
            parts[:] = 0
            for start in range(0, len(x), PARTS):
                part = x[start : start + PARTS]
                for i in range(len(part)):
                    parts[i] += part[i]
            mean = sum_parts(parts) / width
            parts[:] = 0
            for start in range(0, len(x), PARTS):
                part = x[start : start + PARTS]
                for i in range(len(part)):
                    difference = part[i] - mean
                    parts[i] = multiply_add(difference, difference, parts[i])
            factor = float32(1) / float32(math.sqrt(sum_parts(parts) / width + epsilon))
            scale, shift = scale_Y[first:end], shift_Y[first:end]
            for i in range(len(x)):
                new[i] = multiply_add((x[i] - mean) * factor, scale[i], shift[i])


def _cuda(x_RY, scale_Y, shift_Y, edges, epsilon):
    import cupy

    x, scale = (cupy.ascontiguousarray(a) for a in (x_RY, scale_Y))
    shift = np.uintp(0) if shift_Y is None else cupy.ascontiguousarray(shift_Y)
    R, Y = x.shape
    new_RY = cupy.empty((R, Y), x.dtype)
    fn = kernel("decode/layer_norm", "layer_norm", **number_format(x))
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if R:
            launch(fn, grid_for(32 * R, 128), 128, (x, scale, shift, R, Y, first, end, epsilon, new_RY))
    return new_RY


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of about `size` numbers; by size, of any dtype and of one or two segments."""
    Y = 2 + size % 301
    dtype = np.dtype((np.float32, np.float16, np.float32, np.uint16)[size % 4])

    def numbers(*shape: int) -> np.ndarray:
        return stored(1 + 3 * rng.standard_normal(shape, np.float32), dtype)

    return {
        "x_RY": numbers(-(-size // Y), Y),
        "scale_Y": numbers(Y),
        "shift_Y": numbers(Y) if size % 2 else None,
        "segments": (Y,) if size % 3 else (1, Y - 1),
        "epsilon": 1e-5,
    }
