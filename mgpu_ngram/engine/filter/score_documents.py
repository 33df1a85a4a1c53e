"""Score documents: many texts at once, each with one or more sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mgpu_ngram.core.documents.normalize import Normalizer, character_map, normalizer
from mgpu_ngram.core.documents.text_column import TextColumn
from mgpu_ngram.engine.filter.subwords import SubwordCodes
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.score.replica import BlockScores, Replica
from mgpu_ngram.kernels.common.ascii import NEWLINE
from mgpu_ngram.kernels.common.powers import LOG2_10
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.filter.count_words import count_words
from mgpu_ngram.kernels.filter.normalize_text import CharacterMap, normalize_text

SentenceUnit = Literal["line", "document"]
PERPLEXITY_DECIMALS = 1  # decimals of a perplexity, as CCNet rounds it
DIFFERENCE_DECIMALS = 4


@dataclass(frozen=True)
class DocumentTotals:
    """The figures of D documents.

    log10_D       (D,) float64, sum of the log10 probabilities of all words
    words_D       (D,) int64, number of words, with a </s> for each sentence
    oovs_D        (D,) int64, number of unknown words
    perplexity_D  (D,) float64, rounded; NaN without words
    contrast_perplexity_D  the same under the contrast model; NaN without one
    cross_entropy_difference_D  (D,) float64, in bits per word (Moore and Lewis 2010): the cross-entropy under the model
                  minus that under the contrast model, rounded; NaN without words or contrast model
    """

    log10_D: np.ndarray
    words_D: np.ndarray
    oovs_D: np.ndarray
    perplexity_D: np.ndarray
    contrast_perplexity_D: np.ndarray
    cross_entropy_difference_D: np.ndarray


@dataclass(frozen=True)
class DocumentScores:
    """The scores of D documents of S sentences.

    log10_S     (S,) float32
    words_S     (S,) int32, with </s>
    oovs_S      (S,) int32
    contrast_S  (S,) float32, log10 probability under the contrast model; NaN without one
    ends_D      (D,) int64: document d has the sentences ends_D[d - 1] (0 for the first) to ends_D[d] - 1; none if it
                has no words
    """

    log10_S: np.ndarray
    words_S: np.ndarray
    oovs_S: np.ndarray
    contrast_S: np.ndarray
    ends_D: np.ndarray

    def __len__(self) -> int:
        return len(self.ends_D)

    def totals(self) -> DocumentTotals:
        """Return the figures of each document."""
        starts_D = np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64) if len(self) else self.ends_D
        columns = (self.log10_S, float), (self.words_S, np.int64), (self.oovs_S, np.int64), (self.contrast_S, float)
        log10_D, words_D, oovs_D, contrast_D = (
            _sums(values.astype(kind), starts_D, self.ends_D) for values, kind in columns
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            difference_D = np.round((contrast_D - log10_D) * LOG2_10 / words_D, DIFFERENCE_DECIMALS)
        return DocumentTotals(
            log10_D, words_D, oovs_D, perplexities(log10_D, words_D), perplexities(contrast_D, words_D), difference_D
        )

    def part(self, start: int, end: int) -> DocumentScores:
        """Return the scores of documents start to end - 1."""
        first = int(self.ends_D[start - 1]) if start else 0
        last = int(self.ends_D[end - 1]) if end else 0
        return self._of((values[first:last] for values in self._sentences), self.ends_D[start:end] - first)

    def take(self, order_D: np.ndarray) -> DocumentScores:
        """Return the scores of documents order_D[0], order_D[1], ..."""
        starts_D = np.concatenate([[0], self.ends_D[:-1]])[order_D]
        sizes_D = self.ends_D[order_D] - starts_D
        ends_D = np.cumsum(sizes_D)
        order_S = np.repeat(starts_D - ends_D + sizes_D, sizes_D) + np.arange(int(sizes_D.sum()))
        return self._of((values[order_S] for values in self._sentences), ends_D)

    @classmethod
    def none(cls, documents: int) -> DocumentScores:
        """Return the scores of documents without words."""
        return cls._of((np.empty(0, kind) for kind in SENTENCE_DTYPES), np.zeros(documents, np.int64))

    def without_empty_sentences(self) -> DocumentScores:
        """Return the scores of the sentences that have words besides their </s>."""
        kept_S = self.words_S > 1
        before_S1 = np.concatenate([[0], np.cumsum(kept_S)]).astype(np.int64)
        return self._of((values[kept_S] for values in self._sentences), before_S1[self.ends_D])

    @classmethod
    def joined(cls, parts: list[DocumentScores]) -> DocumentScores:
        """Return the scores of the documents of all parts."""
        shift, ends = 0, [np.empty(0, np.int64)]
        for part in parts:
            ends.append(part.ends_D + shift)
            shift += len(part.log10_S)
        columns = zip(*(part._sentences for part in [cls.none(0), *parts]), strict=True)
        return cls._of(map(np.concatenate, columns), np.concatenate(ends))

    @property
    def _sentences(self) -> tuple[np.ndarray, ...]:
        return self.log10_S, self.words_S, self.oovs_S, self.contrast_S

    @classmethod
    def _of(cls, sentences: Iterable[np.ndarray], ends_D: np.ndarray) -> DocumentScores:
        log10_S, words_S, oovs_S, contrast_S = sentences
        return cls(log10_S, words_S, oovs_S, contrast_S, ends_D)


SENTENCE_DTYPES = (np.float32, np.int32, np.int32, np.float32)  # dtypes of the values of sentences


def _sums(values_S: np.ndarray, starts_D: np.ndarray, ends_D: np.ndarray) -> np.ndarray:
    """Return the sum of each document's values, in their order."""
    sums_D = np.zeros(len(starts_D), values_S.dtype)
    filled = ends_D > starts_D
    if filled.any():
        sums_D[filled] = np.add.reduceat(values_S, starts_D[filled])
    return sums_D


def perplexities(log10: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the perplexity of each sum of log10 probabilities, rounded to PERPLEXITY_DECIMALS; NaN without words."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.round(10.0 ** (-log10.astype(np.float64) / words), PERPLEXITY_DECIMALS)


class DocumentScorer:
    """Scores texts with a model.

    codes      codes of a tokeniser; None: white space separates words
    sentences  "line": each line of a text is a sentence, even an empty line, as in KenLM. "document": a text is one
               sentence, or no sentence if it has no words, as in CCNet's classes
    threads    threads that a tokeniser may use
    contrast   replica and codes of a second model, for the cross-entropy difference of documents
    """

    def __init__(
        self,
        replica: Replica,
        codes: SubwordCodes | None = None,
        normalize: Normalizer = "none",
        sentences: SentenceUnit = "line",
        threads: int = 1,
        contrast: tuple[Replica, SubwordCodes | None] | None = None,
    ):
        self._contrast = contrast
        self._replica, self._codes, self._sentences, self._threads = replica, codes, sentences, threads
        self._normalize, self._as_ccnet = normalizer(normalize), normalize == "ccnet"
        characters = character_map(normalize, sentences == "line")
        self._characters = CharacterMap(*(move_to(array, replica.device) for array in characters))

    def score(self, texts: TextColumn, watch: Stopwatch) -> DocumentScores:
        """Return the scores of texts. `watch` gets the seconds of normalisation, tokenisation and scoring."""
        found, left = self._score_column(texts, watch)
        if left:  # texts that the kernel leaves to Python
            lines, ends_D = self._lines([texts[d] for d in left])
            data = "".join(line + "\n" for line in lines).encode("utf-8", "replace")
            watch.lap("normalize")
            own = self._score_sentences(_Sentences(np.frombuffer(data, np.uint8), self._replica.device), ends_D, watch)
            order_D = np.arange(len(texts))
            order_D[left] = len(texts) + np.arange(len(left))
            found = DocumentScores.joined([found, own]).take(order_D)
        if self._sentences == "document":
            found = found.without_empty_sentences()
        watch.lap("score")
        return found

    def _score_column(self, texts: TextColumn, watch: Stopwatch) -> tuple[DocumentScores, list[int]]:
        """Return (the scores of all texts, numbers of the texts that the kernel left out: these have no sentences)."""
        device = self._replica.device
        data, ends_D = move_to(texts.data, device), move_to(texts.ends_D, device)
        by_line = self._sentences == "line"
        text_B, ends_D, failed_D = normalize_text(data, ends_D, self._characters, by_line, self._as_ccnet)
        left = sorted({*texts.odd, *np.flatnonzero(to_host(failed_D)).tolist()})
        sentences, ends_D = _Sentences(text_B, device), to_host(ends_D)
        watch.lap("normalize")
        return self._score_sentences(sentences, ends_D, watch), left

    def _score_sentences(self, sentences: _Sentences, ends_D: np.ndarray, watch: Stopwatch) -> DocumentScores:
        """Return the scores of documents; document d has the sentences up to ends_D[d]."""
        if not len(sentences.text_B):
            return DocumentScores.none(len(ends_D))
        codes_T = self._cut(sentences, self._codes, watch)
        scores = _scores_of(sentences, self._replica, codes_T)
        words_S = np.diff(to_host(scores.ends_S), prepend=0).astype(np.int32)
        if self._as_ccnet and not self._codes:
            # CCNet counts words between any white space of Unicode; KenLM splits only at that of C's isspace.
            own_S = move_to(words_S, sentences.device)
            words_S = to_host(count_words(sentences.text_B, sentences.ends_S, own_S - np.int32(1))) + np.int32(1)
        contrast_S = np.full(len(words_S), np.nan, np.float32)
        if self._contrast:
            replica, codes = self._contrast
            table = self._codes.table_for(codes) if self._codes and codes else None
            contrast_T = self._cut(sentences, codes, watch) if table is None else table[codes_T]
            contrast_S = to_host(_scores_of(sentences, replica, contrast_T).total_S)
        return DocumentScores(to_host(scores.total_S), words_S, to_host(scores.oovs_S), contrast_S, ends_D)

    def _cut(self, sentences: _Sentences, codes: SubwordCodes | None, watch: Stopwatch) -> Any:
        """Return the codes of some sentences on their device; None if white space separates words."""
        if not codes:
            return None
        codes_T = move_to(codes.of_sentences(sentences.text_B, sentences.ends_S, self._threads), sentences.device)
        watch.lap("tokenize")
        return codes_T

    def _lines(self, texts: list[str]) -> tuple[list[str], np.ndarray]:
        """Return the sentences of all texts, and ends_D. An empty text has none."""
        lines: list[str] = []
        ends: list[int] = []
        normalize = self._normalize
        for text in texts:
            if self._sentences == "line":
                some = text.split("\n")
                if normalize:
                    some = [normalize(line) for line in some]
            else:
                some = [(normalize(text) if normalize else text).replace("\n", " ")]
            if text:
                lines += some
            ends.append(len(lines))
        return lines, np.array(ends, np.int64)


def _scores_of(sentences: _Sentences, replica: Replica, codes_T: Any) -> BlockScores:
    """Return the scores of some sentences under a model, by their codes if there are any."""
    return replica.score_text(sentences.text_B)[0] if codes_T is None else replica.score_codes(codes_T)


class _Sentences:
    """Sentences on a device: text_B (B,) uint8, with a newline after each."""

    def __init__(self, text_B: Any, device: str):
        self.text_B, self.device = move_to(text_B, device), device

    @cached_property
    def ends_S(self) -> Any:
        """(S,) int64, the byte after each newline."""
        return array_module(self.text_B).flatnonzero(self.text_B == NEWLINE) + 1
