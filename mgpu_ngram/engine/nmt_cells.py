"""Layers of translation models on NumPy or CuPy arrays, many rows at once."""

from __future__ import annotations

from typing import Any

from mgpu_ngram.core.nmt_model import Affine, Cell, Gru, Lstm
from mgpu_ngram.kernels.dispatch import array_module


def apply(layer: Affine, x: Any) -> Any:
    """Return layer(x), (..., X) to (..., Y)."""
    y = x @ layer.weight_XY
    if layer.bias_Y is not None:
        y += layer.bias_Y
    if layer.scale_Y is not None:
        _normalise(y, layer)
    if layer.shift_Y is not None:
        y += layer.shift_Y
    return y


def _normalise(y: Any, layer: Affine) -> None:
    """Give each segment of the columns mean 0 and variance 1, times the scale, in place."""
    xp = array_module(y)
    first = 0
    for width in layer.segments:
        part = y[..., first : first + width]
        part -= part.mean(axis=-1, keepdims=True)
        variance = (part * part).mean(axis=-1, keepdims=True)
        part /= xp.sqrt(variance + variance.dtype.type(layer.epsilon))
        part *= layer.scale_Y[first : first + width]
        first += width


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), computed so that no exponential overflows."""
    half = x.dtype.type(0.5)
    y = array_module(x).tanh(x * half)
    y *= half
    y += half
    return y


def gru(cell: Gru, inputs: Any, h: Any) -> Any:
    """Return the next state (R, H); `inputs` is cell.input(x), or the constant of a transition."""
    H = h.shape[1]
    states = apply(cell.state, h)
    gates = sigmoid(inputs[..., : 2 * H] + states[:, : 2 * H])
    states[:, 2 * H :] *= gates[:, :H]
    proposal = array_module(h).tanh(states[:, 2 * H :] + inputs[..., 2 * H :])
    update = gates[:, H:]
    return proposal + update * (h - proposal)


def lstm(cell: Lstm, x: Any, inputs: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return the next (state, memory cell), (R, H) each; `inputs` is cell.input(x)."""
    xp, H = array_module(h), h.shape[1]
    if cell.mix_input is not None and cell.mix_state is not None:
        h = apply(cell.mix_state, h) * apply(cell.mix_input, x)
    sums = inputs + apply(cell.state, h)
    gates = sigmoid(sums[:, : 3 * H])
    c = gates[:, :H] * c + gates[:, H : 2 * H] * xp.tanh(sums[:, 3 * H :])
    return gates[:, 2 * H :] * xp.tanh(c), c


def run(layer: tuple[Cell, ...], x: Any, h: Any, c: Any, inputs: Any = None) -> tuple[Any, Any]:
    """Return the next (state, memory cell) of a layer, its transitions included; GRUs leave the memory cell alone.

    inputs  layer[0].input(x), if the caller has it
    """
    for i, cell in enumerate(layer):
        if isinstance(cell, Lstm):
            h, c = lstm(cell, x, apply(cell.input, x) if inputs is None else inputs, h, c)
        elif cell.input is None:
            h = gru(cell, cell.constant, h)
        else:
            h = gru(cell, inputs if i == 0 and inputs is not None else apply(cell.input, x), h)
    return h, c


def encode(layer: tuple[Cell, ...], x_TBX: Any, mask_TB1: Any, backward: bool = False) -> Any:
    """Return the states of a layer over sentences, (T, B, H); a masked position keeps the state before it."""
    xp = array_module(x_TBX)
    T, B, _ = x_TBX.shape
    first = layer[0]
    assert first.input is not None
    inputs_TBY = apply(first.input, x_TBX)
    H = (first.state.weight_XY.shape)[0]
    states_TBH = xp.empty((T, B, H), x_TBX.dtype)
    h = xp.zeros((B, H), x_TBX.dtype)
    c = xp.zeros((B, H), x_TBX.dtype)
    for t in range(T - 1, -1, -1) if backward else range(T):
        new_h, new_c = run(layer, x_TBX[t], h, c, inputs_TBY[t])
        h, c = xp.where(mask_TB1[t], new_h, h), xp.where(mask_TB1[t], new_c, c)
        states_TBH[t] = h
    return states_TBH
