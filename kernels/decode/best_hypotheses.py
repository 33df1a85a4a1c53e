"""Return the best hypotheses of each sentence: the best words of rows, and the best of all rows of each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..dispatch import pick
from . import best_words as words
from .best_of_beams import Chosen, best_of_beams
from .best_words import best_words
from .logit_rows import cuda_rows


class SentenceRows(NamedTuple):
    """Rows of sentences.

    costs_R    (R,) float32, the score of each row so far
    starts_S1  (S + 1,) int64: sentence s has rows starts_S1[s] to starts_S1[s + 1] - 1; the first is 0
    sizes_S    (S,) int32, number of hypotheses to return of each sentence
    """

    costs_R: Any
    starts_S1: Any
    sizes_S: Any


def best_hypotheses(
    logits_MRV: Any,
    k: int,
    sentences: SentenceRows,
    weights: Sequence[float] = (1.0,),
    bias_MV: Any = None,
    ngrams: Any = None,
    ngram_weight: float = 0.0,
    forbidden_F: Any = None,
) -> tuple[Chosen, Any]:
    """Return the best hypotheses of each sentence, and the logarithm of each row's sum of exponentials.

    sentences  each sentence has at most k rows, and at most k hypotheses to return

    Other arguments as for `best_words`. Returns the result of `best_of_beams` for the words of `best_words`, and
    log_sums_MR of `best_words`; sums of rows after the last sentence are NaN. On a GPU, one kernel chooses the words
    of rows and of sentences, and does not read rows after the last sentence.
    """
    costs_R, starts_S1, sizes_S = sentences
    check.dtype(starts_S1, np.int64)
    check.dtype(sizes_S, np.int32)
    if len(starts_S1) != len(sizes_S) + 1:
        raise ValueError(f"got {len(starts_S1)} starts and {len(sizes_S)} sizes; pass one start more than sizes")
    arrays = words.checked(logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F)
    run = pick(cpu=_cpu, cuda=_cuda, starts_S1=starts_S1, sizes_S=sizes_S, **arrays)
    return run(logits_MRV, k, sentences, weights, bias_MV, ngrams, ngram_weight, forbidden_F)


def _cpu(logits_MRV, k, sentences, weights, bias_MV, ngrams, ngram_weight, forbidden_F):
    costs_R, starts_S1, sizes_S = sentences
    most = np.diff(starts_S1).max(initial=0)
    if most > k or starts_S1[0] != 0 or starts_S1[-1] > len(costs_R):
        raise ValueError(
            f"starts are {starts_S1[0]} to {starts_S1[-1]}, up to {most} rows each, but must be from 0 to at most "
            f"{len(costs_R)}, up to {k} each; use best_words and best_of_beams for others"
        )
    words_RK, scores_RK, log_sums_MR = best_words(
        logits_MRV, k, costs_R, weights, bias_MV, ngrams, ngram_weight, forbidden_F
    )
    log_sums_MR[:, starts_S1[-1] :] = np.nan
    return best_of_beams(words_RK, scores_RK, starts_S1, sizes_S), log_sums_MR


def _cuda(logits_MRV, k, sentences, weights, bias_MV, ngrams, ngram_weight, forbidden_F):
    rows = cuda_rows(logits_MRV, weights, bias_MV, ngrams, ngram_weight)
    *chosen, log_sums_MR = words.best_of_cuda(rows, k, sentences.costs_R, forbidden_F, *sentences[1:])
    return Chosen(*chosen), log_sums_MR


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return rows as `best_words` takes them, in sentences of up to k rows. The last row belongs to no sentence."""
    rows = words.example(rng, size)
    R, k = len(rows["costs_R"]), rows["k"]
    starts_S1 = [0]
    while starts_S1[-1] < R - 1:
        starts_S1.append(min(R - 1, starts_S1[-1] + int(rng.integers(0, k + 1))))
    sizes_S = rng.integers(0, k + 1, len(starts_S1) - 1).astype(np.int32)
    return {"sentences": SentenceRows(rows.pop("costs_R"), np.array(starts_S1), sizes_S), **rows}
