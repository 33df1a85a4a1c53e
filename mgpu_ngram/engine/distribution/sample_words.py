"""Words sampled after histories that a `NextWordModel` has found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.distribution.row_maker import MIN_PIECE_HISTORIES, MIN_PIECE_ROWS, FoundHistories
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.threads import in_pieces
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.distribution.draw_best import draw_best
from mgpu_ngram.kernels.distribution.draw_by_tiles import draw_by_tiles
from mgpu_ngram.kernels.distribution.draw_ranked import Limits, Ranking, draw_ranked
from mgpu_ngram.kernels.distribution.draw_words import NOT_DRAWN, Siblings, draw_words
from mgpu_ngram.kernels.distribution.sum_children import sum_children
from mgpu_ngram.kernels.distribution.top_words import MAX_TOP_K

MIN_DRAWN_TEMPERATURE = 0.15  # float64 holds powers of all float32 probabilities down to it; rows are scaled anyway
MAX_INVERSE = 1e300  # greatest inverse of a temperature; finite, so 0 times it is 0
OTHER_SEED = 1 << 63  # changes a seed


class SamplingWeights(NamedTuple):
    """Sums of the weights of n-grams at one temperature."""

    siblings: Siblings
    ranking: Ranking


class WordSampler:
    """Samples words with a model, whose device and threads it uses."""

    def __init__(self, model: NextWordModel):
        self.model = model
        self._last_weights: tuple[float, SamplingWeights] | None = None
        self._summing = threading.Lock()

    def sample(
        self, found: FoundHistories, first: int, seed: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
    ) -> Any:
        """Return (H,) int32, one word sampled from each smoothed row of the highest order; -1: no word is probable.

        found        with backoffs in log10
        first        number of the first history among all histories of a run, whichever call samples it
        seed         0 to 2^64 - 1; seed and number of a history select its random numbers
        temperature  words have probability proportional to p ** (1 / temperature); 0: the most probable word
        top_k        sample from the top_k most probable words only; 0: from all
        top_p        sample from the most probable words only, as few as reach this share; 1: from all

        Raises InputError for a model without backoffs.
        """
        model = self.model
        model.check(RowOptions((model.order,)))
        if temperature == 0:
            temperature, top_k, top_p = 1.0, 1, 1.0
        top_k = top_k if top_k < model.symbols else 0
        inverse = min(1 / temperature, MAX_INVERSE)
        numbers_H = array_module(model.word_G).arange(first, first + len(found.first_HK), dtype=np.int64)
        if top_p == 1 and 0 < top_k <= MAX_TOP_K:
            ids_HNK, values_HNK = model.top(found, RowOptions((model.order,), top_k=top_k, scale="log10"))
            return draw_best(ids_HNK[:, 0], values_HNK[:, 0], numbers_H, seed, inverse)
        if temperature < MIN_DRAWN_TEMPERATURE:
            return self._sample_rows(found, numbers_H, seed, temperature, top_k, top_p)
        siblings, ranking = self._weights(inverse)

        def draw(begin: int, end: int) -> Any:
            piece, numbers = found.part(begin, end).arrays_in("log10"), numbers_H[begin:end]
            if top_k == 0 and top_p == 1:
                return draw_words(piece, siblings, numbers, seed, inverse)
            return draw_ranked(piece, siblings, ranking, numbers, seed, inverse, Limits(top_k, top_p, model.left_out))

        least = MIN_PIECE_HISTORIES if top_k == 0 and top_p == 1 else MIN_PIECE_ROWS
        words_H = self._joined(draw, len(numbers_H), least)
        left_L = array_module(words_H).flatnonzero(words_H == NOT_DRAWN)
        if len(left_L):  # with another seed: these histories are known to fail with their random numbers
            left = FoundHistories(found.first_HK[left_L], found.end_HK[left_L], found.backoff_HK[left_L], found.scale)
            words_H[left_L] = self._sample_rows(left, numbers_H[left_L], seed ^ OTHER_SEED, temperature, top_k, top_p)
        return words_H

    def _sample_rows(
        self, found: FoundHistories, numbers_H: Any, seed: int, temperature: float, top_k: int, top_p: float
    ) -> Any:
        values, left_out = self.model.values("prob"), self.model.left_out

        def draw(begin: int, end: int) -> Any:
            piece, numbers = found.part(begin, end).arrays_in("prob"), numbers_H[begin:end]
            return draw_by_tiles(piece, values, numbers, seed, temperature, top_k, top_p, left_out)

        return self._joined(draw, len(numbers_H), MIN_PIECE_ROWS)

    def _joined(self, draw: Callable[[int, int], Any], histories: int, least: int) -> Any:
        """Return the words that draw(begin, end) gives for all histories; on a CPU threads share them."""
        pieces = in_pieces(draw, histories, self.model.threads if self.model.device == "cpu" else 1, least)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _weights(self, inverse: float) -> SamplingWeights:
        """Return sums of weights at a temperature. Caches those of the last one."""
        model = self.model
        with self._summing:
            if self._last_weights is not None and self._last_weights[0] == inverse:
                return self._last_weights[1]
            self._last_weights = None  # frees its memory first
        ranked_V = model.ranked("log10")
        of_words = model.prob_V[ranked_V], ranked_V, array_module(ranked_V).array([model.symbols])
        with memory_guard(
            "summing the weights of n-grams, 8 bytes each", model.device, f"give top_k, up to {MAX_TOP_K:,}"
        ):
            sums_G = sum_children(model.prob_G, model.word_G, model.trie.first_child_M, inverse, model.left_out)
            ranking = Ranking(model.prob_G, ranked_V, sum_children(*of_words, inverse, model.left_out))
        made = SamplingWeights(Siblings(model.word_G, sums_G, model.symbols), ranking)
        synchronize(model.device)  # the next call may use another stream
        with self._summing:
            self._last_weights = inverse, made
        return made
