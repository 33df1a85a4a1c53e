"""Return the best words of all rows of each sentence: one step of a beam search, after `best_words`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import LANES, grid_for, kernel, launch
from .best_words import MAX_K

THREADS = 64  # threads of a block, one warp for each sentence


class Chosen(NamedTuple):
    """The best candidates of each sentence.

    rows_SK    int32, the row of each candidate
    words_SK   int32
    scores_SK  float32
    """

    rows_SK: Any
    words_SK: Any
    scores_SK: Any


def best_of_beams(words_RK: Any, scores_RK: Any, starts_S1: Any, sizes_S: Any) -> Chosen:
    """Return the best candidates of each sentence.

    words_RK   (R, K) int32, the candidates of each row from `best_words`, K from 1 to 64; -1: no candidate
    scores_RK  (R, K) float32, falling in each row, equal scores by rising word
    starts_S1  (S + 1,) int64: sentence s has rows starts_S1[s] to starts_S1[s + 1] - 1; no rows are legal
    sizes_S    (S,) int32, number of candidates to return of each sentence, at most K

    Returns (S, K) arrays: the sizes_S[s] greatest scores of the sentence, greatest first, ties by lower row, then by
    lower word. So the order is by falling score, then by the flat index row * V + word. The places after these are -1,
    -1 and -inf, and so are places without a candidate above -inf. If a score of the sentence is NaN, all its scores are
    NaN, and its rows and words -1. The values of arguments on a GPU are not checked, because the host would wait for
    them.
    """
    check.dtype(words_RK, np.int32)
    check.dtype(scores_RK, np.float32)
    check.dtype(starts_S1, np.int64)
    check.dtype(sizes_S, np.int32)
    shape = words_RK.shape
    if len(shape) != 2 or scores_RK.shape != shape or not 1 <= shape[1] <= MAX_K:
        raise ValueError(
            f"words and scores have shapes {shape} and {scores_RK.shape} but need one of 1 to {MAX_K} columns"
        )
    if len(starts_S1) != len(sizes_S) + 1:
        raise ValueError(f"got {len(starts_S1)} starts and {len(sizes_S)} sizes; pass one start more than sizes")
    run = pick(
        cpu=_cpu, cuda=_cuda, words_RK=words_RK, scores_RK=scores_RK, starts_S1=starts_S1, sizes_S=sizes_S
    )  # fmt: skip
    return run(words_RK, scores_RK, starts_S1, sizes_S)


def _cpu(words_RK, scores_RK, starts_S1, sizes_S):
    S, K = len(sizes_S), words_RK.shape[1]
    rows_SK, words_SK = np.full((S, K), -1, np.int32), np.full((S, K), -1, np.int32)
    scores_SK = np.full((S, K), -np.inf, np.float32)
    _merge(words_RK, scores_RK, starts_S1, sizes_S, rows_SK, words_SK, scores_SK)
    return Chosen(rows_SK, words_SK, scores_SK)


@njit(nogil=True, cache=True)
def _merge(words_RK, scores_RK, starts_S1, sizes_S, rows_SK, words_SK, scores_SK):
    for s in range(len(sizes_S)):
        rows_K, words_K, scores_K = rows_SK[s], words_SK[s], scores_SK[s]
        last = min(np.int64(sizes_S[s]), np.int64(len(rows_K))) - 1
        is_number = True
        if last < 0:
            continue
        for r in range(starts_S1[s], starts_S1[s + 1]):
            for j in range(words_RK.shape[1]):
                score = scores_RK[r, j]
                is_number &= not np.isnan(score)
                if words_RK[r, j] >= 0 and score > scores_K[last]:
                    at = last
                    while at and scores_K[at - 1] < score:
                        rows_K[at], words_K[at], scores_K[at] = rows_K[at - 1], words_K[at - 1], scores_K[at - 1]
                        at -= 1
                    rows_K[at], words_K[at], scores_K[at] = r, words_RK[r, j], score
        if not is_number:
            rows_K[:] = -1
            words_K[:] = -1
            scores_K[:] = np.nan


def _cuda(words_RK, scores_RK, starts_S1, sizes_S):
    import cupy

    S, K = len(sizes_S), words_RK.shape[1]
    rows_SK, words_SK = cupy.empty((S, K), np.int32), cupy.empty((S, K), np.int32)
    scores_SK = cupy.empty((S, K), np.float32)
    if S:
        args = (
            cupy.ascontiguousarray(words_RK), cupy.ascontiguousarray(scores_RK), starts_S1, sizes_S, S, K, rows_SK,
            words_SK, scores_SK,
        )  # fmt: skip
        fn = kernel("decode/best_of_beams", "best_of_beams")
        launch(fn, grid_for(S, THREADS // LANES), THREADS, args)
    return Chosen(rows_SK, words_SK, scores_SK)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return candidates of sentences that have up to K rows, some of them none; one sentence in 50 has a NaN."""
    K = (1, 4, 8, 40)[size % 4]
    S = -(-size // 8)
    starts_S1 = np.concatenate([[0], np.cumsum(rng.integers(0, K + 1, S))]).astype(np.int64)
    R = int(starts_S1[-1])
    words_RK = rng.integers(0, 1 << 20, (R, K)).astype(np.int32)
    words_RK.sort(axis=1)
    scores_RK = -np.sort(rng.integers(0, 99, (R, K)) / np.float32(8), axis=1).astype(np.float32)  # many ties
    empty_R = rng.random(R) < 0.1
    words_RK[empty_R, K // 2 :], scores_RK[empty_R, K // 2 :] = -1, -np.inf
    scores_RK[rng.random(R) < 0.02 / K] = np.nan
    sizes_S = rng.integers(0, K + 1, S).astype(np.int32)
    return {"words_RK": words_RK, "scores_RK": scores_RK, "starts_S1": starts_S1, "sizes_S": sizes_S}
