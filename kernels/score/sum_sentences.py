"""Sum the log10 probabilities of the words of each sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

UNKNOWN_CODE = 1  # the code of words that are not in the vocabulary
THREADS = 128  # as in sum_sentences.cu


def sum_sentences(codes_T: Any, prob_T: Any, ends_S: Any) -> tuple[Any, Any, Any]:
    """Return each sentence's log10 probability, its number of unknown words, and their log10 probability.

    codes_T  (T,) uint32; 1 is an unknown word
    prob_T   (T,) float32, log10
    ends_S   (S,) int64, 0 to T, not falling: sentence s is the tokens from ends_S[s - 1] (0 for the first) to
             ends_S[s] - 1

    Returns total_S (S,) float32, oovs_S (S,) int32 and oov_total_S (S,) float64. Each sum runs in token order and in
    the precision of its dtype: total_S has the same bits as KenLM's.
    """
    check.dtype(codes_T, np.uint32)
    check.dtype(prob_T, np.float32)
    check.dtype(ends_S, np.int64)
    if len(codes_T) != len(prob_T):
        raise ValueError(f"got {len(codes_T)} codes and {len(prob_T)} probabilities; pass one of each per token")
    return pick(cpu=_cpu, cuda=_cuda, codes_T=codes_T, prob_T=prob_T, ends_S=ends_S)(codes_T, prob_T, ends_S)


@njit(nogil=True, cache=True)
def _cpu(codes_T, prob_T, ends_S):
    S = len(ends_S)
    total_S, oovs_S, oov_total_S = np.empty(S, np.float32), np.empty(S, np.int32), np.empty(S, np.float64)
    start = 0
    for s in range(S):
        total, oovs, oov_total = np.float32(0), 0, 0.0
        for t in range(start, ends_S[s]):
            total += prob_T[t]
            if codes_T[t] == UNKNOWN_CODE:
                oovs += 1
                oov_total += prob_T[t]
        total_S[s], oovs_S[s], oov_total_S[s] = total, oovs, oov_total
        start = ends_S[s]
    return total_S, oovs_S, oov_total_S


def _cuda(codes_T, prob_T, ends_S):
    import cupy

    S = len(ends_S)
    total_S, oovs_S, oov_total_S = cupy.empty(S, np.float32), cupy.empty(S, np.int32), cupy.empty(S, np.float64)
    if S:
        fn = kernel("score/sum_sentences", "sum_sentences")
        launch(fn, grid_for(S, THREADS), THREADS, (codes_T, prob_T, ends_S, S, total_S, oovs_S, oov_total_S))
    return total_S, oovs_S, oov_total_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Sentences of about 15 words, some empty and one long, every tenth word unknown."""
    ends_S = np.sort(rng.integers(0, size + 1, -(-size // 15)))
    ends_S[: len(ends_S) // 4] = ends_S[: len(ends_S) // 4] // 8
    return {
        "codes_T": rng.integers(0, 11, size, np.uint32),
        "prob_T": -rng.random(size, np.float32) * 5,
        "ends_S": ends_S,
    }
