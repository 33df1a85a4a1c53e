"""Return the sums of exponentials of chunks of rows of logits, and the greatest words of their parts, in one pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import float32

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
    FORMATS,
    LANES,
    LOADS,
    POWERS,
    RUN,
    add_terms,
    greatest,
    load_group,
    sum_chunk,
)

MAX_ROWS, MAX_WORDS = 2**30, 2**31 - max(CHUNKS) - 1
NONE, SPARSE = -1, -2  # kinds of n-gram models beside the kinds of rows
THREADS, BLOCKS = 128, 4  # of a block, and blocks of a multiprocessor; as in sum_chunks.cu
SLOT_BYTES = LANES * LOADS * 16  # of shared memory, for a group that a warp reads
PARTS = 16  # of a chunk, four of each group
SLOTS = 3  # of a warp; as in sum_chunks.cu
SCRATCH_BYTES = 32 << 20  # at most, unless a block needs more: L2 holds it
ROW_VARIANTS = (
    {"VECTOR": 1, "MIX": 0, "BIAS": 0},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0},
    {"VECTOR": 1, "MIX": 0, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0} | FORMATS[FLOAT16],
    {"VECTOR": 1, "MIX": 1, "BIAS": 0, "CHILD": "u32"},
    {"VECTOR": 0, "MIX": 1, "BIAS": 0, "CHILD": "i64"} | FORMATS[FLOAT16],
    {"VECTOR": 0, "MIX": 0, "BIAS": 1} | FORMATS[BFLOAT16],
)
VARIANTS = (*ROW_VARIANTS, {"VECTOR": 1, "MIX": 1, "BIAS": 0, "SCRATCH": 1} | FORMATS[FLOAT16])


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


class HostRows(NamedTuple):
    """Rows of logits in host memory, for compiled functions.

    logits, ngrams  bits of all rows, with strides in elements
    run, powers     of the kind of the logits
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
    """Rows of logits on a GPU: what kernels are compiled for, and the arguments LOGIT_ROWS."""

    defines: dict[str, Any]
    arguments: tuple[Any, ...]


def sum_chunks(
    logits_MRV: Any,
    weights: Sequence[float] = (1.0,),
    bias_MV: Any = None,
    ngrams: Any = None,
    ngram_weight: float = 0.0,
) -> tuple[Any, Any]:
    """Return the sums of exponentials of all chunks, and the greatest mix of each part of a chunk.

    All arguments as `best_words` takes them; C = ceil(V / CHUNKS[kind]).

    chunks_MRC  (M, R, C) uint64. Upper half: int32 n, the greatest logit times log2(e) of the chunk's groups, rounded.
                Lower half: the bits of a float32, the sum of exponentials divided by 2^n. See terms.py
    tops_RP     (R, C * PARTS) float32. Part 4 g + p of a chunk is the quarter p of each run of its group g. The mix is
                that of `best_words`: its parts without a number, and those behind the row, have -inf

    A sum is NaN if a logit or bias of its chunk is NaN or not below 2^21. All devices return the same bits.
    """
    check_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    arrays = arrays_of(logits_MRV, bias_MV, ngrams)
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(logits_MRV, weights, bias_MV, ngrams, ngram_weight)


def arrays_of(logits_MRV: Any, bias_MV: Any, ngrams: Any) -> dict[str, Any]:
    """Return all arrays by their names."""
    of_ngrams = ngrams._asdict() if isinstance(ngrams, NgramChildren) else {"ngrams": ngrams}
    arrays = {"logits_MRV": logits_MRV, "bias_MV": bias_MV} | of_ngrams
    return {name: array for name, array in arrays.items() if array is not None}


def check_rows(logits_MRV: Any, weights: Sequence[float], bias_MV: Any, ngrams: Any, ngram_weight: float) -> None:
    """Raise TypeError or ValueError unless dtypes, sizes and weights fit together."""
    check.dtype(logits_MRV, np.float32, np.float16, np.uint16)
    if bias_MV is not None:
        check.dtype(bias_MV, np.float32)
    if isinstance(ngrams, NgramChildren):
        check_children(Children(*ngrams[:3]), WordValues(*ngrams[3:]))
    elif ngrams is not None:
        check.dtype(ngrams, np.float32, logits_MRV.dtype)
    shape = logits_MRV.shape
    if len(shape) != 3 or shape[0] < 1 or shape[1] > MAX_ROWS or not 1 <= shape[2] <= MAX_WORDS:
        raise ValueError(
            f"logits_MRV has shape {shape} but needs 1 or more models, at most {MAX_ROWS} rows, and 1 to {MAX_WORDS} "
            "words"
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


def host_rows(logits_MRV: Any, weights: Sequence[float], bias_MV: Any, ngrams: Any, ngram_weight: float) -> HostRows:
    """Return rows of logits for compiled functions."""
    kind = _kind(logits_MRV)
    logits, (stride_M, stride_R, _) = _flat(logits_MRV)
    of_rows, ngram_stride, ngram_kind, children = logits, 0, NONE, _no_children()
    if ngram_weight == 0 or ngrams is None:
        pass
    elif isinstance(ngrams, NgramChildren):
        children, ngram_kind = ngrams, SPARSE
    else:
        (of_rows, (ngram_stride, _)), ngram_kind = _flat(ngrams), _kind(ngrams)
    return HostRows(
        logits, stride_M, stride_R, logits_MRV.shape[2], kind, RUN[kind], POWERS[int(kind != FLOAT32)],
        np.array(weights, np.float32).astype(np.float64),
        np.empty((0, 0), np.float32) if bias_MV is None else np.ascontiguousarray(bias_MV), of_rows, ngram_stride,
        ngram_kind, float32(ngram_weight), *(np.ascontiguousarray(array, np.int64) for array in children[:2]),
        *(np.ascontiguousarray(array) for array in children[2:]),
    )  # fmt: skip


@functools.cache
def _no_children() -> NgramChildren:
    """Return arrays that stand for those of an n-gram model."""
    ranges, words, floats = np.zeros((0, 0), np.int64), np.zeros(0, np.uint32), np.zeros(0, np.float32)
    return NgramChildren(ranges, ranges, np.zeros((0, 0), np.float32), words, floats, floats)


def _cpu(logits_MRV, weights, bias_MV, ngrams, ngram_weight):
    return sums_of_host(host_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight), *logits_MRV.shape)


def sums_of_host(rows: HostRows, M: int, R: int, V: int) -> tuple[Any, Any]:
    """Return (chunks_MRC, tops_RP) of M models and R rows."""
    C = -(-V // CHUNKS[rows.kind])
    chunks_MRC, tops_RP = np.empty((M, R, C), np.uint64), np.empty((R, C * PARTS), np.float32)
    _sum(chunks_MRC.view(np.float32), chunks_MRC.view(np.int32), tops_RP, *rows)
    return chunks_MRC, tops_RP


@njit(nogil=True, cache=True)
def _sum(sums_MRD, references_MRD, tops_RP, *of_rows):
    rows = HostRows(*of_rows)  # Numba takes longer to look at a NamedTuple
    M, R, D = sums_MRD.shape  # a chunk's sum and its reference are neighbours
    V, kind, run, logits, bias_MV = rows.V, rows.kind, rows.run, rows.logits, rows.bias_MV
    stride_M, stride_R, powers, weights_M = rows.stride_M, rows.stride_R, rows.powers, rows.weights_M
    ngram_kind = rows.ngram_kind
    group = LOADS * run
    x, mix, most = np.empty(group, np.float32), np.empty(group, np.float32), np.empty(run, np.float32)
    sums_MS, reference_M = np.empty((M, run), np.float32), np.empty(M, np.int64)
    at_K, rest_K = np.zeros(LANES, np.int64), np.zeros(LANES, np.float32)
    plain = is_plain(rows)
    for r in range(R):
        all_of = begin_children(rows, r, at_K, rest_K)
        tops_P = tops_RP[r]
        tops_P[:] = -np.inf
        for c in range(D // 2):
            sums_MS[:] = 0
            reference_M[:] = FIRST
            for g in range(4 * c, min(4 * c + 4, (V + group - 1) // group)):
                start = g * group
                count = min(group, V - start)
                if not plain:
                    mix[:count] = 0
                    mix[count:] = -np.inf
                for m in range(M):
                    at = m * stride_M + r * stride_R + start
                    load_group(logits[at : at + count], kind, x)
                    if len(bias_MV):
                        _add(bias_MV[m, start : start + count], x)
                    top = greatest(x, count, most, tops_P, 4 * g)
                    reference_M[m] = add_terms(x, count, run, kind, powers, top, reference_M[m], sums_MS[m])
                    if not plain and weights_M[m] > 0:
                        _add_to_mix(float32(weights_M[m]), x, mix)
                if ngram_kind != NONE:
                    _add_ngrams(rows, r, start, count, at_K, rest_K, all_of, x, mix)
                if not plain:
                    greatest(mix, count, most, tops_P, 4 * g)
            for m in range(M):
                total = sum_chunk(sums_MS[m], run)
                sums_MRD[m, r, 2 * c] = total if total == total else np.nan  # all NaN are one
                references_MRD[m, r, 2 * c + 1] = reference_M[m]
        for p in range(len(tops_P)):
            tops_P[p] += float32(0)  # no -0


@njit(nogil=True, cache=True, inline="always")
def is_plain(rows):
    """Return whether the mix is the logits with their bias."""
    return len(rows.weights_M) == 1 and rows.weights_M[0] == 1 and rows.ngram_kind == NONE


@njit(nogil=True, cache=True)
def _add(terms, x):
    for i in range(len(terms)):
        x[i] += terms[i]


@njit(nogil=True, cache=True, inline="always")
def load_mix(rows, r, start, count, at_K, rest_K, all_of, x, mix):
    """Set mix to the mix of a group, then -inf; overwrites x. Groups of a row must rise, after `begin_children`."""
    if is_plain(rows):
        at = r * rows.stride_R + start
        load_group(rows.logits[at : at + count], rows.kind, mix)
        if len(rows.bias_MV):
            _add(rows.bias_MV[0, start : start + count], mix)
    else:
        mix[:count] = 0
        mix[count:] = -np.inf
        for m in range(len(rows.weights_M)):
            if rows.weights_M[m] > 0:
                at = m * rows.stride_M + r * rows.stride_R + start
                load_group(rows.logits[at : at + count], rows.kind, x)
                if len(rows.bias_MV):
                    _add(rows.bias_MV[m, start : start + count], x)
                _add_to_mix(float32(rows.weights_M[m]), x, mix)
        if rows.ngram_kind != NONE:
            _add_ngrams(rows, r, start, count, at_K, rest_K, all_of, x, mix)


@njit(nogil=True, cache=True, inline="always")
def begin_children(rows, r, at_K, rest_K):
    """Set the next child of each history and the backoffs of longer ones. Return the sum of all backoffs."""
    all_of = float32(0)
    if rows.ngram_kind == SPARSE:
        for n in range(rows.first_RK.shape[1] - 1, -1, -1):
            at_K[n], rest_K[n] = rows.first_RK[r, n], all_of
            all_of += rows.backoff_RK[r, n]
    return all_of


@njit(nogil=True, cache=True)
def _add_ngrams(rows, r, start, count, at_K, rest_K, all_of, x, mix):
    """Add the n-gram model's part of the mix; overwrites x."""
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
        _add_to_mix(rows.ngram_weight, x, mix)
    else:
        at = r * rows.ngram_stride + start
        load_group(rows.ngrams[at : at + count], rows.ngram_kind, x)
        _add_to_mix(rows.ngram_weight, x, mix)


@njit(nogil=True, cache=True)
def _add_to_mix(weight, x, mix):
    for i in range(len(mix)):
        mix[i] = multiply_add(weight, x[i], mix[i])


@functools.cache
def _on_device(weights: tuple[float, ...], device: int) -> Any:
    """Return weights as an array of a GPU, for any stream."""
    import cupy

    weights_M = cupy.array(weights, np.float64)
    cupy.cuda.get_current_stream().synchronize()
    return weights_M


def _cuda(logits_MRV, weights, bias_MV, ngrams, ngram_weight):
    return sums_of_cuda(cuda_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight), *logits_MRV.shape)


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
    return CudaRows(defines | FORMATS[_kind(logits)], arguments)


def or_null(array: Any) -> Any:
    """Return an array, or a null pointer for None."""
    return np.uintp(0) if array is None else array


def sums_of_cuda(rows: CudaRows, M: int, R: int, V: int) -> tuple[Any, Any]:
    """Return (chunks_MRC, tops_RP) of M models and R rows."""
    import cupy

    size = rows.arguments[0].itemsize
    C = -(-V // CHUNKS[_kind(rows.arguments[0])])
    chunks_MRC, tops_RP = cupy.empty((M, R, C), np.uint64), cupy.empty((R, C * PARTS), np.float32)
    multiprocessors, most_shared = current_limits()
    warps = min(R * C, BLOCKS * (THREADS // LANES) * multiprocessors)
    shared_bytes = SLOTS * SLOT_BYTES * THREADS // LANES
    defines = rows.defines
    scratch: tuple[Any, ...] = ()
    if rows.defines["MIX"]:
        shared_bytes += SLOT_BYTES * 4 // size * THREADS // LANES
        of_models = 4 * M * THREADS * (16 // size + 1)
        if M <= LANES and shared_bytes + of_models <= most_shared:
            shared_bytes += of_models
        else:
            blocks = min(-(-warps * LANES // THREADS), max(1, SCRATCH_BYTES // of_models))
            warps = min(warps, blocks * THREADS // LANES)
            defines, scratch = defines | {"SCRATCH": 1}, (cupy.empty(blocks * of_models, np.uint8),)
    if R:
        fn = kernel("decode/sum_chunks", "sum_chunks", **defines)
        args = *rows.arguments, warps, chunks_MRC, tops_RP, *scratch
        launch(fn, -(-warps * LANES // THREADS), THREADS, args, shared_bytes=shared_bytes)
    return chunks_MRC, tops_RP


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
        "weights": (1.0,) if M == 1 and size % 4 else tuple(rng.random(M)),
        "bias_MV": rng.standard_normal((M, V), np.float32) if size % 2 else None,
        "ngrams": ngrams,
        "ngram_weight": 0.3,
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
