"""The best next words of each sentence; the drawn ones, for sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.word_scores import WordScores
from mgpu_ngram.kernels.common.philox import WORDS, random_numbers
from mgpu_ngram.kernels.decode.best_of_beams import best_of_beams
from mgpu_ngram.kernels.dispatch import array_module, to_host

STEP_BITS = 20  # of a counter: the step, below the number of the sample


class Chosen(NamedTuple):
    """New hypotheses, on the host, sentence by sentence.

    parent_C  row that each extends
    word_C    its word
    score_C   float32, the cost of the hypothesis; NaN if the model gives NaN
    """

    parent_C: np.ndarray
    word_C: np.ndarray
    score_C: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """Words are drawn, not chosen: from the `top_k` best (0: all) that hold `top_p` of the probability.

    temperature  divides the logarithms before the draw
    seed         with the number of the sentence, gives the same words in any batch
    """

    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k} but must be 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p} but must be above 0 and at most 1")
        if not self.temperature > 0:
            raise InputError(f"the temperature is {self.temperature} but must be above 0")


class Rows(NamedTuple):
    """Hypotheses to extend, on the host, sentence by sentence.

    sentence_R  rising
    cost_R      float32
    forced_R    the word that must follow; -1: any but `unk`
    unk         a word that is never chosen; -1: none
    """

    sentence_R: np.ndarray
    cost_R: np.ndarray
    forced_R: np.ndarray
    unk: int

    def forbidden(self, xp: Any) -> Any:
        """Return words that are never chosen as the kernels take them."""
        return None if self.unk < 0 else xp.asarray(np.array([self.unk], np.int32))


def best_of_sentences(scores: WordScores, rows: Rows, size_S: np.ndarray) -> Chosen:
    """Return the best hypotheses of each sentence: by falling score, then rising row and word.

    size_S  hypotheses to choose of each sentence, 1 to 64

    Words of score -inf are never chosen. A sentence with a NaN gets one hypothesis, of score NaN.
    """
    xp = array_module(scores.logits_MRV)
    S, k = len(size_S), int(size_S.max())
    costs_R = xp.asarray(rows.cost_R)
    words_RK, scores_RK = scores.best(k, costs_R, rows.forbidden(xp))
    forced = np.flatnonzero(rows.forced_R >= 0)
    if len(forced):
        row_F, word_F = xp.asarray(forced), xp.asarray(rows.forced_R[forced])
        words_RK[row_F], scores_RK[row_F] = -1, -np.inf
        words_RK[row_F, 0] = word_F
        scores_RK[row_F, 0] = scores.of_words(row_F, word_F, costs_R[row_F])
    starts_S1 = np.searchsorted(rows.sentence_R, np.arange(S + 1))
    at = xp.asarray(starts_S1), xp.asarray(size_S.astype(np.int32))
    parent_SK, word_SK, score_SK = (to_host(a) for a in best_of_beams(words_RK, scores_RK, *at))
    wrong_S = np.isnan(score_SK[:, 0])
    if wrong_S.any():
        parent_SK[wrong_S, 0], word_SK[wrong_S, 0] = starts_S1[:-1][wrong_S], 0
    kept_SK = parent_SK >= 0
    return Chosen(*(a[kept_SK] for a in (parent_SK.astype(np.int64), word_SK.astype(np.int64), score_SK)))


class Draws(NamedTuple):
    """Where a sample is: (D,) each; its row, the number of its sentence, of the sample and of the step."""

    row_D: np.ndarray
    sentence_D: np.ndarray
    sample_D: np.ndarray
    step_D: np.ndarray


def draw_words(scores: WordScores, rows: Rows, draws: Draws, sampling: Sampling) -> Chosen:
    """Return a drawn word for each draw; a forced word is not drawn."""
    xp = array_module(scores.logits_MRV)
    costs_R = xp.asarray(rows.cost_R)
    scores.best(1, costs_R, None)  # for the sums
    mix_RV = scores.mix()
    V = mix_RV.shape[1]
    if rows.unk >= 0:
        mix_RV = xp.where(xp.arange(V) == rows.unk, np.float32(-np.inf), mix_RV)
    counters = draws.sample_D.astype(np.int64) << STEP_BITS | draws.step_D
    number_D = random_numbers(sampling.seed, WORDS, draws.sentence_D, counters)
    log_RK, word_RK = best_of_rows(mix_RV, min(sampling.top_k, V) or V)
    weight_RK = xp.exp((log_RK - log_RK[:, :1]).astype(np.float64) / sampling.temperature)
    total_RK = xp.cumsum(weight_RK, axis=1)
    before_RK = total_RK - weight_RK
    inside_RK = (before_RK < sampling.top_p * total_RK[:, -1:]) & ~xp.isneginf(log_RK)
    kept_R = inside_RK.sum(axis=1)  # the first ones, because the words are in order
    row_D = xp.asarray(draws.row_D)
    limit_D = total_RK[row_D, xp.maximum(kept_R[row_D] - 1, 0)]
    place_D = (total_RK[row_D] <= (xp.asarray(number_D) * limit_D)[:, None]).sum(axis=1)
    place_D = xp.minimum(place_D, xp.maximum(kept_R[row_D] - 1, 0))
    forced_D = xp.asarray(rows.forced_R)[row_D]
    word_D = xp.where(forced_D >= 0, forced_D, word_RK[row_D, place_D])
    score_D = scores.of_words(row_D, word_D, costs_R[row_D])
    return Chosen(draws.row_D, to_host(word_D), to_host(score_D))


def best_of_rows(scores_RV: Any, k: int) -> tuple[Any, Any]:
    """Return (scores, words) of the k best words of each row, (R, k); best first, equal ones by rising word."""
    xp = array_module(scores_RV)
    V = scores_RV.shape[1]
    k = min(k, V)
    if k == 1:
        word_R1 = scores_RV.argmax(axis=1)[:, None]
        return xp.take_along_axis(scores_RV, word_R1, axis=1), word_R1
    keys_RV = _rising_keys(scores_RV) << np.uint64(32) | xp.arange(V, dtype=np.uint64)
    if k < V:
        keys_RV = xp.partition(keys_RV, k - 1, axis=1)[:, :k]
    word_RK = (xp.sort(keys_RV, axis=1) & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return xp.take_along_axis(scores_RV, word_RK, axis=1), word_RK


def _rising_keys(scores: Any) -> Any:
    """Return integers that rise as the scores fall. NaN comes first, so that no choice hides it."""
    xp = array_module(scores)
    values = xp.where(xp.isnan(scores), np.float32(np.inf), scores + np.float32(0)).astype(np.float32)
    bits = values.view(np.int32).astype(np.int64)
    rising = xp.where(bits < 0, np.int64(-(2**31)) - bits, bits)  # as the floating-point numbers
    return (np.int64(2**31) - rising).astype(np.uint64)
