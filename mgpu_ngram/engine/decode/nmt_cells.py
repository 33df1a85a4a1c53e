"""Layers of translation models on NumPy or CuPy arrays. The bits of a row do not depend on the other rows."""

from __future__ import annotations

from typing import Any

from mgpu_ngram.core.nmt.model import Affine, Cell, Lstm, Stacks
from mgpu_ngram.kernels.decode.activations import singles, stored
from mgpu_ngram.kernels.decode.cublas import cublas_products
from mgpu_ngram.kernels.decode.gru_gates import gru_gates
from mgpu_ngram.kernels.decode.layer_norm import layer_norm
from mgpu_ngram.kernels.decode.panels import Panels, row_products
from mgpu_ngram.kernels.dispatch import array_module


def multiply(x_RX: Any, weight_XY: Any, bias_Y: Any = None) -> Any:
    """Return x W + bias, (R, Y), for a matrix of a `ReadyModel`."""
    return (row_products if isinstance(weight_XY, Panels) else cublas_products)(x_RX, weight_XY, bias_Y)


def apply(layer: Affine, x: Any) -> Any:
    """Return layer(x), (..., X) to (..., Y)."""
    y = multiply(x.reshape(-1, x.shape[-1]), layer.weight_XY, layer.bias_Y)
    if layer.scale_Y is not None:
        y = layer_norm(y, layer.scale_Y, layer.shift_Y, layer.segments, layer.epsilon)
    elif layer.shift_Y is not None:
        y += layer.shift_Y
    return y.reshape(*x.shape[:-1], y.shape[-1])


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), computed so that no exponential overflows."""
    half = x.dtype.type(0.5)
    y = array_module(x).tanh(x * half)
    y *= half
    y += half
    return y


def lstm(cell: Lstm, x: Any, inputs: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return the next (state, memory cell), (R, H) each; `inputs` is cell.input(x)."""
    xp, H = array_module(h), h.shape[1]
    if cell.mix_input is not None and cell.mix_state is not None:
        h = apply(cell.mix_state, h) * apply(cell.mix_input, x)
    sums = inputs + apply(cell.state, h)
    gates = sigmoid(sums[:, : 3 * H])
    c = gates[:, :H] * c + gates[:, H : 2 * H] * xp.tanh(sums[:, 3 * H :])
    return gates[:, 2 * H :] * xp.tanh(c), c


def run(
    layer: tuple[Cell, ...],
    x: Any,
    h: Any,
    c: Any,
    inputs: Any = None,
    row_R: Any = None,
    live_R: Any = None,
    out_RH: Any = None,
) -> tuple[Any, Any]:
    """Return the next (state, memory cell) of a layer with its transitions; GRUs do not change the memory cell.

    inputs  layer[0].input(x), if the caller has computed it; for a GRU with `row_R`, row_R selects its rows
    live_R  rows whose state changes; None: all
    out_RH  array for the next state; None: a new array
    """
    old_h, old_c = h, c
    for i, cell in enumerate(layer):
        out = out_RH if i == len(layer) - 1 else None
        if cell.input is not None and (i or inputs is None):
            inputs, row_R = apply(cell.input, x), None
        if isinstance(cell, Lstm):
            h, c = lstm(cell, x, inputs, h, c)
        elif cell.input is None:
            h = gru_gates(cell.constant[None], apply(cell.state, h), h, None, live_R, out)
        else:
            h = gru_gates(inputs, apply(cell.state, h), h, row_R, live_R, out)
    if live_R is not None and isinstance(layer[0], Lstm):
        where = array_module(h).where
        h, c = where(live_R[:, None], h, old_h), where(live_R[:, None], c, old_c)
    if out_RH is not None and h is not out_RH:
        out_RH[...] = h
    return h, c


def encode(
    layer: tuple[Cell, ...], x_TBX: Any, live_TB: Any, backward: bool = False, inputs: Any = None, row_TB: Any = None
) -> Any:
    """Return the states of a layer over sentences, (T, B, H); a position that is not live keeps the previous state.

    inputs, row_TB  layer[0].input of words, and the row of each position; x_TBX is not read. None: they are computed
    """
    T, B = live_TB.shape
    H = layer[0].state.weight_XY.shape[0]
    if inputs is None:
        assert layer[0].input is not None
        inputs_TBY = apply(layer[0].input, x_TBX)
    like = x_TBX if inputs is None else inputs
    states_TBH = array_module(like).empty((T, B, H), like.dtype)
    h = c = array_module(like).zeros((B, H), like.dtype)
    for t in range(T - 1, -1, -1) if backward else range(T):
        if inputs is None:
            h, c = run(layer, x_TBX[t], h, c, inputs_TBY[t], None, live_TB[t], states_TBH[t])
        else:
            h, c = run(layer, None, h, c, inputs, row_TB[t], live_TB[t], states_TBH[t])
    return states_TBH


def encode_on(
    layers: tuple[tuple[Cell, ...], ...], states_TBH: Any, live_TB: Any, backward: bool, stacks: Stacks
) -> Any:
    """Return the states of the last of `layers`; each layer runs on the states of the previous one."""
    for i, layer in enumerate(layers):
        turned = stacks.alternating and i % 2 == 0
        states_TBH = with_skip(encode(layer, states_TBH, live_TB, backward != turned), states_TBH, stacks.skip)
    return states_TBH


def with_skip(states: Any, below: Any, skip: bool) -> Any:
    """Return the states of a layer; `skip` adds the states of the layer below."""
    return stored(singles(states) + singles(below), states.dtype) if skip else states
