"""Score documents: many texts at once, each of one or several sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mgpu_ngram.core.normalize import Normalizer, normalizer
from mgpu_ngram.engine.device import Stopwatch, move_to
from mgpu_ngram.engine.score import BlockScores, Replica
from mgpu_ngram.engine.subwords import SubwordCodes
from mgpu_ngram.kernels.dispatch import to_host

Sentences = Literal["line", "document"]
DECIMALS = 1  # of a perplexity, as CCNet rounds it
DIFFERENCE_DECIMALS = 4
BITS = float(np.log2(10.0))  # of one log10


@dataclass(frozen=True)
class DocumentTotals:
    """The figures of D documents.

    log10_D       (D,) float64, sum of the log10 probabilities of all words
    words_D       (D,) int64, with a </s> for each sentence
    oovs_D        (D,) int64
    perplexity_D  (D,) float64, rounded; NaN without words
    contrast_perplexity_D  the same under the contrast model; NaN without one
    difference_D  (D,) float64, the cross-entropy difference in bits per word (Moore and Lewis 2010): the cross-entropy
                  under the model minus that under the contrast model, rounded; NaN without words or contrast model
    """

    log10_D: np.ndarray
    words_D: np.ndarray
    oovs_D: np.ndarray
    perplexity_D: np.ndarray
    contrast_perplexity_D: np.ndarray
    difference_D: np.ndarray


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
            difference_D = np.round((contrast_D - log10_D) * BITS / words_D, DIFFERENCE_DECIMALS)
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
        return cls._of((np.empty(0, kind) for kind in KINDS), np.zeros(documents, np.int64))

    def without_empty_sentences(self) -> DocumentScores:
        """Return the scores of the sentences that have more than their </s>."""
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


KINDS = (np.float32, np.int32, np.int32, np.float32)  # of the values of sentences


def _sums(values_S: np.ndarray, starts_D: np.ndarray, ends_D: np.ndarray) -> np.ndarray:
    """Return the sum of each document's values, in their order."""
    sums_D = np.zeros(len(starts_D), values_S.dtype)
    filled = ends_D > starts_D
    if filled.any():
        sums_D[filled] = np.add.reduceat(values_S, starts_D[filled])
    return sums_D


def perplexities(log10: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the perplexity of each sum of log10 probabilities, float64, rounded to DECIMALS; NaN without words."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.round(10.0 ** (-log10.astype(np.float64) / words), DECIMALS)


class DocumentScorer:
    """Scores texts with a model.

    codes      None: words stand between white space
    sentences  "line": each line of a text is a sentence, also an empty one, as for KenLM. "document": a text is one
               sentence, and none if it has no words. So CCNet's classes do it
    threads    that a tokeniser may use
    contrast   replica of a second model and its codes, by which documents get their cross-entropy difference
    """

    def __init__(
        self,
        replica: Replica,
        codes: SubwordCodes | None = None,
        normalize: Normalizer = "none",
        sentences: Sentences = "line",
        threads: int = 1,
        contrast: tuple[Replica, SubwordCodes | None] | None = None,
    ):
        self._contrast = contrast
        self._replica, self._codes, self._sentences, self._threads = replica, codes, sentences, threads
        self._normalize, self._as_ccnet = normalizer(normalize), normalize == "ccnet"

    def score(self, texts: list[str], watch: Stopwatch) -> DocumentScores:
        """Return the scores of some texts. `watch` gets the seconds to normalise, tokenise and score them."""
        lines, ends_D = self._lines(texts)
        watch.lap("normalize")
        if not lines:
            return DocumentScores.none(len(texts))
        scores = self._score_lines(lines, self._replica, self._codes, watch)
        words_S = np.diff(to_host(scores.ends_S), prepend=0).astype(np.int32)
        if self._as_ccnet and not self._codes:
            for s, line in enumerate(lines):
                if not line.isascii():  # CCNet counts words between all white space of Unicode; KenLM scores others
                    words_S[s] = len(line.split()) + 1
        contrast_S = np.full(len(words_S), np.nan, np.float32)
        if self._contrast:
            contrast_S = to_host(self._score_lines(lines, *self._contrast, watch).total_S)
        found = DocumentScores(to_host(scores.total_S), words_S, to_host(scores.oovs_S), contrast_S, ends_D)
        if self._sentences == "document":
            found = found.without_empty_sentences()
        watch.lap("score")
        return found

    def _score_lines(
        self, lines: list[str], replica: Replica, codes: SubwordCodes | None, watch: Stopwatch
    ) -> BlockScores:
        """Return the scores of some sentences under a model."""
        if codes:
            codes_T = codes(lines, self._threads)
            watch.lap("tokenize")
            return replica.score_codes(move_to(codes_T, replica.device))
        data = np.frombuffer(("\n".join(lines) + "\n").encode("utf-8", "replace"), np.uint8)
        return replica.score_text(move_to(data, replica.device))[0]

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
