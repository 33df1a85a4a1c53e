"""Score documents: many texts at once, each of one or several sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mgpu_ngram.core.normalize import Normalizer, normalizer
from mgpu_ngram.engine.device import Stopwatch, move_to
from mgpu_ngram.engine.score import Replica
from mgpu_ngram.engine.subwords import SubwordCodes
from mgpu_ngram.kernels.dispatch import to_host

Sentences = Literal["line", "document"]
DECIMALS = 1  # of a perplexity, as CCNet rounds it


@dataclass(frozen=True)
class DocumentScores:
    """The scores of D documents of S sentences.

    log10_S  (S,) float32
    words_S  (S,) int32, with </s>
    oovs_S   (S,) int32
    ends_D   (D,) int64: document d has the sentences ends_D[d - 1] (0 for the first) to ends_D[d] - 1; none if it has
             no words
    """

    log10_S: np.ndarray
    words_S: np.ndarray
    oovs_S: np.ndarray
    ends_D: np.ndarray

    def __len__(self) -> int:
        return len(self.ends_D)

    def totals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log10_D float64, words_D and oovs_D int64; all 0 for a document without words."""
        starts_D = np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64) if len(self) else self.ends_D
        columns = (self.log10_S, np.float64), (self.words_S, np.int64), (self.oovs_S, np.int64)
        log10_D, words_D, oovs_D = (_sums(values.astype(kind), starts_D, self.ends_D) for values, kind in columns)
        return log10_D, words_D, oovs_D

    def part(self, start: int, end: int) -> DocumentScores:
        """Return the scores of documents start to end - 1."""
        first = int(self.ends_D[start - 1]) if start else 0
        last = int(self.ends_D[end - 1]) if end else 0
        log10_S, words_S, oovs_S = (values[first:last] for values in (self.log10_S, self.words_S, self.oovs_S))
        return DocumentScores(log10_S, words_S, oovs_S, self.ends_D[start:end] - first)

    def take(self, order_D: np.ndarray) -> DocumentScores:
        """Return the scores of documents order_D[0], order_D[1], ..."""
        starts_D = np.concatenate([[0], self.ends_D[:-1]])[order_D]
        sizes_D = self.ends_D[order_D] - starts_D
        ends_D = np.cumsum(sizes_D)
        order_S = np.repeat(starts_D - ends_D + sizes_D, sizes_D) + np.arange(int(sizes_D.sum()))
        return DocumentScores(self.log10_S[order_S], self.words_S[order_S], self.oovs_S[order_S], ends_D)

    @classmethod
    def none(cls, documents: int) -> DocumentScores:
        """Return the scores of documents without words."""
        ends_D = np.zeros(documents, np.int64)
        return cls(np.empty(0, np.float32), np.empty(0, np.int32), np.empty(0, np.int32), ends_D)

    def without_empty_sentences(self) -> DocumentScores:
        """Return the scores of the sentences that have more than their </s>."""
        kept_S = self.words_S > 1
        before_S1 = np.concatenate([[0], np.cumsum(kept_S)]).astype(np.int64)
        return DocumentScores(self.log10_S[kept_S], self.words_S[kept_S], self.oovs_S[kept_S], before_S1[self.ends_D])

    @classmethod
    def joined(cls, parts: list[DocumentScores]) -> DocumentScores:
        """Return the scores of the documents of all parts."""
        shift, ends = 0, [np.empty(0, np.int64)]
        for part in parts:
            ends.append(part.ends_D + shift)
            shift += len(part.log10_S)
        return cls(
            np.concatenate([np.empty(0, np.float32), *(part.log10_S for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *(part.words_S for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *(part.oovs_S for part in parts)]),
            np.concatenate(ends),
        )


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
    """

    def __init__(
        self,
        replica: Replica,
        codes: SubwordCodes | None = None,
        normalize: Normalizer = "none",
        sentences: Sentences = "line",
        threads: int = 1,
    ):
        self._replica, self._codes, self._sentences, self._threads = replica, codes, sentences, threads
        self._normalize, self._as_ccnet = normalizer(normalize), normalize == "ccnet"

    def score(self, texts: list[str], watch: Stopwatch) -> DocumentScores:
        """Return the scores of some texts. `watch` gets the seconds to normalise, tokenise and score them."""
        lines, ends_D = self._lines(texts)
        watch.lap("normalize")
        if not lines:
            return DocumentScores.none(len(texts))
        replica = self._replica
        if self._codes:
            codes_T = self._codes(lines, self._threads)
            watch.lap("tokenize")
            scores = replica.score_codes(move_to(codes_T, replica.device))
        else:
            data = np.frombuffer(("\n".join(lines) + "\n").encode("utf-8", "replace"), np.uint8)
            scores, _ = replica.score_text(move_to(data, replica.device))
        words_S = np.diff(to_host(scores.ends_S), prepend=0).astype(np.int32)
        if self._as_ccnet and not self._codes:
            for s, line in enumerate(lines):
                if not line.isascii():  # CCNet counts words between all white space of Unicode; KenLM scores others
                    words_S[s] = len(line.split()) + 1
        found = DocumentScores(to_host(scores.total_S), words_S, to_host(scores.oovs_S), ends_D)
        if self._sentences == "document":
            found = found.without_empty_sentences()
        watch.lap("score")
        return found

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
