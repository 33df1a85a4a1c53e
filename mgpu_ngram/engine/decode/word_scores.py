"""Scores of next words: the logits of models with their weights and biases; `best` reads the logits once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mgpu_ngram.engine.memory.threads import in_pieces
from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.decode.best_hypotheses import SentenceRows, best_hypotheses
from mgpu_ngram.kernels.decode.best_of_beams import Chosen, best_of_beams
from mgpu_ngram.kernels.decode.best_words import best_words
from mgpu_ngram.kernels.decode.logit_rows import NgramChildren
from mgpu_ngram.kernels.dispatch import array_module

MIN_PIECE_LOGITS = 1 << 20  # logits of a thread: about 1 ms


@dataclass
class NgramScores:
    """Natural logarithms of the next words' probabilities by an n-gram model.

    make_rows  function that returns the logarithms, (R, V)
    children   n-grams from which `best_words` computes the logarithms; None: it reads the rows
    """

    make_rows: Callable[[], Any]
    children: NgramChildren | None = None

    @cached_property
    def rows_RV(self) -> Any:
        """(R, V), made on demand."""
        return self.make_rows()

    def part(self, begin: int, end: int) -> Any:
        """Return the n-grams of some rows in the form that `best_words` takes."""
        if self.children is None:
            return self.rows_RV[begin:end]
        first_HK, end_HK, backoff_HK = (array[begin:end] for array in self.children[:3])
        return NgramChildren(first_HK, end_HK, backoff_HK, *self.children[3:])


@dataclass
class WordScores:
    """The score of a word is the weighted sum of the logarithms of its probabilities.

    logits_MRV    logits of M models: float32, float16, or uint16 for the bits of bfloat16
    weights       weights of the models
    bias_MV       float32, added to the logits, or None
    ngrams        scores of an n-gram model, or None
    ngram_weight  weight of the n-gram model
    attention_RT  weights of the source positions, or None
    threads       threads that share the rows on a CPU
    log_sums_MR   logarithm of each row's sum of exponentials; None before `best`
    """

    logits_MRV: Any
    weights: tuple[float, ...] = (1.0,)
    bias_MV: Any = None
    ngrams: NgramScores | None = None
    ngram_weight: float = 0.0
    attention_RT: Any = None
    threads: int = 1
    log_sums_MR: Any = None

    def best(self, k: int, costs_R: Any, forbidden_F: Any) -> tuple[Any, Any]:
        """Return (words, scores), (R, k), of the best words of each row; see `best_words`. Sets `log_sums_MR`."""
        M, R, V = self.logits_MRV.shape

        def choose(begin: int, end: int) -> tuple[Any, Any, Any]:
            ngrams = None if self.ngrams is None or self.ngram_weight == 0 else self.ngrams.part(begin, end)
            return best_words(
                self.logits_MRV[:, begin:end], k, costs_R[begin:end], self.weights, self.bias_MV, ngrams,
                self.ngram_weight, forbidden_F,
            )  # fmt: skip

        xp = array_module(self.logits_MRV)
        pieces = in_pieces(choose, R, self.threads if xp is np else 1, -(-MIN_PIECE_LOGITS // (M * V)))
        if len(pieces) == 1:
            words_RK, scores_RK, self.log_sums_MR = pieces[0]
            return words_RK, scores_RK
        words, scores, sums = zip(*pieces, strict=True)
        self.log_sums_MR = np.concatenate(sums, axis=1)
        return np.concatenate(words), np.concatenate(scores)

    def best_of_beams(self, k: int, costs_R: Any, starts_S1: Any, sizes_S: Any, forbidden_F: Any) -> Chosen:
        """Return the best hypotheses of each sentence of up to k rows; see `best_hypotheses`. Sets `log_sums_MR`."""
        if array_module(costs_R) is np:  # threads share the rows
            return best_of_beams(*self.best(k, costs_R, forbidden_F), starts_S1, sizes_S)
        ngrams = None if self.ngrams is None or self.ngram_weight == 0 else self.ngrams.part(0, len(costs_R))
        chosen, self.log_sums_MR = best_hypotheses(
            self.logits_MRV, k, SentenceRows(costs_R, starts_S1, sizes_S), self.weights, self.bias_MV, ngrams,
            self.ngram_weight, forbidden_F,
        )  # fmt: skip
        return chosen

    def parts(self, row_C: Any, word_C: Any) -> Any:
        """Return (M, C) float64, each model's logarithm of the words' probabilities, after `best`; n-grams last."""
        xp = array_module(self.logits_MRV)
        x_MC = singles(self.logits_MRV[:, row_C, word_C])
        if self.bias_MV is not None:
            x_MC = x_MC + self.bias_MV[:, word_C]
        parts_MC = x_MC.astype(np.float64) - self.log_sums_MR[:, row_C]
        if self.ngrams is None:
            return parts_MC
        return xp.concatenate([parts_MC, self.ngrams.rows_RV[row_C, word_C][None].astype(np.float64)])

    def of_words(self, row_C: Any, word_C: Any, costs_C: Any) -> Any:
        """Return (C,) float32, the scores of words after hypotheses of these costs, after `best`."""
        weights = (*self.weights, self.ngram_weight)
        score_C = costs_C.astype(np.float64)
        for weight, part_C in zip(weights, self.parts(row_C, word_C), strict=False):
            if weight:  # 0 times -inf is 0 here
                score_C = score_C + weight * part_C
        return score_C.astype(np.float32)

    def mix(self) -> Any:
        """Return (R, V) float32, the scores of all words up to a constant for each row."""
        mix_RV: Any = np.float32(0)
        for m, weight in enumerate(self.weights):
            if weight:
                x_RV = singles(self.logits_MRV[m])
                mix_RV = mix_RV + np.float32(weight) * (x_RV if self.bias_MV is None else x_RV + self.bias_MV[m])
        if self.ngrams is not None and self.ngram_weight:
            mix_RV = mix_RV + np.float32(self.ngram_weight) * self.ngrams.rows_RV
        return array_module(self.logits_MRV).broadcast_to(mix_RV, self.logits_MRV.shape[1:])
