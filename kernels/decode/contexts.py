"""Join the states of both directions to contexts of source positions, and take their means."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .activations import number_format, singles, stored

VARIANTS = FORMATS


def contexts(forward_TBH: Any, backward_TBH: Any, length_B: Any) -> tuple[Any, Any]:
    """Return the contexts of each sentence and their means.

    forward_TBH   (T, B, H) float32, float16, or uint16: the bits of bfloat16
    backward_TBH  of the same shape and dtype, or None
    length_B      (B,) int64, number of positions of each sentence, 1 to T

    Returns (context_BTC, mean_BC) of the dtype, C = 2H, or H without `backward_TBH`: the states of both directions side
    by side, 0 after the end of the sentence, and their sum by rising position over the length, in float32. All devices
    return the same bits, for any number of sentences and positions.
    """
    check.dtype(forward_TBH, np.float32, np.float16, np.uint16)
    check.dtype(length_B, np.int64)
    shape = forward_TBH.shape
    others = {"length_B": (length_B, shape[1:2])}
    if backward_TBH is not None:
        check.dtype(backward_TBH, forward_TBH.dtype)
        others["backward_TBH"] = backward_TBH, shape
    for name, (array, wanted) in others.items():
        if array.shape != wanted:
            raise ValueError(f"{name} has shape {array.shape} but forward_TBH needs {wanted}")
    run = pick(_cpu, _cuda, forward_TBH=forward_TBH, **{name: array for name, (array, _) in others.items()})
    return run(forward_TBH, backward_TBH, length_B)


def _cpu(forward_TBH, backward_TBH, length_B):
    T = len(forward_TBH)
    sides = [forward_TBH] if backward_TBH is None else [forward_TBH, backward_TBH]
    context_BTC = np.concatenate(sides, axis=2).transpose(1, 0, 2).copy()
    context_BTC[np.arange(T) >= length_B[:, None]] = 0
    total_BC = np.zeros(context_BTC[:, 0].shape, np.float32)
    for t in range(T):  # np.sum adds in an order that depends on T
        total_BC += singles(context_BTC[:, t])
    return context_BTC, stored(total_BC / length_B[:, None].astype(np.float32), context_BTC.dtype)


def _cuda(forward_TBH, backward_TBH, length_B):
    import cupy

    forward, length = cupy.ascontiguousarray(forward_TBH), cupy.ascontiguousarray(length_B)
    backward = np.uintp(0) if backward_TBH is None else cupy.ascontiguousarray(backward_TBH)
    T, B, H = forward.shape
    C = H if backward_TBH is None else 2 * H
    context_BTC, mean_BC = cupy.empty((B, T, C), forward.dtype), cupy.empty((B, C), forward.dtype)
    if mean_BC.size:
        fn = kernel("decode/contexts", "contexts", **number_format(forward))
        launch(fn, grid_for(mean_BC.size, 256), 256, (forward, backward, length, T, B, H, context_BTC, mean_BC))
    return context_BTC, mean_BC


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences of about `size` numbers; by size, of any dtype."""
    T, H = 1 + size % 11, 1 + size % 37
    B = -(-size // (T * H))
    dtype = np.dtype((np.float32, np.float16, np.float32, np.uint16)[size % 4])
    forward, backward = (stored(rng.standard_normal((T, B, H), np.float32), dtype) for _ in range(2))
    return {
        "forward_TBH": forward,
        "backward_TBH": backward if size % 3 else None,
        "length_B": rng.integers(1, T + 1, B),
    }
