"""Return the gradient of the loss of a mixture of distributions with respect to its logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import float32, float64

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..decode.activations import exponential, number_format, singles, stored
from ..decode.logit_rows import or_null
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from . import mixture_sums as sums
from .mixture_sums import Mixture, mixture_arrays, with_adjacent_columns

VARIANTS = tuple({"VECTOR": vector} | form for vector in (0, 1) for form in FORMATS)
THREADS, LOADS = 128, 4  # as in mixture_gradient.cu
WAVES = 1 << 20  # waves of blocks, so that each block has one tile, which is faster than loops


def mixture_gradient(mixture: Mixture, log_sum_R: Any, log_gold_R: Any, scale_R: Any) -> Any:
    """Return scale_R times the derivative of -ln P of each row's gold word by its logits, in one pass.

    mixture                as for `mixture_sums`
    log_sum_R, log_gold_R  (R,) float64, from `mixture_sums`
    scale_R                (R,) float32: the derivatives of a sum of losses by the loss of each row

    Returns (R, X) of the dtype of the logits, contiguous: weights minus posteriors. The posterior of a distribution is
    its share of the probability of the gold word; for a probability of 0, it is 0. Dropped blocks and columns after
    the distributions have 0. The terms are float32, then rounded. All devices return the same bits, except for NaN.
    """
    arrays = mixture_arrays(mixture) | {"log_sum_R": log_sum_R, "log_gold_R": log_gold_R, "scale_R": scale_R}
    for name, dtype in (("log_sum_R", np.float64), ("log_gold_R", np.float64), ("scale_R", np.float32)):
        check.dtype(arrays[name], dtype)
        if arrays[name].shape != mixture.gold_R.shape:
            raise ValueError(f"{name} has shape {arrays[name].shape} but the mixture needs {mixture.gold_R.shape}")
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(mixture, log_sum_R, log_gold_R, scale_R)


def _cpu(mixture, log_sum_R, log_gold_R, scale_R):
    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    gradient_RX = np.zeros(logits_RX.shape, np.float32)
    dropped_R = np.zeros(len(gold_R), np.uint8) if dropped_R is None else dropped_R
    rows = (np.ascontiguousarray(a) for a in (log_probs_RN, gold_R, dropped_R))
    of_rows = [np.ascontiguousarray(a) for a in (log_sum_R, log_gold_R, scale_R)]
    _subtract(Mixture(np.ascontiguousarray(singles(logits_RX)), words, *rows), *of_rows, gradient_RX)
    return stored(gradient_RX, logits_RX.dtype)


@njit(nogil=True, cache=True)
def _subtract(mixture, log_sum_R, log_gold_R, scale_R, gradient_RX):
    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    R, N = log_probs_RN.shape
    for r in range(R):
        z, gradient, scale, gold = logits_RX[r], gradient_RX[r], scale_R[r], gold_R[r]
        high = float32(log_sum_R[r])
        low = float32(log_sum_R[r] - float64(high))
        first = words if dropped_R[r] & 2 else 0
        end = words if dropped_R[r] & 1 else words + N
        for x in range(first, end):
            gradient[x] = scale * exponential((z[x] - high) - low)
        if log_gold_R[r] > -np.inf:
            if first == 0 and 0 <= gold < words:
                gradient[gold] -= scale * exponential(float32(float64(z[gold]) - log_gold_R[r]))
            for x in range(words, end):
                term = float64(z[x]) + float64(log_probs_RN[r, x - words])
                gradient[x] -= scale * exponential(float32(term - log_gold_R[r]))


def _cuda(mixture, log_sum_R, log_gold_R, scale_R):
    import cupy

    logits_RX, words, log_probs_RN, gold_R, dropped_R = mixture
    (R, X), N = logits_RX.shape, log_probs_RN.shape[1]
    logits, gradient_RX = with_adjacent_columns(logits_RX), cupy.empty((R, X), logits_RX.dtype)
    if R and X:
        size = logits.itemsize
        vector = not any(a.data.ptr % 16 or a.strides[0] % 16 for a in (logits, gradient_RX))
        others = [None if a is None else cupy.ascontiguousarray(a) for a in (log_probs_RN, gold_R, dropped_R)]
        of_rows = [cupy.ascontiguousarray(a) for a in (log_sum_R, log_gold_R, scale_R)]
        fn = kernel("mixture/mixture_gradient", "mixture_gradient", VECTOR=int(vector), **number_format(logits))
        args = logits, logits.strides[0] // size, words, N, *map(or_null, others), R, X, *of_rows, gradient_RX
        tiles = R * -(-X // (THREADS * LOADS * (16 // size)))
        launch(fn, grid_for(tiles, 1, waves=WAVES), THREADS, args)
    return gradient_RX


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return arguments of `mixture_sums`, with their sums."""
    mixture = sums.example(rng, size)["mixture"]
    log_sum_R, log_gold_R = sums.mixture_sums(mixture)
    return {
        "mixture": mixture,
        "log_sum_R": log_sum_R,
        "log_gold_R": log_gold_R,
        "scale_R": rng.standard_normal(len(mixture.gold_R), np.float32),
    }
