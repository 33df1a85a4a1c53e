"""Return the best words of each row of logits: bias, softmax, ensemble, n-gram model and selection in one pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, float64

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..distribution.find_histories import Children
from ..distribution.rows import WordValues
from ..distribution.top_words import check_children
from ..intrinsics import multiply_add
from ..launch import current_limits, kernel, launch
from .terms import (
    BFLOAT16,
    CHUNKS,
    FIRST,
    FLOAT16,
    FLOAT32,
    LANES,
    LOADS,
    POWERS,
    RUN,
    add_terms,
    greatest,
    load_group,
    log_of_chunks,
    sum_chunk,
)

MAX_K, MAX_MODELS, MAX_ROWS, MAX_WORDS = 64, 32, 2**30, 2**31 - max(CHUNKS) - 1
NONE, SPARSE = -1, -2  # kinds of n-gram models beside the kinds of rows
THREADS, BLOCKS = 128, 4  # of a block, and blocks of a multiprocessor, that sum chunks; as in best_words.cu
ROW_THREADS = 64  # of a block that chooses words: one warp for each row
SLOT_BYTES = LANES * LOADS * 16  # of shared memory, for a group that a warp reads
TOP_BYTES = LANES * 4 * 4  # of shared memory, for the greatest logits of lanes in the four groups of a chunk
PARTS = 16  # of a chunk, each with its greatest logit
SLOTS = 3  # of a warp; as in best_words.cu
FORMATS: tuple[dict[str, Any], ...] = ({}, {"HALF": '"f16"'}, {"HALF": '"bf16"'})  # by FLOAT32, FLOAT16, BFLOAT16
VARIANTS = (
    {"VECTOR": 1, "MIX": 0, "BIAS": 0},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0},
    {"VECTOR": 1, "MIX": 0, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0, "CHILD": "u32"},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0, "CHILD": "i64"} | FORMATS[FLOAT16],
    {"VECTOR": 0, "MIX": 0, "BIAS": 1} | FORMATS[BFLOAT16],
)


class NgramChildren(NamedTuple):
    """The n-grams of an n-gram model that continue the histories of rows, and its single words, as logarithms.

    first_HK, end_HK, backoff_HK  of the K <= 32 histories of each row, as `next_states` returns them
    word_G, value_G, value_V      as in `WordValues`, words below V

    The value of a child is value_G plus the backoffs of longer histories; of another word, value_V plus all backoffs:
    float32 sums, the longest history first. So these are the rows of `write_rows`, but for rounding.
    """

    first_HK: Any
    end_HK: Any
    backoff_HK: Any
    word_G: Any
    value_G: Any
    value_V: Any


def best_words(
    logits_MRV: Any,
    k: int,
    costs_R: Any,
    weights: Sequence[float] = (1.0,),
    bias_MV: Any = None,
    ngrams: Any = None,
    ngram_weight: float = 0.0,
    forbidden_F: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the k best words of each row, their scores, and the logarithm of each row's sum of exponentials.

    logits_MRV    (M, R, V) float32, float16, or uint16: the bits of bfloat16. M models, 1 to 32. Below 2^21; -inf is
                  legal. Fastest if rows are contiguous and each row of all arrays starts at a multiple of 16 bytes
    k             1 to 64
    costs_R       (R,) float32, the score of each row so far
    weights       M numbers, at least 0, one for each model
    bias_MV       None or (M, V) float32, added to the logits
    ngrams        None; or (R, V) logarithms of probabilities, float32 or the dtype of the logits; or NgramChildren
    ngram_weight  at least 0; times ln 10 for logarithms of base 10
    forbidden_F   None or (F,) int32: words that are never chosen, such as <unk>. Others do not get their probability

    Returns words_RK (R, k) int32, scores_RK (R, k) float32 and log_sums_MR (M, R) float64. The score of word v is
    costs_R[r] + sum of weights[m] * (x_mv - log_sums_MR[m, r]) + ngram_weight * ngrams[r, v], where x_mv is the logit
    plus its bias. It is a sum of two parts: `mix`, which depends on v, of float32 multiply-adds in the order of models,
    and the rest, in float64. Words are chosen by the greatest mix, ties by lower word, and returned by falling score,
    ties by lower word. Words of mix -inf or NaN are not chosen. If fewer than k are left, the remaining words are -1
    and their scores -inf. If a logit or bias of a row is NaN or not below 2^21, or none is above -2^21, the row's words
    are -1, its scores NaN and the model's log_sum NaN.

    Each logit is read once. An ensemble needs no second look, because the sums of exponentials are the same for all
    words of a row: they do not change the order of words. All devices return the same bits, for any number of rows.
    See terms.py for the exponentials (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    check.dtype(logits_MRV, np.float32, np.float16, np.uint16)
    children = values = None
    rows_RV = ngrams
    if isinstance(ngrams, NgramChildren):
        children, values, rows_RV = Children(*ngrams[:3]), WordValues(*ngrams[3:]), None
    check.dtype(costs_R, np.float32)
    optional = {"bias_MV": bias_MV, "ngrams": rows_RV, "forbidden_F": forbidden_F}
    for array, dtypes in (
        (bias_MV, (np.float32,)),
        (rows_RV, (np.float32, logits_MRV.dtype)),
        (forbidden_F, (np.int32,)),
    ):
        if array is not None:
            check.dtype(array, *dtypes)
    if children is not None and values is not None:
        check_children(children, values)
        optional |= children._asdict() | values._asdict()
    shapes = {"costs_R": costs_R.shape} | {n: a.shape for n, a in optional.items() if a is not None}
    _check(logits_MRV.shape, k, weights, ngram_weight, shapes)
    run = pick(cpu=_cpu, cuda=_cuda, logits_MRV=logits_MRV, costs_R=costs_R, **optional)
    numbers = tuple(float(float32(w)) for w in weights)
    if ngram_weight == 0:
        rows_RV = children = None
    return run(logits_MRV, k, costs_R, numbers, bias_MV, rows_RV, float32(ngram_weight), forbidden_F, children, values)


def _check(shape, k, weights, ngram_weight, shapes):
    """Raise ValueError unless sizes and weights fit together."""
    sizes = ((1, MAX_MODELS), (0, MAX_ROWS), (1, MAX_WORDS))
    if len(shape) != 3 or not all(least <= n <= most for n, (least, most) in zip(shape, sizes, strict=True)):
        raise ValueError(
            f"logits_MRV has shape {shape} but needs 1 to {MAX_MODELS} models, at most {MAX_ROWS} rows, and 1 to "
            f"{MAX_WORDS} words"
        )
    M, R, V = shape
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k is {k} but must be 1 to {MAX_K}; sort whole rows for more")
    if len(weights) != M or not all(0 <= w < math.inf for w in (*weights, ngram_weight)):
        raise ValueError(
            f"weights are {tuple(weights)} and {ngram_weight} but must be {M} and 1 finite numbers, at least 0"
        )
    K = shapes.get("first_HK", (R, 0))[1]
    if K > LANES:
        raise ValueError(f"children are of {K} histories for each row but must be of at most {LANES}; prune the model")
    wanted_of = {"costs_R": (R,), "bias_MV": (M, V), "ngrams": (R, V), "value_V": (V,), "first_HK": (R, K)}
    for name, wanted in wanted_of.items():
        if shapes.get(name, wanted) != wanted:
            raise ValueError(f"{name} has shape {shapes[name]} but logits of shape {shape} need {wanted}")


def _kind(array):
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


def _cpu(logits_MRV, k, costs_R, weights, bias_MV, ngram_RV, ngram_weight, forbidden_F, children, values):
    M, R, V = logits_MRV.shape
    kind = _kind(logits_MRV)
    logits, (stride_M, stride_R, _) = _flat(logits_MRV)
    ngrams, (ngram_stride, _) = (logits, (0, 0)) if ngram_RV is None else _flat(ngram_RV)
    bias_MV = np.empty((0, 0), np.float32) if bias_MV is None else np.ascontiguousarray(bias_MV)
    forbidden_F = np.empty(0, np.int32) if forbidden_F is None else forbidden_F
    words_RK, scores_RK = np.empty((R, k), np.int32), np.empty((R, k), np.float32)
    log_sums_MR = np.empty((M, R), np.float64)
    kind_of_ngrams = SPARSE if children is not None else NONE if ngram_RV is None else _kind(ngram_RV)
    if children is None or values is None:
        children, values = _no_ngrams()
    ranges = [np.ascontiguousarray(array, np.int64) for array in children[:2]]
    floats = [np.ascontiguousarray(array) for array in (children.backoff_HK, *values)]
    _choose(
        logits, stride_M, stride_R, V, kind, RUN[kind], POWERS[int(kind != FLOAT32)], np.array(weights, np.float64),
        np.ascontiguousarray(costs_R), bias_MV, ngrams, ngram_stride, kind_of_ngrams,
        ngram_weight, forbidden_F, *ranges, *floats, words_RK, scores_RK, log_sums_MR,
    )  # fmt: skip
    return words_RK, scores_RK, log_sums_MR


@functools.cache
def _no_ngrams() -> tuple[Children, WordValues]:
    """Return arrays that stand for those of an n-gram model."""
    ranges, floats = np.zeros((0, 0), np.uint32), np.zeros(0, np.float32)
    return Children(ranges, ranges, np.zeros((0, 0), np.float32)), WordValues(np.zeros(0, np.uint32), floats, floats)


@njit(nogil=True, cache=True)
def _choose(
    logits, stride_M, stride_R, V, kind, run, powers, weights_M, costs_R, bias_MV, ngrams, ngram_stride, ngram_kind,
    ngram_weight, forbidden_F, first_RK, end_RK, backoff_RK, word_G, value_G, value_V, words_RK, scores_RK, log_sums_MR,
):  # fmt: skip
    M, R, k = len(weights_M), len(costs_R), words_RK.shape[1]
    group = LOADS * run
    chunk = LOADS * group
    C = (V + chunk - 1) // chunk
    x, mix, most = np.empty(group, np.float32), np.empty(group, np.float32), np.empty(group // 4, np.float32)
    sums_MS, reference_M = np.empty((M, run), np.float32), np.empty(M, np.int64)
    sum_MC, reference_MC = np.empty((M, C), np.float32), np.empty((M, C), np.int32)
    lanes_L = np.empty(LANES, np.float64)
    is_plain = M == 1 and weights_M[0] == 1 and ngram_kind == NONE
    K = first_RK.shape[1]
    at_K, rest_K, all_of = np.zeros(K, np.int64), np.zeros(K, np.float32), float32(0)
    for r in range(R):
        if ngram_kind == SPARSE:
            all_of = float32(0)
            for n in range(K - 1, -1, -1):
                at_K[n], rest_K[n] = first_RK[r, n], all_of
                all_of += backoff_RK[r, n]
        words_K, scores_K = words_RK[r], scores_RK[r]  # scores_K: mixes until the end of the row
        words_K[:] = -1
        scores_K[:] = -np.inf
        for c in range(C):
            sums_MS[:] = 0
            reference_M[:] = FIRST
            for start in range(c * chunk, min((c + 1) * chunk, V), group):
                count = min(group, V - start)
                if not is_plain:
                    mix[:count] = 0
                    mix[count:] = -np.inf
                top = float32(0)
                for m in range(M):
                    at = m * stride_M + r * stride_R + start
                    load_group(logits[at : at + count], kind, x)
                    if len(bias_MV):
                        _add(bias_MV[m, start : start + count], x)
                    top = greatest(x, count, most)
                    reference_M[m] = add_terms(x, count, run, kind, powers, top, reference_M[m], sums_MS[m])
                    if not is_plain and weights_M[m] > 0:
                        _add_to_mix(float32(weights_M[m]), x, mix)
                if ngram_kind == SPARSE:
                    for i in range(count):
                        x[i] = value_V[start + i] + all_of
                    x[count:] = -np.inf
                    for n in range(K):  # longer histories later
                        while at_K[n] < end_RK[r, n] and word_G[at_K[n]] < start + count:
                            x[np.int64(word_G[at_K[n]]) - start] = value_G[at_K[n]] + rest_K[n]
                            at_K[n] += 1
                    _add_to_mix(ngram_weight, x, mix)
                elif ngram_kind != NONE:
                    at = r * ngram_stride + start
                    load_group(ngrams[at : at + count], ngram_kind, x)
                    _add_to_mix(ngram_weight, x, mix)
                values = x if is_plain else mix
                if not is_plain:
                    top = greatest(mix, count, most)
                if top > scores_K[k - 1]:
                    _keep_best(values[: (count + 63) // 64 * 64], start, forbidden_F, words_K, scores_K)
            for m in range(M):
                sum_MC[m, c], reference_MC[m, c] = sum_chunk(sums_MS[m], run), reference_M[m]
        shift = float64(costs_R[r])
        for m in range(M):
            log_sums_MR[m, r] = log_of_chunks(sum_MC[m], reference_MC[m], lanes_L)
            shift -= weights_M[m] * log_sums_MR[m, r]
        _score(shift, words_K, scores_K)


@njit(nogil=True, cache=True)
def _add(terms, x):
    for i in range(len(terms)):
        x[i] += terms[i]


@njit(nogil=True, cache=True)
def _add_to_mix(weight, x, mix):
    for i in range(len(mix)):
        mix[i] = multiply_add(weight, x[i], mix[i])


@njit(nogil=True, cache=True)
def _keep_best(values, start, forbidden_F, words_K, mixes_K):
    """Insert values of the words from `start` on, whose number is a multiple of 64, into sorted lists."""
    last = len(words_K) - 1
    for first in range(0, len(values), 64):
        found, part = 0, values[first : first + 64]
        for i in range(64):
            found += part[i] > mixes_K[last]
        if found == 0:
            continue
        for i in range(64):
            value, word = part[i], start + first + i
            if value > mixes_K[last] and _is_allowed(word, forbidden_F):
                at = last
                while at and mixes_K[at - 1] < value:
                    mixes_K[at], words_K[at] = mixes_K[at - 1], words_K[at - 1]
                    at -= 1
                mixes_K[at], words_K[at] = value, word


@njit(nogil=True, cache=True)
def _is_allowed(word, forbidden_F):
    is_allowed = True
    for f in range(len(forbidden_F)):
        is_allowed &= forbidden_F[f] != word
    return is_allowed


@njit(nogil=True, cache=True)
def _score(shift, words_K, scores_K):
    """Replace mixes by scores, ties by lower word. A shift of NaN makes all scores NaN."""
    if np.isnan(shift):
        words_K[:] = -1
        scores_K[:] = np.nan
        return
    for i in range(len(words_K)):
        word = words_K[i]
        if word < 0:
            break
        score = float32(float64(scores_K[i] + float32(0)) + shift)
        at = i
        while at and scores_K[at - 1] == score and words_K[at - 1] > word:
            scores_K[at], words_K[at] = scores_K[at - 1], words_K[at - 1]
            at -= 1
        scores_K[at], words_K[at] = score, word


@functools.cache
def _on_device(weights: tuple[float, ...], device: int) -> Any:
    """Return weights as an array of a GPU, for any stream."""
    import cupy

    weights_M = cupy.array(weights, np.float64)
    cupy.cuda.get_current_stream().synchronize()
    return weights_M


def _cuda(logits_MRV, k, costs_R, weights, bias_MV, ngram_RV, ngram_weight, forbidden_F, children, values):
    import cupy

    M, R, V = logits_MRV.shape
    words_RK, scores_RK = cupy.empty((R, k), np.int32), cupy.empty((R, k), np.float32)
    log_sums_MR = cupy.empty((M, R), np.float64)
    if R == 0:
        return words_RK, scores_RK, log_sums_MR
    logits, ngrams = _with_contiguous_rows(logits_MRV), None if ngram_RV is None else _with_contiguous_rows(ngram_RV)
    bias_MV = None if bias_MV is None else cupy.ascontiguousarray(bias_MV)
    rows = [(logits, logits.strides[:2]), (bias_MV, (4 * V * (M > 1),))]
    rows.append((ngrams, () if ngrams is None else ngrams.strides[:1]))
    rows.append((None if values is None else values.value_V, ()))
    is_aligned = all(a is None or (a.data.ptr % 16 == 0 and not any(s % 16 for s in strides)) for a, strides in rows)
    is_plain = M == 1 and weights[0] == 1 and ngrams is None and children is None
    has_bias = bias_MV is not None
    size = logits.itemsize
    C = -(-V // CHUNKS[_kind(logits)])
    warps = min(R * C, BLOCKS * (THREADS // LANES) * current_limits()[0])
    defines = {"VECTOR": int(is_aligned), "MIX": int(not is_plain), "BIAS": int(is_plain and has_bias)}
    defines |= FORMATS[_kind(logits)]
    shared_bytes = (SLOTS * SLOT_BYTES + TOP_BYTES) * THREADS // LANES
    if not is_plain:
        shared_bytes += SLOT_BYTES * 4 // size * THREADS // LANES + 4 * M * THREADS * (16 // size + 1)
    if children is None or values is None:
        of_ngrams = (
            _or_null(ngrams), 0 if ngrams is None else ngrams.strides[0] // ngrams.itemsize,
            int(ngrams is not None and ngrams.itemsize > size),
        )  # fmt: skip
    else:
        defines |= {"CHILD": check.INTEGER[children.first_HK.dtype]}
        of_ngrams = *map(cupy.ascontiguousarray, (*children, *values)), children.first_HK.shape[1]
    of_logits = (
        logits, logits.strides[0] // size, logits.strides[1] // size, M, R, V,
        _on_device(weights, cupy.cuda.Device().id), _or_null(bias_MV), *of_ngrams, ngram_weight,
    )  # fmt: skip
    chunks_MRC, tops_RP = cupy.empty((M, R, C), np.uint64), cupy.empty((R, C, PARTS), np.float32)
    fn = kernel("decode/best_words", "sum_chunks", **defines)
    args = *of_logits, warps, chunks_MRC, tops_RP
    launch(fn, -(-warps * LANES // THREADS), THREADS, args, shared_bytes=shared_bytes)
    fn = kernel("decode/best_words", "best_words", **defines)
    args = (
        *of_logits, k, costs_R, _or_null(forbidden_F), 0 if forbidden_F is None else len(forbidden_F), chunks_MRC,
        tops_RP, words_RK, scores_RK, log_sums_MR,
    )  # fmt: skip
    launch(fn, -(-R * LANES // ROW_THREADS), ROW_THREADS, args)
    return words_RK, scores_RK, log_sums_MR


def _or_null(array):
    """Return an array, or a null pointer for None."""
    return np.uintp(0) if array is None else array


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return logits of rows of `size` words; by size, of any dtype, of an ensemble, with a bias and an n-gram model."""
    R, V = size % 5 + (size > 1), max(1, size)
    M = 1 + size % 3 % 2 + (size % 5 == 2)
    dtype = (np.float32, np.float16, np.uint16)[size // 2 % 3]
    logits_MRV = 3 * rng.standard_normal((M, R, V), np.float32)
    logits_MRV[rng.random((M, R, V)) < 0.01] = -np.inf
    if size % 7 == 0:
        logits_MRV = np.round(logits_MRV)  # many ties
    if R > 2:
        logits_MRV[0, 1, V // 2] = np.nan
        logits_MRV[:, 2] = -1
        logits_MRV[M - 1, R - 1] *= 50
    if dtype == np.uint16:
        logits_MRV = (logits_MRV.view(np.uint32) >> 16).astype(np.uint16)
    ngrams: Any = None
    if size % 3 == 1:
        ngrams = -10 * rng.random((R, V), np.float32)
        if dtype == np.float16:
            ngrams = ngrams.astype(np.float16)
    elif size % 3 == 2:
        ngrams = example_children(rng, R, V, np.uint32 if size % 2 else np.int64)
    return {
        "logits_MRV": logits_MRV.astype(dtype, copy=False),
        "k": (1, 4, 8, 40)[size % 4],
        "costs_R": -5 * rng.random(R, np.float32),
        "weights": (1.0,) if M == 1 and size % 4 else tuple(rng.random(M)),
        "bias_MV": rng.standard_normal((M, V), np.float32) if size % 2 else None,
        "ngrams": ngrams,
        "ngram_weight": 0.3,
        "forbidden_F": None if size % 5 == 0 else np.array([1, 2], np.int32),
    }


def example_children(rng: np.random.Generator, rows: int, V: int, dtype: Any) -> NgramChildren:
    """Return children of 3 histories of each row; those of longer ones are among those of shorter ones."""
    first_HK, end_HK = np.zeros((rows, 3), dtype), np.zeros((rows, 3), dtype)
    words = [np.zeros(0, np.int64)]
    for r in range(rows):
        among = np.arange(V)
        for n in range(3):
            among = np.sort(rng.choice(among, len(among) // (1 + rng.integers(1, 9)), replace=False))
            first_HK[r, n] = sum(map(len, words))
            end_HK[r, n] = first_HK[r, n] + len(among)
            words.append(among)
    word_G = np.concatenate(words).astype(np.uint32)
    value_G, value_V, backoff = (-5 * rng.random(length, np.float32) for length in (len(word_G), V, 3 * rows))
    return NgramChildren(first_HK, end_HK, backoff.reshape(rows, 3), word_G, value_G, value_V)
