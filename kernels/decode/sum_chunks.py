"""Return the sums of exponentials of chunks of logits, and the greatest mix of the parts of each chunk, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import float32

from ..common.float_formats import FLOAT16, FORMATS
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import LANES, current_limits, kernel, launch
from . import logit_rows
from .exponential_sums import CHUNKS, FIRST_REFERENCE, LOADS, add_terms, greatest, load_group, sum_chunk
from .logit_rows import (
    NONE,
    CudaRows,
    HostRows,
    NgramChildren,
    add_bias,
    add_ngrams,
    add_to_mix,
    arrays_of,
    begin_children,
    check_logits,
    cuda_rows,
    host_rows,
    is_plain,
    kind_of,
)

THREADS, BLOCKS = 128, 4  # threads of a block, and blocks of a multiprocessor; as in sum_chunks.cu
SLOT_BYTES = LANES * LOADS * 16  # bytes of shared memory for a group that a warp reads
PARTS = 16  # parts of a chunk, four of each group
SLOTS = 3  # slots of a warp; as in sum_chunks.cu
SCRATCH_BYTES = 32 << 20  # at most, unless a block needs more: L2 holds it
VARIANTS = (*logit_rows.VARIANTS, {"VECTOR": 1, "MIX": 1, "BIAS": 0, "SCRATCH": 1} | FORMATS[FLOAT16])


def sum_chunks(
    logits_MRV: Any,
    weights: Sequence[float] = (1.0,),
    bias_MV: Any = None,
    ngrams: Any = None,
    ngram_weight: float = 0.0,
) -> tuple[Any, Any]:
    """Return the sums of exponentials of all chunks, and the greatest mix of each part of a chunk.

    All arguments as for `best_words`; C = ceil(V / CHUNKS[kind]).

    chunks_MRC  (M, R, C) uint64. Upper half: int32 n, the greatest logit times log2(e) of the chunk's groups, rounded.
                Lower half: the bits of a float32, the sum of exponentials divided by 2^n. See exponential_sums.py
    tops_RP     (R, C * PARTS) float32. Part 4 g + p of a chunk is the quarter p of each run of its group g. The mix is
                that of `best_words`; parts without a number, and parts after the row, have -inf

    A sum is NaN if a logit or bias of its chunk is NaN or above 2^21. All devices return the same bits.
    """
    check_logits(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    arrays = arrays_of(logits_MRV, bias_MV, ngrams)
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(logits_MRV, weights, bias_MV, ngrams, ngram_weight)


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
        children = begin_children(rows, r, at_K, rest_K)
        tops_P = tops_RP[r]
        tops_P[:] = -np.inf
        for c in range(D // 2):
            sums_MS[:] = 0
            reference_M[:] = FIRST_REFERENCE
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
                        add_bias(bias_MV[m, start : start + count], x)
                    top = greatest(x, count, most, tops_P, 4 * g)
                    reference_M[m] = add_terms(x, count, run, kind, powers, top, reference_M[m], sums_MS[m])
                    if not plain and weights_M[m] > 0:
                        add_to_mix(float32(weights_M[m]), x, mix)
                if ngram_kind != NONE:
                    add_ngrams(rows, r, start, count, children, x, mix)
                if not plain:
                    greatest(mix, count, most, tops_P, 4 * g)
            for m in range(M):
                total = sum_chunk(sums_MS[m], run)
                sums_MRD[m, r, 2 * c] = total if total == total else np.nan  # every NaN gets the same bits
                references_MRD[m, r, 2 * c + 1] = reference_M[m]
        for p in range(len(tops_P)):
            tops_P[p] += float32(0)  # no -0


def _cuda(logits_MRV, weights, bias_MV, ngrams, ngram_weight):
    return sums_of_cuda(cuda_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight), *logits_MRV.shape)


def sums_of_cuda(rows: CudaRows, M: int, R: int, V: int) -> tuple[Any, Any]:
    """Return (chunks_MRC, tops_RP) of M models and R rows."""
    import cupy

    size = rows.arguments[0].itemsize
    C = -(-V // CHUNKS[kind_of(rows.arguments[0])])
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
        ngrams = example_ngrams(rng, R, V, np.uint32 if size % 2 else np.int64)
    return {
        "logits_MRV": logits_MRV.astype(dtype, copy=False),
        "weights": (1.0,) if M == 1 and size % 4 else tuple(rng.random(M)),
        "bias_MV": rng.standard_normal((M, V), np.float32) if size % 2 else None,
        "ngrams": ngrams,
        "ngram_weight": 0.3,
    }


def example_ngrams(rng: np.random.Generator, rows: int, V: int, dtype: Any) -> NgramChildren:
    """Return children of 3 histories of each row; children of longer histories are also children of shorter ones."""
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
