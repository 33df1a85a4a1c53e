"""Compare models on a text: score a chunk with each model, and test paired differences of sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.read_text import read_blocks
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.score.score_chunk import Columns, ScoreOptions, score_chunk

NORMAL_95 = 1.959963984540054  # standard deviations of a normal variable within which 95 % lie
EXACT_TRIALS = 1000  # the sign test is exact up to so many sentences, then approximated by a normal variable
BLOCK_BYTES = 4 << 20


@dataclass
class ChunkComparison:
    """The scores of S sentences of a chunk in M models, in host memory.

    sentences  columns as in `ChunkScores`, for each model
    known_S    int32, number of words of the sentence that all models know, with a scored </s>
    log10_MS   float64, log10 probability of these words in each model
    lengths    for each model, (order + 1,) int64: words by the length of the longest n-gram that ends there; place 0
               counts unknown words
    lines      {line in the chunk: its text} for sentences that may be among the largest differences
    seconds    by step
    """

    sentences: list[Columns]
    known_S: np.ndarray
    log10_MS: np.ndarray
    lengths: list[np.ndarray]
    lines: dict[int, bytes] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def compare_chunk(chunk: Chunk, models: Sequence[ScoreOptions], shown: int) -> ChunkComparison:
    """Score the lines of a chunk with each model.

    shown  number of lines to keep for each pair of models, in each direction
    """
    scored = [score_chunk(chunk, replace(options, words="numbers")) for options in models]
    sentences = [scores.sentences for scores in scored]
    words = [scores.words for scores in scored]
    seconds = add_seconds(*(scores.seconds for scores in scored))
    lengths = [np.bincount(np.where(w["id"] == 0, 0, w["ngram_length"])) if w else np.zeros(1, int) for w in words]
    if not words[0]:
        nothing = np.zeros(0, np.int32)
        return ChunkComparison(sentences, nothing, np.zeros((len(models), 0)), lengths, seconds=seconds)
    S = len(sentences[0]["words"])
    known_T = np.logical_and.reduce([w["id"] != 0 for w in words])
    sentence_T = words[0]["sentence"][known_T]
    known_S = np.bincount(sentence_T, minlength=S).astype(np.int32)
    log10_MS = np.stack([np.bincount(sentence_T, w["prob_log10"][known_T], minlength=S) for w in words])
    wanted = {s for difference_S in differences(log10_MS) for s in extremes(difference_S, shown)}
    return ChunkComparison(sentences, known_S, log10_MS, lengths, _lines(chunk, wanted), seconds)


def differences(log10_MS: np.ndarray) -> np.ndarray:
    """Return the log10 probabilities of S sentences in each later model, minus those in the first one, (M - 1, S).

    0 where both models give a sentence the probability 0.
    """
    with np.errstate(invalid="ignore"):
        return np.where(log10_MS[1:] == log10_MS[0], 0.0, log10_MS[1:] - log10_MS[0])


def extremes(difference_S: np.ndarray, most: int) -> list[int]:
    """Return the sentences with the largest gains, then those with the largest losses; ties by number.

    most  greatest number of gains, and of losses
    """
    order = np.lexsort((np.arange(len(difference_S)), -difference_S))
    gains = [int(s) for s in order[:most] if difference_S[s] > 0]
    order = np.lexsort((np.arange(len(difference_S)), difference_S))
    return [*gains, *(int(s) for s in order[:most] if difference_S[s] < 0)]


def _lines(chunk: Chunk, wanted: set[int]) -> dict[int, bytes]:
    """Return some lines of a chunk by number."""
    found: dict[int, bytes] = {}
    first = 0
    for block in read_blocks(chunk, "word", BLOCK_BYTES) if wanted else ():
        ends = np.flatnonzero(block.data == ord("\n"))
        for s in wanted:
            if first <= s < first + len(ends):
                begin = int(ends[s - first - 1]) + 1 if s > first else 0
                found[s] = block.data[begin : int(ends[s - first])].tobytes()
        first += len(ends)
    return found


@dataclass(frozen=True)
class Paired:
    """The differences of sentences between a model and the first model, on words that all models know.

    better, worse, equal  sentences that are more, less and equally probable than in the first model
    sign_p       p of the two-sided sign test; 1 if no sentence differs
    gain         log10 probability per word that the model gains; infinite if one model gives a sentence the
                 probability 0, NaN if both models do so for different sentences
    low, high    95 % interval of `gain`; None with fewer than two sentences, and if `gain` is not finite
    """

    better: int
    worse: int
    equal: int
    sign_p: float
    gain: float
    low: float | None
    high: float | None


def paired(difference_S: np.ndarray, words_S: np.ndarray) -> Paired:
    """Return the test of the differences of sentences.

    difference_S  (S,) float64, log10 probability of each sentence in the model, minus that in the first one
    words_S       (S,) int, number of words of each sentence

    The gain per word is a ratio of sums over sentences, which are the sampled units. Its variance is that of the
    linearised ratio (Cochran, "Sampling Techniques", 1977, section 2.11).
    """
    better, worse = int((difference_S > 0).sum()), int((difference_S < 0).sum())
    S, words = len(words_S), int(words_S.sum())
    with np.errstate(invalid="ignore"):
        gain = float(difference_S.sum()) / words if words else 0.0
    low = high = None
    if S > 1 and words and math.isfinite(gain):
        rest_S = difference_S - gain * words_S
        error = math.sqrt(float((rest_S**2).sum()) * S / (S - 1)) / words
        low, high = gain - NORMAL_95 * error, gain + NORMAL_95 * error
    return Paired(better, worse, S - better - worse, sign_test(better, worse), gain, low, high)


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p of the sign test: exact for up to 1,000 sentences, then by the normal approximation."""
    n, fewer = better + worse, min(better, worse)
    if n > EXACT_TRIALS:
        return math.erfc(max(0.0, abs(better - worse) - 1) / math.sqrt(2 * n))
    term, total = 1, 0
    for k in range(fewer + 1):
        total += term
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * total / (1 << n))
