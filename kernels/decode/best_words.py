"""Return the best words of each row of logits: bias, softmax, ensemble, n-gram model and selection in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import float32, float64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import LANES, current_limits, kernel, launch
from . import sum_chunks as sums
from .exponential_sums import LOADS, log_of_chunks
from .logit_rows import (
    VARIANTS,  # noqa: F401 (CI compiles VARIANTS)
    CudaRows,
    HostRows,
    arrays_of,
    begin_children,
    check_logits,
    cuda_rows,
    host_rows,
    load_mix,
    or_null,
)
from .sum_chunks import sums_of_cuda, sums_of_host

MAX_K = 64
# As in best_of_row.cuh:
MAX_WARPS = 16  # warps of a block
HELD_BYTES, HELD_PARTS = 512, (10, 8)  # of a part of a row, 16 bytes a lane, and parts that a warp holds; of a mix
QUEUE_BYTES, CANDIDATE_BYTES = 64 * 8, 16
SENTENCES = 4  # sentences of a block, if each sentence has one warp


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

    logits_MRV    (M, R, V) float32, float16, or uint16 for the bits of bfloat16, of M models. At most 2^21; -inf is
                  legal. Fastest if rows are contiguous and each row of all arrays starts at a multiple of 16 bytes
    k             1 to 64
    costs_R       (R,) float32, the score of each row so far
    weights       M numbers, at least 0, one for each model
    bias_MV       None or (M, V) float32, added to the logits
    ngrams        None; or (R, V) logarithms of probabilities, float32 or the dtype of the logits; or NgramChildren
    ngram_weight  at least 0; multiply it by ln 10 for logarithms of base 10
    forbidden_F   None or (F,) int32: words that are never chosen, such as <unk>. The probability of other words does
                  not change

    Returns words_RK (R, k) int32, scores_RK (R, k) float32 and log_sums_MR (M, R) float64. The score of word v is
    costs_R[r] + sum of weights[m] * (x_mv - log_sums_MR[m, r]) + ngram_weight * ngrams[r, v], where x_mv is the logit
    plus its bias. It is a sum of two parts: `mix`, which depends on v, by float32 multiply-adds in the order of models,
    and the rest, in float64. Words are chosen by the greatest mix, ties by lower word, and returned by falling score,
    ties by lower word. Words of mix -inf or NaN are not chosen. If fewer than k are left, the remaining words are -1
    and their scores -inf. If a logit or bias of a row is NaN or above 2^21, or none is above -2^21, the row's words
    are -1, its scores NaN and the model's log_sum NaN.

    Each logit is read once, even for an ensemble, because the sums of exponentials are the same for all words of a row
    and do not change the order of words (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    All devices return the same bits, for any number of rows; see exponential_sums.py.
    """
    arrays = checked(logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F)
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F)


def checked(
    logits_MRV: Any,
    k: int,
    costs_R: Any,
    weights: Sequence[float],
    bias_MV: Any,
    ngrams: Any,
    ngram_weight: float,
    forbidden_F: Any,
) -> dict[str, Any]:
    """Return all arrays by their names. Raise TypeError or ValueError unless all arguments fit together."""
    check.dtype(costs_R, np.float32)
    if forbidden_F is not None:
        check.dtype(forbidden_F, np.int32)
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k is {k} but must be 1 to {MAX_K}; sort whole rows for more")
    check_logits(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    if costs_R.shape != logits_MRV.shape[1:2]:
        raise ValueError(
            f"costs_R has shape {costs_R.shape} but logits of shape {logits_MRV.shape} need {logits_MRV.shape[1:2]}"
        )
    arrays = arrays_of(logits_MRV, bias_MV, ngrams) | {"costs_R": costs_R}
    return arrays | ({} if forbidden_F is None else {"forbidden_F": forbidden_F})


def _cpu(logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F):
    M, R, V = logits_MRV.shape
    rows = host_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    chunks_MRC, tops_RP = sums_of_host(rows, M, R, V)
    words_RK, scores_RK = np.empty((R, k), np.int32), np.empty((R, k), np.float32)
    log_sums_MR = np.empty((M, R), np.float64)
    forbidden_F = np.empty(0, np.int32) if forbidden_F is None else forbidden_F
    costs_R = np.ascontiguousarray(costs_R)
    sum_MRC, reference_MRC = (
        np.ascontiguousarray(chunks_MRC.view(dtype)[:, :, i::2]) for i, dtype in enumerate((np.float32, np.int32))
    )
    _choose(costs_R, forbidden_F, sum_MRC, reference_MRC, tops_RP, words_RK, scores_RK, log_sums_MR, *rows)
    return words_RK, scores_RK, log_sums_MR


@njit(nogil=True, cache=True)
def _choose(costs_R, forbidden_F, sum_MRC, reference_MRC, tops_RP, words_RK, scores_RK, log_sums_MR, *of_rows):
    rows = HostRows(*of_rows)
    M, R, _ = sum_MRC.shape
    k, group = words_RK.shape[1], LOADS * rows.run
    x, mix = np.empty(group, np.float32), np.empty(group, np.float32)
    at_K, rest_K = np.zeros(LANES, np.int64), np.zeros(LANES, np.float32)
    lanes_L = np.empty(LANES, np.float64)
    bounds = np.empty(min(k + len(forbidden_F), tops_RP.shape[1]), np.float32)
    for r in range(R):
        words_K, scores_K = words_RK[r], scores_RK[r]  # scores_K: mixes until the end of the row
        words_K[:] = -1
        scores_K[:] = -np.inf
        least = _least(tops_RP[r], bounds) if k + len(forbidden_F) <= len(bounds) else float32(-np.inf)
        children = begin_children(rows, r, at_K, rest_K)
        for g in range((rows.V + group - 1) // group):
            tops = tops_RP[r, 4 * g : 4 * g + 4]
            top = max(max(tops[0], tops[1]), max(tops[2], tops[3]))
            if top >= least and top > scores_K[k - 1]:
                start = g * group
                count = min(group, rows.V - start)
                load_mix(rows, r, start, count, children, x, mix)
                _keep_best(mix[: (count + 63) // 64 * 64], start, least, forbidden_F, words_K, scores_K)
        shift = float64(costs_R[r])
        for m in range(M):
            log_sums_MR[m, r] = log_of_chunks(sum_MRC[m, r], reference_MRC[m, r], lanes_L)
            shift -= rows.weights_M[m] * log_sums_MR[m, r]
        _score(shift, words_K, scores_K)


@njit(nogil=True, cache=True)
def _least(tops_P, bounds):
    """Return the greatest number that at least len(bounds) tops reach; overwrites bounds."""
    last = len(bounds) - 1
    bounds[:] = -np.inf
    for p in range(len(tops_P)):
        if tops_P[p] > bounds[last]:
            at = last
            while at and bounds[at - 1] < tops_P[p]:
                bounds[at] = bounds[at - 1]
                at -= 1
            bounds[at] = tops_P[p]
    return bounds[last]


@njit(nogil=True, cache=True)
def _keep_best(values, start, least, forbidden_F, words_K, mixes_K):
    """Insert values, at least `least`, of the words from `start` on into sorted lists; their number: 64, 128, ..."""
    last = len(words_K) - 1
    for first in range(0, len(values), 64):
        found, part = 0, values[first : first + 64]
        for i in range(64):
            found += (part[i] > mixes_K[last]) & (part[i] >= least)
        if found == 0:
            continue
        for i in range(64):
            value, word = part[i], start + first + i
            if value > mixes_K[last] and value >= least and _is_allowed(word, forbidden_F):
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


def _cuda(logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F):
    rows = cuda_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    return best_of_cuda(rows, k, costs_R, forbidden_F, None, None)[1:]


def best_of_cuda(rows: CudaRows, k: int, costs_R: Any, forbidden_F: Any, starts_S1: Any, sizes_S: Any) -> Any:
    """Return (rows_SK, words_SK, scores_SK, log_sums_MR) of `best_hypotheses`; without starts, of each row."""
    import cupy

    logits, *_, M, R, V = rows.arguments[:6]
    alone = starts_S1 is None
    S = R if alone else len(sizes_S)
    rows_SK = None if alone else cupy.empty((S, k), np.int32)
    words_SK, scores_SK = cupy.empty((S, k), np.int32), cupy.empty((S, k), np.float32)
    log_sums_MR = cupy.empty((M, R), np.float64)
    if R == 0 and S == 0:
        return rows_SK, words_SK, scores_SK, log_sums_MR
    mix, per = rows.defines["MIX"], 16 // logits.itemsize
    held = HELD_PARTS[mix] * HELD_BYTES * (per // 4 if mix else 1 + per // 4 * rows.defines["BIAS"])
    candidate_bytes = (1 if alone else k) * k * CANDIDATE_BYTES
    fitting = (current_limits()[1] - candidate_bytes) // (held + QUEUE_BYTES)
    warps = 1 if alone else min(k, MAX_WARPS, fitting)
    sentences = SENTENCES if warps == 1 else 1
    shared_bytes = sentences * (warps * (held + QUEUE_BYTES) + candidate_bytes)
    args = (
        *rows.arguments, k, costs_R, or_null(forbidden_F), 0 if forbidden_F is None else len(forbidden_F),
        *sums_of_cuda(rows, M, R, V), or_null(starts_S1), or_null(sizes_S), S, or_null(rows_SK), words_SK, scores_SK,
        log_sums_MR,
    )  # fmt: skip
    fn = kernel("decode/best_words", "best_words", **rows.defines)
    blocks = -(-(S + (not alone)) // sentences)  # an extra sentence stands for the rows after the last sentence
    launch(fn, blocks, (warps * LANES, sentences), args, shared_bytes=shared_bytes)
    return rows_SK, words_SK, scores_SK, log_sums_MR


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return arguments of `sum_chunks`, costs, and forbidden words."""
    rows = sums.example(rng, size)
    return {
        **rows,
        "k": (1, 4, 8, 40)[size % 4],
        "costs_R": -5 * rng.random(rows["logits_MRV"].shape[1], np.float32),
        "forbidden_F": None if size % 5 == 0 else np.array([1, 2], np.int32),
    }
