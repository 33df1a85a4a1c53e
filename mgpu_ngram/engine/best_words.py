"""The best next words of each row and of each sentence; the drawn ones, for sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.common.philox import WORDS, random_numbers
from mgpu_ngram.kernels.dispatch import array_module, to_host

STEP_BITS = 20  # of a counter: the step, below the number of the sample


class Chosen(NamedTuple):
    """New hypotheses, on the host, sentence by sentence.

    parent_C  row that each extends
    word_C    its word
    score_C   float32, the cost of the hypothesis
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


def best_of_sentences(scores_RV: Any, sentence_R: np.ndarray, size_S: np.ndarray) -> Chosen:
    """Return the best hypotheses of each sentence: by falling score, then rising row and word.

    scores_RV   costs of all extensions; -inf: forbidden, never chosen
    sentence_R  rising; sentence of each row
    size_S      hypotheses to choose of each sentence
    """
    score_RK, word_RK = (to_host(a) for a in best_of_rows(scores_RV, int(size_S.max())))
    k = score_RK.shape[1]
    parent_C = np.repeat(np.arange(len(sentence_R)), k)
    sentence_C, score_C, word_C = np.repeat(sentence_R, k), score_RK.ravel(), word_RK.ravel()
    if len(sentence_R) > 1:  # candidates of a row are in order, and rows rise
        order_C = np.lexsort((-score_C, sentence_C))
        parent_C, word_C, score_C, sentence_C = (a[order_C] for a in (parent_C, word_C, score_C, sentence_C))
    first_C = np.searchsorted(sentence_C, sentence_C)
    kept_C = (np.arange(len(sentence_C)) - first_C < size_S[sentence_C]) & ~np.isneginf(score_C)
    return Chosen(parent_C[kept_C], word_C[kept_C], score_C[kept_C])


class Draws(NamedTuple):
    """Where a sample is: (D,) each; its row, the number of its sentence, of the sample and of the step."""

    row_D: np.ndarray
    sentence_D: np.ndarray
    sample_D: np.ndarray
    step_D: np.ndarray


def draw_words(log_probs_RV: Any, scores_RV: Any, draws: Draws, sampling: Sampling) -> Chosen:
    """Return a drawn word for each draw.

    log_probs_RV  logarithms of probabilities, -inf for forbidden words; they may lack a constant
    scores_RV     costs of all extensions
    """
    xp = array_module(log_probs_RV)
    counters = draws.sample_D.astype(np.int64) << STEP_BITS | draws.step_D
    number_D = random_numbers(sampling.seed, WORDS, draws.sentence_D, counters)
    k = min(sampling.top_k, log_probs_RV.shape[1]) or log_probs_RV.shape[1]
    log_RK, word_RK = best_of_rows(log_probs_RV, k)
    weight_RK = xp.exp((log_RK - log_RK[:, :1]).astype(np.float64) / sampling.temperature)
    total_RK = xp.cumsum(weight_RK, axis=1)
    before_RK = total_RK - weight_RK
    inside_RK = (before_RK < sampling.top_p * total_RK[:, -1:]) & ~xp.isneginf(log_RK)
    kept_R = inside_RK.sum(axis=1)  # the first ones, because the words are in order
    row_D = xp.asarray(draws.row_D)
    limit_D = total_RK[row_D, xp.maximum(kept_R[row_D] - 1, 0)]
    place_D = (total_RK[row_D] <= (xp.asarray(number_D) * limit_D)[:, None]).sum(axis=1)
    place_D = xp.minimum(place_D, xp.maximum(kept_R[row_D] - 1, 0))
    word_D = word_RK[row_D, place_D]
    return Chosen(draws.row_D, to_host(word_D), to_host(scores_RV[row_D, word_D]))
