"""Compare texts with references: BLEU by sacrebleu, word and character errors by RapidFuzz.

Each text has a row of integers; the metric of a set of texts is a function of the sum of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import split_words

Metric = Literal["bleu", "wer", "cer"]
PACKAGES = {"bleu": "sacrebleu", "wer": "rapidfuzz", "cer": "rapidfuzz"}
MAX_NGRAM = 4


def import_package(metric: Metric) -> Any:
    """Return the package that a metric needs. Raises InputError if it is not installed."""
    try:
        if metric == "bleu":
            import sacrebleu.metrics

            return sacrebleu.metrics
        import rapidfuzz.distance

        return rapidfuzz.distance
    except ImportError as error:
        name = PACKAGES[metric]
        raise InputError(
            f"metric {metric} needs {name}, which cannot be imported ({error}); pip install {name}"
        ) from None


def measure_texts(metric: Metric, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return a row of integers, (N, K) int64, for each text and its references.

    BLEU: numbers of matches of 1 to 4 words, of n-grams of these lengths, of words of the text, and of the reference
    nearest in length, after sacrebleu's tokenisation 13a. WER and CER: the fewest words or characters to insert, delete
    or replace, and the words or characters of that reference; of equally near references the first. White space splits
    words; characters are those of the words joined with single spaces.
    """
    row = _bleu_row() if metric == "bleu" else _error_row(metric)
    rows = [row(text, several) for text, several in zip(texts, references, strict=True)]
    width = 2 * MAX_NGRAM + 2 if metric == "bleu" else 2
    return np.array(rows, np.int64).reshape(len(rows), width)


def _bleu_row() -> Callable[[str, Sequence[str]], list[int]]:
    bleu = import_package("bleu").BLEU(effective_order=True)

    def row(text: str, references: Sequence[str]) -> list[int]:
        score = bleu.sentence_score(text, list(references))
        return [*score.counts, *score.totals, score.sys_len, score.ref_len]

    return row


def _error_row(metric: Metric) -> Callable[[str, Sequence[str]], list[int]]:
    distance = import_package(metric).Levenshtein.distance

    def units(text: str) -> Any:
        words = split_words(text)
        return words if metric == "wer" else " ".join(words)

    def row(text: str, references: Sequence[str]) -> list[int]:
        found = units(text)
        pairs = [[distance(found, reference), len(reference)] for reference in map(units, references)]
        return min(pairs, key=lambda pair: pair[0])

    return row


def quality(metric: Metric, sum_SK: np.ndarray) -> np.ndarray:
    """Return the quality, (S,) float64, of S sets of texts from the sums of their rows; greater is better.

    BLEU in percent, 0 if there is no match of some length; or the negated error rate in percent, -inf for empty
    references. Papineni et al. 2002, BLEU, equations 2 and 3.
    """
    sum_SK = sum_SK.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        if metric != "bleu":
            rate_S = -100 * sum_SK[:, 0] / sum_SK[:, 1]
            return np.where(sum_SK[:, 1] > 0, rate_S, -np.inf)
        log_S4 = np.log(sum_SK[:, :MAX_NGRAM]) - np.log(sum_SK[:, MAX_NGRAM : 2 * MAX_NGRAM])
        penalty_S = np.minimum(0.0, 1 - sum_SK[:, -1] / sum_SK[:, -2])
        bleu_S = 100 * np.exp(penalty_S + log_S4.mean(axis=1))
    return np.where((sum_SK[:, :MAX_NGRAM] > 0).all(axis=1), bleu_S, 0.0)


def shown_quality(metric: Metric, value: float) -> str:
    """Return a quality for people: "BLEU 27.31" or "WER 10.20 %"."""
    return f"BLEU {value:.2f}" if metric == "bleu" else f"{metric.upper()} {abs(value):.2f} %"
