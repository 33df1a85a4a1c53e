"""Return whole rows of a mixture of distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.float_formats import FORMATS
from ..compile_cpu import njit
from ..decode.activations import number_format, singles, stored
from ..dispatch import pick
from ..intrinsics import multiply_add
from ..launch import grid_for, kernel, launch
from .mixture_sums import softmax_sums, with_adjacent_columns
from .mixture_top import softmax

ROW_FORMATS = tuple({f"{name}_ROWS": value for name, value in form.items()} for form in FORMATS)
VARIANTS = (
    *({"VECTOR": 1} | form | rows for form, rows in zip(FORMATS, ROW_FORMATS, strict=True)),
    {"VECTOR": 0} | ROW_FORMATS[1],
    {"VECTOR": 0} | FORMATS[1],
)
THREADS, TILE = 256, 4096  # threads and words of a block; as in mixture_rows.cu


def mixture_rows(logits_RX: Any, words: int, rows_RNV: Any) -> Any:
    """Return the probability of every word by a mixture, (R, V) float32, in one pass after `softmax_sums`.

    logits_RX  (R, X) as in `Mixture`: logits of `words` words, then of N count distributions, then columns that are not
               read. Fastest if each row of all arrays starts at a multiple of 16 bytes
    rows_RNV   (R, N, V) probabilities of the words by the count distributions: float32, float16, or uint16: the bits
               of bfloat16

    The probability of word w is weight_w + sum of weight_i rows_RNV[r, i, w], where the weights are the softmax of the
    logits. Products and sums are float32, in the order of the distributions. A row whose softmax has no sum, as
    defined in `mixture_sums`, is NaN. All devices return the same bits, except for NaN.
    """
    check.dtype(logits_RX, np.float32, np.float16, np.uint16)
    check.dtype(rows_RNV, np.float32, np.float16, np.uint16)
    run = pick(cpu=_cpu, cuda=_cuda, logits_RX=logits_RX, rows_RNV=rows_RNV)
    shape = rows_RNV.shape
    if len(shape) != 3 or shape[0] != len(logits_RX) or shape[2] != words:
        raise ValueError(f"rows_RNV has shape {shape} but logits of {words} words have {len(logits_RX)} rows")
    return run(logits_RX, words, rows_RNV, softmax_sums(logits_RX, words, shape[1]))


def _cpu(logits_RX, words, rows_RNV, log_sum_R):
    (R, N, V), z_RX = rows_RNV.shape, np.ascontiguousarray(singles(logits_RX))
    probs_RV, prob_X = np.empty((R, V), np.float32), np.empty(words + N, np.float32)
    for r in range(R):
        softmax(z_RX[r, : words + N], log_sum_R[r], prob_X)
        _add_rows(prob_X, np.ascontiguousarray(singles(rows_RNV[r])), probs_RV[r])
    return probs_RV


@njit(nogil=True, cache=True)
def _add_rows(prob_X, rows_NV, prob_V):
    N, V = rows_NV.shape
    prob_V[:] = prob_X[:V]
    for n in range(N):
        weight = prob_X[V + n]
        for v in range(V):
            prob_V[v] = multiply_add(weight, rows_NV[n, v], prob_V[v])


def _cuda(logits_RX, words, rows_RNV, log_sum_R):
    import cupy

    R, N, V = rows_RNV.shape
    probs_RV = cupy.empty((R, V), np.float32)
    if probs_RV.size:
        logits, rows = with_adjacent_columns(logits_RX), rows_RNV
        strides = [stride // rows.itemsize for stride in rows.strides]
        if N and (strides[2] != 1 or min(strides) < 0):
            rows = rows.copy()
            strides = [N * V, V, 1]
        row_bytes = (logits.strides[0], probs_RV.strides[0], *(rows.strides[:2] if N else ()))
        pointers = (array.data.ptr for array in (logits, probs_RV, rows))
        vector = not any(at % 16 for at in (*row_bytes, *pointers))
        of_rows = {f"{name}_ROWS": value for name, value in number_format(rows).items()}
        fn = kernel("mixture/mixture_rows", "mixture_rows", VECTOR=int(vector), **number_format(logits), **of_rows)
        stride = logits.strides[0] // logits.itemsize
        args = logits, stride, words, N, rows, *strides[:2], R, log_sum_R, probs_RV
        launch(fn, grid_for(R * -(-V // TILE), 1), THREADS, args)
    return probs_RV


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows of `size` words; by size, of any dtypes, with 0 to 3 count distributions."""
    R, words, N = size % 3 + (size > 1), max(1, size), size % 4
    logits_RX = 3 * rng.standard_normal((R, words + N + size % 9), np.float32)
    logits_RX[rng.random(logits_RX.shape) < 0.01] = -np.inf
    logits_RX[:, 0] = 1
    kinds = np.float32, np.float16, np.uint16
    first, second = (np.dtype(kinds[number % 3]) for number in (size // 2, size // 5))
    rows_RNV = rng.random((R, N, words), np.float32)
    return {"logits_RX": stored(logits_RX, first), "words": words, "rows_RNV": stored(rows_RNV, second)}
