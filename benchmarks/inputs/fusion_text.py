"""n-gram models of generated text, for the parts of `bench fusion`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.inputs.frequency_models import ngrams_of, trie_of, zipf_codes, zipf_words
from mgpu_ngram.core.counts.vocabulary import SPECIALS
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.dispatch import to_host

TOKENS = {"gpu": 2_000_000, "cpu": 20_000}
NUM_SPECIALS = len(SPECIALS)  # words before those of the text


class GeneratedText:
    """A generated text.

    words    its vocabulary
    codes_T  word + 1, and 0 after each sentence, on the device of the suite
    """

    words: Words
    codes_T: Any

    def __init__(self, suite: Suite, vocabulary: int):
        self.words, self.codes_T = (
            zipf_words(vocabulary), zipf_codes(TOKENS[suite.device], vocabulary, xp=suite.xp)
        )  # fmt: skip

    def model(self, order: int) -> BackoffModel:
        """Return a model of the text in host memory."""
        return BackoffModel.of(trie_of(self.codes_T, len(self.words), order).map_arrays(to_host), self.words)

    def levels(self, order: int) -> list[Ngrams]:
        """Return the n-grams of that model by order."""
        return list(ngrams_of(self.codes_T, len(self.words), order))

    def histories(self, rows: int, length: int) -> np.ndarray:
        """Return (rows, length) words that follow each other in the text."""
        windows = np.lib.stride_tricks.sliding_window_view(to_host(self.codes_T), length)
        whole = windows[(windows > NUM_SPECIALS).all(axis=1)]
        return whole[:: max(1, len(whole) // rows)][:rows].astype(np.int64) - 1
