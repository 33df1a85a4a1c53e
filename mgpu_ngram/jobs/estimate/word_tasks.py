"""The tasks of an estimate on single words, and on vectors over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.vocabulary import SPECIALS, UNK_ID, Vocabulary
from mgpu_ngram.core.ngrams.kneser_ney_discounts import Discounts
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.estimate.adjusted_counts import (
    MAX_COUNTED,
    adjust_unigrams,
    places_in_text,
)
from mgpu_ngram.engine.estimate.part import (
    EstimateOptions,
    Unigrams,
)
from mgpu_ngram.engine.estimate.plain_count_smoothing import (
    plain_unigrams,
    smooth_unigrams,
)
from mgpu_ngram.engine.estimate.probabilities import estimate_unigrams
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import device_of, to_device
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.estimate.count_counts import count_counts
from mgpu_ngram.kernels.estimate.smooth_contexts import Rule


@dataclass
class _Words:
    """Single words: adjusted counts (V,) and whether they are kept (V,), on the device.

    size    (kept words, all words)
    tokens  of the text, without sentence markers
    """

    count_V: Any
    kept_V: Any
    counts_of_counts: list[int]
    size: tuple[int, int]
    tokens: int


def words_outside(vocabulary: Vocabulary, limit: Words, device: str) -> Any:
    """Return (V,) bool, the words outside a limited vocabulary; specials are always inside."""
    bad_V = np.ones(len(vocabulary), bool)
    words = Words(vocabulary.offsets_V, vocabulary.data)
    bad_V[words.ids(limit.offsets_V, limit.data)] = False
    bad_V[: len(SPECIALS)] = False
    return to_device(bad_V, device)


class LastWord(NamedTuple):
    """The last word of a text by `places_in_text`, and the place of each word (V,). lmplz's slip depends on them."""

    word: int
    place_V: np.ndarray


def element_at(vector: Any, place: int) -> int:
    return int(vector[place])


def add_vectors(*vectors: Any) -> Any:
    """Return the sum of vectors, on the device of the first one, or in host memory if that is full."""

    def add(device: str) -> Any:
        total = move_to(vectors[0], device).copy()
        for vector in vectors[1:]:
            total += move_to(vector, device)
        return total

    return on_device_or_host(add, device_of(vectors[0]))


def adjust_words(lefts: list[Any], vocabulary: Vocabulary, options: EstimateOptions, bad_V: Any, device: str) -> _Words:
    """Return the adjusted counts of single words, from each part's numbers of words before them."""
    counts_V = to_device(vocabulary.counts_V, device)
    left_V, smoothing = move_to(add_vectors(*lefts), device) if lefts else counts_V, options.smoothing
    if smoothing:
        count_V, kept_V = plain_unigrams(counts_V, smoothing.closed)
    else:
        count_V, kept_V = adjust_unigrams(left_V, counts_V, options, bad_V)
    counted = count_counts(count_V, smoothing.counted(1) if smoothing else MAX_COUNTED)
    tokens = int(vocabulary.counts_V[len(SPECIALS) :].sum() + vocabulary.counts_V[UNK_ID])
    return _Words(count_V, kept_V, counted, (count_true(kept_V), len(kept_V)), tokens)


class ReportOfWords(NamedTuple):
    """What `_Words` says to the driver."""

    counts_of_counts: list[int]
    size: tuple[int, int]
    tokens: int


def report_of_words(words: _Words) -> ReportOfWords:
    return ReportOfWords(words.counts_of_counts, words.size, words.tokens)


def estimate_unigrams_of(words: _Words, rule: Discounts | Rule, options: EstimateOptions) -> Unigrams:
    if isinstance(rule, Rule):
        closed = options.smoothing is not None and options.smoothing.closed
        return smooth_unigrams(words.count_V, rule, options.thresholds[0], closed)
    return estimate_unigrams(words.count_V, words.kept_V, rule, options)


def last_word(vocabulary: Vocabulary) -> LastWord:
    place_V = places_in_text(vocabulary.first_source_V, vocabulary.first_offset_V)
    return LastWord(int(np.where(vocabulary.counts_V > 0, place_V, -1).argmax()), place_V)


def counts_of_last(vocabulary: Vocabulary, words: _Words, last: LastWord) -> tuple[int, int, int]:
    """Return the last word, its adjusted count and its raw count."""
    return last.word, int(words.count_V[last.word]), int(vocabulary.counts_V[last.word])
