"""Return hyperbolic tangents of sums of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .activations import number_format, singles, stored, tanh

VARIANTS = FORMATS


def tanh_sum(x_RY: Any, y_RY: Any = None, z_NY: Any = None, row_R: Any = None) -> Any:
    """Return tanh((x + y) + z[row]), (R, Y) of the dtype of x; arithmetic is float32.

    x_RY   (R, Y) float32, float16, or uint16: the bits of bfloat16
    y_RY   None or (R, Y) of the same dtype
    z_NY   None or (N, Y) of the same dtype; N is R if row_R is None
    row_R  None or (R,) int64, the row of z for each row

    All devices return the same bits, for any number of rows.
    """
    check.dtype(x_RY, np.float32, np.float16, np.uint16)
    R, Y = x_RY.shape
    rows = R if row_R is None else None
    for name, array, wanted in (("y_RY", y_RY, R), ("z_NY", z_NY, rows)):
        if array is not None:
            check.dtype(array, x_RY.dtype)
            if array.shape != (len(array) if wanted is None else wanted, Y):
                raise ValueError(f"{name} has shape {array.shape} but x_RY has shape {x_RY.shape}")
    if row_R is not None:
        check.dtype(row_R, np.int64)
        if z_NY is None or row_R.shape != (R,):
            raise ValueError(f"row_R has shape {row_R.shape} but needs z_NY and shape {(R,)}")
    return pick(_cpu, _cuda, x_RY=x_RY, y_RY=y_RY, z_NY=z_NY, row_R=row_R)(x_RY, y_RY, z_NY, row_R)


def _cpu(x_RY, y_RY, z_NY, row_R):
    x = singles(x_RY)
    if y_RY is not None:
        x = x + singles(y_RY)
    if z_NY is not None:
        x = x + singles(z_NY if row_R is None else z_NY[row_R])
    new_RY = np.empty(x.shape, np.float32)
    _tangents(np.ascontiguousarray(x).reshape(-1), new_RY.reshape(-1))
    return stored(new_RY, x_RY.dtype)


@njit(nogil=True, cache=True, error_model="numpy")
def _tangents(x_N, new_N):
    for i in range(len(x_N)):
        new_N[i] = tanh(x_N[i])


def _cuda(x_RY, y_RY, z_NY, row_R):
    import cupy

    x, *others = (np.uintp(0) if a is None else cupy.ascontiguousarray(a) for a in (x_RY, y_RY, z_NY, row_R))
    new_RY = cupy.empty(x.shape, x.dtype)
    if x.size:
        fn = kernel("decode/tanh_sum", "tanh_sum", **number_format(x))
        launch(fn, grid_for(x.size, 256), 256, (x, *others, *x.shape, new_RY))
    return new_RY


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of about `size` numbers; by size, of any dtype, with one to three parts."""
    Y, N = 1 + size % 53, 7
    R = -(-size // Y)
    dtype = np.dtype((np.float32, np.float16, np.float32, np.uint16)[size % 4])

    def numbers(*shape: int) -> np.ndarray:
        return stored(3 * rng.standard_normal(shape, np.float32), dtype)

    return {
        "x_RY": numbers(R, Y),
        "y_RY": numbers(R, Y) if size % 3 else None,
        "z_NY": (None, numbers(R, Y), numbers(N, Y))[size % 5 % 3],
        "row_R": rng.integers(0, N, R) if size % 5 % 3 == 2 else None,
    }
