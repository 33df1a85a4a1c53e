"""Return the next states of gated recurrent units from the products of inputs and states."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_add
from ..launch import grid_for, kernel, launch
from .activations import number_format, sigmoid, singles, stored, tanh

VARIANTS = FORMATS


def gru_gates(
    inputs_NG: Any, states_RG: Any, h_RH: Any, row_R: Any = None, live_R: Any = None, out_RH: Any = None
) -> Any:
    """Return the next state of each row, in one pass over the products.

    inputs_NG  (N, 3H) float32, float16, or uint16: the bits of bfloat16. Products of inputs: reset gates, update gates
               and proposals, with biases. N is R; or 1, for all rows; or any number if row_R is given
    states_RG  (R, 3H) of the same dtype: products of states
    h_RH       (R, H) of the same dtype: states
    row_R      None or (R,) int64: the row of inputs_NG for each row
    live_R     None or (R,) bool: other rows keep their state
    out_RH     None or (R, H) of the same dtype, contiguous, for the result

    Returns (R, H): (1 - u) * c + u * h, where r, u = sigmoid(inputs + states) and c = tanh(inputs + r * states), in
    float32, then rounded (Cho et al., "Learning phrase representations", 2014, with the reset gate after the product).
    All devices return the same bits, for any number of rows.
    """
    for array in (inputs_NG, states_RG, h_RH, *(() if out_RH is None else (out_RH,))):
        check.dtype(array, h_RH.dtype if h_RH.dtype in (np.float16, np.uint16) else np.float32)
    (R, H), N = h_RH.shape, inputs_NG.shape[0]
    for name, array, dtype in (("row_R", row_R, np.int64), ("live_R", live_R, np.bool_)):
        if array is not None:
            check.dtype(array, dtype)
            _check_shape(name, array.shape, (R,))
    _check_shape("states_RG", states_RG.shape, (R, 3 * H))
    _check_shape("inputs_NG", inputs_NG.shape, (N if row_R is not None or N == 1 else R, 3 * H))
    if out_RH is not None:
        check.contiguous(out_RH=out_RH)
        _check_shape("out_RH", out_RH.shape, (R, H))
    arrays = {"inputs_NG": inputs_NG, "states_RG": states_RG, "h_RH": h_RH, "row_R": row_R, "live_R": live_R}
    return pick(_cpu, _cuda, **arrays, out_RH=out_RH)(*arrays.values(), out_RH)


def _check_shape(name, shape, wanted):
    if shape != wanted:
        raise ValueError(f"{name} has shape {shape} but the states of h_RH need {wanted}")


def _cpu(inputs_NG, states_RG, h_RH, row_R, live_R, out_RH):
    inputs, states, h = (np.ascontiguousarray(singles(a)) for a in (inputs_NG, states_RG, h_RH))
    R = len(h)
    if row_R is None:
        row_R = np.zeros(R, np.int64) if len(inputs) == 1 else np.arange(R)
    in_place = out_RH is not None and out_RH.dtype == np.float32
    new_RH = out_RH if in_place else np.empty_like(h)
    _step(inputs, states, h, row_R, np.ones(R, np.bool_) if live_R is None else live_R, new_RH)
    if out_RH is None:
        return stored(new_RH, h_RH.dtype)
    if not in_place:
        out_RH[...] = stored(new_RH, h_RH.dtype)
    return out_RH


@njit(nogil=True, cache=True, error_model="numpy")
def _step(inputs_NG, states_RG, h_RH, row_R, live_R, new_RH):
    R, H = h_RH.shape
    for r in range(R):
        x, s, h, new = inputs_NG[row_R[r]], states_RG[r], h_RH[r], new_RH[r]
        if not live_R[r]:
            for j in range(H):
                new[j] = h[j]
            continue
        x0, x1, x2, s0, s1, s2 = x[:H], x[H : 2 * H], x[2 * H :], s[:H], s[H : 2 * H], s[2 * H :]
        for j in range(H):
            proposal = tanh(multiply_add(s2[j], sigmoid(x0[j] + s0[j]), x2[j]))
            new[j] = multiply_add(sigmoid(x1[j] + s1[j]), h[j] - proposal, proposal)


def _cuda(inputs_NG, states_RG, h_RH, row_R, live_R, out_RH):
    import cupy

    inputs, states, h = (cupy.ascontiguousarray(a) for a in (inputs_NG, states_RG, h_RH))
    R, H = h.shape
    new_RH = cupy.empty((R, H), h.dtype) if out_RH is None else out_RH
    if h.size:
        stride = 0 if row_R is None and len(inputs) == 1 else 3 * H
        row, live = (np.uintp(0) if a is None else cupy.ascontiguousarray(a) for a in (row_R, live_R))
        fn = kernel("decode/gru_gates", "gru_gates", **number_format(h))
        launch(fn, grid_for(h.size, 256), 256, (inputs, stride, states, h, row, live, R, H, new_RH))
    return new_RH


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return products of about `size` numbers; by size, of any dtype, with a table of inputs and with ended rows."""
    H = 1 + size % 37
    R = -(-size // H)
    N = (R, 1, 5)[size % 3]
    dtype = (np.float32, np.float16, np.float32, np.uint16)[size % 4]

    def numbers(*shape: int) -> np.ndarray:
        return stored(4 * rng.standard_normal(shape, np.float32), np.dtype(dtype))

    return {
        "inputs_NG": numbers(N, 3 * H),
        "states_RG": numbers(R, 3 * H),
        "h_RH": numbers(R, H),
        "row_R": rng.integers(0, N, R) if N == 5 else None,
        "live_R": rng.random(R) < 0.8 if size % 2 else None,
    }
