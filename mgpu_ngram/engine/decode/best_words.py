"""Choose the best next words of each sentence; for sampling, draw the next words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.word_scores import WordScores
from mgpu_ngram.kernels.common.philox import WORDS, random_numbers
from mgpu_ngram.kernels.decode.advance_beams import Live
from mgpu_ngram.kernels.decode.best_of_beams import Chosen, best_of_beams
from mgpu_ngram.kernels.decode.best_words import MAX_K
from mgpu_ngram.kernels.dispatch import array_module, to_host

MAX_SEED = (1 << 64) - 1
STEP_BITS = 20  # bits of the step in a counter, below the number of the sample


@dataclass(frozen=True)
class Sampling:
    """Options for drawing words: from the `top_k` best words (0: all) that hold `top_p` of the probability.

    temperature  divides the logarithms before the draw
    seed         seed and number of the sentence determine the words, in any batch
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
        if not 0 < self.temperature < math.inf:
            raise InputError(f"the temperature is {self.temperature} but must be a finite number above 0")
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"the seed is {self.seed} but must be 0 to {MAX_SEED}")


class Hypotheses(NamedTuple):
    """Hypotheses to extend, sentence by sentence.

    live         live sentences
    costs_R      float32
    forced_R     int32, the word that must follow; -1: any word. None: any word for all hypotheses
    forbidden_F  int32, words that are never chosen freely, or None
    """

    live: Live
    costs_R: Any
    forced_R: Any
    forbidden_F: Any


def best_of_sentences(scores: WordScores, hypotheses: Hypotheses, k: int) -> Chosen:
    """Return (S, k) rows, words and costs of the best hypotheses of each sentence; see `best_of_beams`.

    k  greatest number of hypotheses of a sentence, 1 to 64; each sentence has as many as its size
    """
    live, costs_R, forced_R, forbidden_F = hypotheses
    xp = array_module(costs_R)
    if forced_R is None:
        return scores.best_of_beams(k, costs_R, live.starts_S1, live.sizes_S, forbidden_F)
    words_RK, scores_RK = scores.best(k, costs_R, forbidden_F)
    forced_costs_R = scores.of_words(xp.arange(len(costs_R)), xp.maximum(forced_R, 0), costs_R)
    for array, forced, none in ((words_RK, forced_R, -1), (scores_RK, forced_costs_R, -np.inf)):
        array[:, 1:] = xp.where(forced_R[:, None] >= 0, none, array[:, 1:])
        array[:, 0] = xp.where(forced_R >= 0, forced, array[:, 0])
    return best_of_beams(words_RK, scores_RK, live.starts_S1, live.sizes_S)


def draw_of_sentences(
    scores: WordScores, hypotheses: Hypotheses, k: int, number_S: np.ndarray, step_S: np.ndarray, sampling: Sampling
) -> Chosen:
    """Return (S, k) rows, words and costs of samples with one more word; a forced word is not drawn.

    k         number of samples of each sentence; ended ones have word -1. At first, one row stands for all samples
    number_S  number of each sentence
    step_S    number of steps that each sentence has done
    """
    live, costs_R, forced_R, forbidden_F = hypotheses
    xp = array_module(costs_R)
    slots_S, starts_S1, places_R = (to_host(a) for a in (live.slots_S, live.starts_S1, live.places_R))
    S, R = len(slots_S), int(starts_S1[-1])
    row_SK = np.full((S, k), -1, np.int32)
    row_SK[np.repeat(np.arange(S), np.diff(starts_S1)), places_R[:R]] = np.arange(R)
    new_S = (slots_S >= 0) & (step_S == 0)
    row_SK[new_S] = starts_S1[:-1][new_S, None]
    sentence_D, sample_D = np.nonzero(row_SK >= 0)
    row_D = xp.asarray(row_SK[sentence_D, sample_D])
    counters = sample_D << STEP_BITS | step_S[sentence_D]
    number_D = random_numbers(sampling.seed, WORDS, number_S[sentence_D], counters)
    word_D = _draw(scores, row_D, xp.asarray(number_D), costs_R, forbidden_F, sampling)
    if forced_R is not None:
        word_D = xp.where(forced_R[row_D] >= 0, forced_R[row_D], word_D)
    cost_D = scores.of_words(row_D, xp.maximum(word_D, 0), costs_R[row_D])
    cost_D = to_host(xp.where((word_D < 0) & ~xp.isnan(cost_D), np.float32(-np.inf), cost_D))
    word_SK, cost_SK = np.full((S, k), -1, np.int32), np.full((S, k), -np.inf, np.float32)
    word_SK[sentence_D, sample_D], cost_SK[sentence_D, sample_D] = to_host(word_D), cost_D
    word_SK[np.isneginf(cost_SK)] = -1
    wrong_S = np.isnan(cost_SK).any(axis=1)
    word_SK[wrong_S], cost_SK[wrong_S] = -1, np.nan
    return Chosen(xp.asarray(row_SK), xp.asarray(word_SK), xp.asarray(cost_SK))


def _draw(scores: WordScores, row_D: Any, number_D: Any, costs_R: Any, forbidden_F: Any, sampling: Sampling) -> Any:
    """Return (D,) the word of each row that a number in [0, 1) draws; -1: there is none."""
    xp, V = array_module(costs_R), scores.logits_MRV.shape[2]
    k = min(sampling.top_k, V) or V
    if k <= MAX_K:
        word_RK, log_RK = scores.best(k, costs_R, forbidden_F)
    else:
        scores.best(1, costs_R, None)  # for the sums
        mix_RV = scores.mix()
        if forbidden_F is not None:
            mix_RV = mix_RV.copy()
            mix_RV[:, forbidden_F] = -np.inf
        log_RK, word_RK = best_of_rows(mix_RV, k)
    weight_RK = xp.exp((log_RK - log_RK[:, :1]).astype(np.float64) / sampling.temperature)
    total_RK = xp.cumsum(weight_RK, axis=1)
    before_RK = total_RK - weight_RK
    inside_RK = (before_RK < sampling.top_p * total_RK[:, -1:]) & ~xp.isneginf(log_RK)
    last_D = xp.maximum(inside_RK.sum(axis=1)[row_D] - 1, 0)  # the words are in order
    limit_D = total_RK[row_D, last_D]
    place_D = (total_RK[row_D] <= (number_D * limit_D)[:, None]).sum(axis=1)
    return word_RK[row_D, xp.minimum(place_D, last_D)]


def best_of_rows(scores_RV: Any, k: int) -> tuple[Any, Any]:
    """Return (scores, words) of the k best words of each row, (R, k); best first, ties by rising word."""
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
