"""Rows of logits and scores of an n-gram model, as arguments of the kernels of `sum_chunks` and `best_words`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import float32

from .. import check
from ..common.float_formats import BFLOAT16, FLOAT16, FLOAT32, FORMATS
from ..compile_cpu import njit
from ..distribution.find_histories import Children
from ..distribution.row_launch import WordValues
from ..distribution.top_words import check_children
from ..intrinsics import multiply_add
from ..launch import LANES
from .exponential_sums import CHUNKS, EXP_COEFFICIENTS, RUN, load_group

MAX_ROWS, MAX_ROW_WORDS = 2**30, 2**31 - max(CHUNKS) - 1
NONE, SPARSE = -1, -2  # kinds of n-gram models beside the kinds of rows
VARIANTS = (
    {"VECTOR": 1, "MIX": 0, "BIAS": 0},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0},
    {"VECTOR": 1, "MIX": 0, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0, "CHILD": "u32"},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0, "CHILD": "i64"} | FORMATS[FLOAT16],
    {"VECTOR": 0, "MIX": 0, "BIAS": 1} | FORMATS[BFLOAT16],
)  # that CI compiles


class NgramChildren(NamedTuple):
    """The n-grams of an n-gram model that continue the histories of rows, and its single words, as logarithms.

    first_HK, end_HK, backoff_HK  for the K <= 32 histories of each row, from `next_states`
    word_G, value_G, value_V      as in `WordValues`, words below V

    The value of a child is value_G plus the backoffs of longer histories; of another word, value_V plus all backoffs:
    float32 sums, the longest history first. These are the rows of `write_rows`, except for rounding.
    """

    first_HK: Any
    end_HK: Any
    backoff_HK: Any
    word_G: Any
    value_G: Any
    value_V: Any


class HostRows(NamedTuple):
    """Rows of logits in host memory, for compiled functions.

    logits, ngrams  bits of all rows, with strides in elements
    run, powers     constants of the kind of the logits
    """

    logits: Any
    stride_M: int
    stride_R: int
    V: int
    kind: int
    run: int
    powers: Any
    weights_M: Any
    bias_MV: Any
    ngrams: Any
    ngram_stride: int
    ngram_kind: int
    ngram_weight: Any
    first_RK: Any
    end_RK: Any
    backoff_RK: Any
    word_G: Any
    value_G: Any
    value_V: Any


class CudaRows(NamedTuple):
    """Rows of logits on a GPU: the definitions for compilation, and the arguments LOGIT_ROWS."""

    defines: dict[str, Any]
    arguments: tuple[Any, ...]


def arrays_of(logits_MRV: Any, bias_MV: Any, ngrams: Any) -> dict[str, Any]:
    """Return all arrays by their names."""
    of_ngrams = ngrams._asdict() if isinstance(ngrams, NgramChildren) else {"ngrams": ngrams}
    arrays = {"logits_MRV": logits_MRV, "bias_MV": bias_MV} | of_ngrams
    return {name: array for name, array in arrays.items() if array is not None}


def check_logits(logits_MRV: Any, weights: Sequence[float], bias_MV: Any, ngrams: Any, ngram_weight: float) -> None:
    """Raise TypeError or ValueError unless dtypes, sizes and weights fit together."""
    check.dtype(logits_MRV, np.float32, np.float16, np.uint16)
    if bias_MV is not None:
        check.dtype(bias_MV, np.float32)
    if isinstance(ngrams, NgramChildren):
        check_children(Children(*ngrams[:3]), WordValues(*ngrams[3:]))
    elif ngrams is not None:
        check.dtype(ngrams, np.float32, logits_MRV.dtype)
    shape = logits_MRV.shape
    if len(shape) != 3 or shape[0] < 1 or shape[1] > MAX_ROWS or not 1 <= shape[2] <= MAX_ROW_WORDS:
        raise ValueError(
            f"logits_MRV has shape {shape} but needs 1 or more models, at most {MAX_ROWS} rows, and 1 to "
            f"{MAX_ROW_WORDS} words"
        )
    M, R, V = shape
    if len(weights) != M or not all(0 <= w < math.inf for w in (*weights, ngram_weight)):
        raise ValueError(
            f"weights are {tuple(weights)} and {ngram_weight} but must be {M} and 1 finite numbers, at least 0"
        )
    shapes = {name: array.shape for name, array in arrays_of(logits_MRV, bias_MV, ngrams).items()}
    K = shapes.get("first_HK", (R, 0))[1]
    if K > LANES:
        raise ValueError(f"children are of {K} histories for each row but must be of at most {LANES}; prune the model")
    wanted_of = {"bias_MV": (M, V), "ngrams": (R, V), "value_V": (V,), "first_HK": (R, K)}
    for name, wanted in wanted_of.items():
        if shapes.get(name, wanted) != wanted:
            raise ValueError(f"{name} has shape {shapes[name]} but logits of shape {shape} need {wanted}")


def kind_of(array):
    """Return FLOAT32, FLOAT16 or BFLOAT16."""
    return {np.dtype(np.float32): FLOAT32, np.dtype(np.float16): FLOAT16}.get(array.dtype, BFLOAT16)


def _with_contiguous_rows(array):
    """Return `array`, or a copy if the words of a row are not contiguous or a stride is negative."""
    size = array.itemsize
    plain = (array.shape[-1] == 1 or array.strides[-1] == size) and all(s >= 0 and s % size == 0 for s in array.strides)
    return array if plain else array.copy()


def _flat(array):
    """Return (the bits of an array in host memory, as one row that contains its rows; strides in elements)."""
    array = _with_contiguous_rows(array)
    size, strides = array.itemsize, [s // array.itemsize for s in array.strides]
    length = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) if array.size else 0
    bits = array.view(np.uint32 if size == 4 else np.uint16) if array.size else np.empty(0, f"u{size}")
    return np.lib.stride_tricks.as_strided(bits, (length,), (size,)), strides


def host_rows(logits_MRV: Any, weights: Sequence[float], bias_MV: Any, ngrams: Any, ngram_weight: float) -> HostRows:
    """Return rows of logits for compiled functions."""
    kind = kind_of(logits_MRV)
    logits, (stride_M, stride_R, _) = _flat(logits_MRV)
    of_rows, ngram_stride, ngram_kind, children = logits, 0, NONE, _no_children()
    if ngram_weight == 0 or ngrams is None:
        pass
    elif isinstance(ngrams, NgramChildren):
        children, ngram_kind = ngrams, SPARSE
    else:
        (of_rows, (ngram_stride, _)), ngram_kind = _flat(ngrams), kind_of(ngrams)
    return HostRows(
        logits=logits, stride_M=stride_M, stride_R=stride_R, V=logits_MRV.shape[2], kind=kind, run=RUN[kind],
        powers=EXP_COEFFICIENTS[int(kind != FLOAT32)], weights_M=np.array(weights, np.float32).astype(np.float64),
        bias_MV=np.empty((0, 0), np.float32) if bias_MV is None else np.ascontiguousarray(bias_MV), ngrams=of_rows,
        ngram_stride=ngram_stride, ngram_kind=ngram_kind, ngram_weight=float32(ngram_weight),
        first_RK=np.ascontiguousarray(children.first_HK, np.int64),
        end_RK=np.ascontiguousarray(children.end_HK, np.int64), backoff_RK=np.ascontiguousarray(children.backoff_HK),
        word_G=np.ascontiguousarray(children.word_G), value_G=np.ascontiguousarray(children.value_G),
        value_V=np.ascontiguousarray(children.value_V),
    )  # fmt: skip


@functools.cache
def _no_children() -> NgramChildren:
    """Return empty arrays in place of an n-gram model's."""
    ranges, words, floats = np.zeros((0, 0), np.int64), np.zeros(0, np.uint32), np.zeros(0, np.float32)
    return NgramChildren(ranges, ranges, np.zeros((0, 0), np.float32), words, floats, floats)


def cuda_rows(logits_MRV: Any, weights: Sequence[float], bias_MV: Any, ngrams: Any, ngram_weight: float) -> CudaRows:
    """Return rows of logits for kernels."""
    import cupy

    M, R, V = logits_MRV.shape
    ngrams = None if ngram_weight == 0 else ngrams
    logits, bias_MV = _with_contiguous_rows(logits_MRV), None if bias_MV is None else cupy.ascontiguousarray(bias_MV)
    size = logits.itemsize
    aligned = [(logits, logits.strides[:2]), (bias_MV, (4 * V * (M > 1),))]
    defines: dict[str, Any] = {}
    of_ngrams: tuple[Any, ...] = or_null(None), 0, 0
    if isinstance(ngrams, NgramChildren):
        defines = {"CHILD": check.INTEGER[ngrams.first_HK.dtype]}
        of_ngrams = *map(cupy.ascontiguousarray, ngrams), ngrams.first_HK.shape[1]
        aligned.append((ngrams.value_V, ()))
    elif ngrams is not None:
        rows_RV = _with_contiguous_rows(ngrams)
        of_ngrams = rows_RV, rows_RV.strides[0] // rows_RV.itemsize, int(rows_RV.itemsize > size)
        aligned.append((rows_RV, rows_RV.strides[:1]))
    vector = all(a is None or (a.data.ptr % 16 == 0 and not any(s % 16 for s in strides)) for a, strides in aligned)
    plain = M == 1 and float32(weights[0]) == 1 and ngrams is None
    defines |= {"VECTOR": int(vector), "MIX": int(not plain), "BIAS": int(plain and bias_MV is not None)}
    arguments = (
        logits, logits.strides[0] // size, logits.strides[1] // size, M, R, V,
        _on_device(tuple(float(float32(w)) for w in weights), cupy.cuda.Device().id),
        or_null(bias_MV), *of_ngrams, float32(ngram_weight),
    )  # fmt: skip
    return CudaRows(defines | FORMATS[kind_of(logits)], arguments)


def or_null(array: Any) -> Any:
    """Return an array, or a null pointer for None."""
    return np.uintp(0) if array is None else array


@functools.cache
def _on_device(weights: tuple[float, ...], device: int) -> Any:
    """Return weights as an array of a GPU, for any stream."""
    import cupy

    weights_M = cupy.array(weights, np.float64)
    cupy.cuda.get_current_stream().synchronize()
    return weights_M


@njit(nogil=True, cache=True, inline="always")
def is_plain(rows):
    """Return whether the mix is just the logits plus their bias."""
    return len(rows.weights_M) == 1 and rows.weights_M[0] == 1 and rows.ngram_kind == NONE


@njit(nogil=True, cache=True)
def add_bias(terms, x):
    for i in range(len(terms)):
        x[i] += terms[i]


@njit(nogil=True, cache=True, inline="always")
def load_mix(rows, r, start, count, children, x, mix):
    """Set mix to the mix of a group, then -inf; overwrites x. Groups of a row must rise, after `begin_children`."""
    if is_plain(rows):
        at = r * rows.stride_R + start
        load_group(rows.logits[at : at + count], rows.kind, mix)
        if len(rows.bias_MV):
            add_bias(rows.bias_MV[0, start : start + count], mix)
    else:
        mix[:count] = 0
        mix[count:] = -np.inf
        for m in range(len(rows.weights_M)):
            if rows.weights_M[m] > 0:
                at = m * rows.stride_M + r * rows.stride_R + start
                load_group(rows.logits[at : at + count], rows.kind, x)
                if len(rows.bias_MV):
                    add_bias(rows.bias_MV[m, start : start + count], x)
                add_to_mix(float32(rows.weights_M[m]), x, mix)
        if rows.ngram_kind != NONE:
            add_ngrams(rows, r, start, count, children, x, mix)


@njit(nogil=True, cache=True, inline="always")
def begin_children(rows, r, at_K, rest_K):
    """Set the next child of each history, and the backoffs of longer histories.

    Return both and the sum of all backoffs.
    """
    all_of = float32(0)
    if rows.ngram_kind == SPARSE:
        for n in range(rows.first_RK.shape[1] - 1, -1, -1):
            at_K[n], rest_K[n] = rows.first_RK[r, n], all_of
            all_of += rows.backoff_RK[r, n]
    return at_K, rest_K, all_of


@njit(nogil=True, cache=True)
def add_ngrams(rows, r, start, count, children, x, mix):
    """Add the n-gram model's part of the mix; overwrites x.

    children  the result of `begin_children`
    """
    at_K, rest_K, all_of = children
    if rows.ngram_kind == SPARSE:
        for i in range(count):
            x[i] = rows.value_V[start + i] + all_of
        x[count:] = -np.inf
        for n in range(rows.first_RK.shape[1]):  # longer histories later
            end = rows.end_RK[r, n]
            if at_K[n] < end and rows.word_G[at_K[n]] < start:
                at_K[n] += np.searchsorted(rows.word_G[at_K[n] : end], start)
            while at_K[n] < end and rows.word_G[at_K[n]] < start + count:
                x[np.int64(rows.word_G[at_K[n]]) - start] = rows.value_G[at_K[n]] + rest_K[n]
                at_K[n] += 1
        add_to_mix(rows.ngram_weight, x, mix)
    else:
        at = r * rows.ngram_stride + start
        load_group(rows.ngrams[at : at + count], rows.ngram_kind, x)
        add_to_mix(rows.ngram_weight, x, mix)


@njit(nogil=True, cache=True)
def add_to_mix(weight, x, mix):
    for i in range(len(mix)):
        mix[i] = multiply_add(weight, x[i], mix[i])
