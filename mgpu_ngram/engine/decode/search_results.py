"""Results of finished sentences: the best hypotheses, traced back through all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import int64

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.decode.search_options import Hypothesis, NBestList, Request
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.decode.advance_beams import Ending, finished_score

LOGIT_LIMIT = 1 << 21  # greatest logit of `best_words`


class Traces(NamedTuple):
    """Hypotheses of all steps of D sentences, on the host; arrays as in `Beams`.

    attention_DLKT  weights of the source positions, or None
    parts_DLKM      scores of each model's words, or None
    """

    words_DLK: np.ndarray
    before_DLK: np.ndarray
    costs_DLK: np.ndarray
    steps_D: np.ndarray
    longest_D: np.ndarray
    attention_DLKT: np.ndarray | None = None
    parts_DLKM: np.ndarray | None = None


def read_results(traces: Traces, requests: Sequence[Request], ending: Ending, n_best: int) -> list[NBestList]:
    """Return the n best finished hypotheses of each sentence; ties in the order in which they ended.

    requests  requests of the sentences
    ending    ends of the hypotheses, with lengths_L1 on the host

    Raises RunError if the scores of a sentence are NaN, because `best_words` cannot use its logits.
    """
    last_D = np.maximum(traces.steps_D - 1, 0)
    wrong_D = np.isnan(traces.costs_DLK[np.arange(len(last_D)), last_D, 0])
    if wrong_D.any():
        number = requests[int(wrong_D.argmax())].number
        raise RunError(
            f"logits of sentence {number} are NaN, above {LOGIT_LIMIT:,}, or none above -{LOGIT_LIMIT:,}; check the "
            "weights of the model or compute in float32"
        )
    D, L, _ = traces.words_DLK.shape
    lengths_DB, costs_DB = np.zeros((D, n_best), np.int64), np.zeros((D, n_best))
    scores_DB = np.full((D, n_best), -np.inf)
    words_DBL, places_DBL = np.empty((D, n_best, L), np.int32), np.empty((D, n_best, L), np.int16)
    word_scores_DBL = np.empty((D, n_best, L))
    found = lengths_DB, scores_DB, costs_DB, words_DBL, places_DBL, word_scores_DBL
    _follow(traces[:5], (ending.eos, ending.word_penalty, ending.lengths_L1), found)
    live_DBL = np.arange(L) < lengths_DB[..., None]
    words_N, word_scores_N = words_DBL[live_DBL].tolist(), word_scores_DBL[live_DBL].tolist()
    columns = zip(lengths_DB.tolist(), scores_DB.tolist(), costs_DB.tolist(), strict=True)
    has_details = traces.attention_DLKT is not None or traces.parts_DLKM is not None
    results, at = [], 0
    details: tuple[np.ndarray | None, tuple[float, ...]] = None, ()
    for d, (lengths, scores, costs) in enumerate(columns):
        hypotheses = []
        for b, n in enumerate(lengths):
            if not n:
                break
            if has_details:
                details = _details(traces, d, places_DBL[d, b, :n], requests[d].length)
            end = at + n
            words, word_scores = tuple(words_N[at:end]), tuple(word_scores_N[at:end])
            hypotheses.append(Hypothesis(words, scores[b], costs[b], word_scores, *details))
            at = end
        results.append(NBestList(requests[d].number, hypotheses))
    return results


def _details(traces: Traces, d: int, places_L: np.ndarray, length: int) -> tuple[np.ndarray | None, tuple[float, ...]]:
    """Return the alignment, and the sums of models, of the hypothesis that goes through these places."""
    alignment, parts = None, ()
    if traces.attention_DLKT is not None:
        alignment = traces.attention_DLKT[d, np.arange(len(places_L)), places_L][:, :length]
    if traces.parts_DLKM is not None:
        parts = tuple(traces.parts_DLKM[d, np.arange(len(places_L)), places_L].astype(np.float64).sum(axis=0).tolist())
    return alignment, parts


@njit(nogil=True, cache=True)
def _follow(traces, ending, found):
    (words_DLK, before_DLK, costs_DLK, steps_D, longest_D), (eos, word_penalty, lengths_L1) = traces, ending
    lengths_DB, scores_DB, costs_DB, words_DBL, places_DBL, word_scores_DBL = found
    B = lengths_DB.shape[1]
    place_B = np.zeros(B, np.int64)
    for d in range(len(words_DLK)):
        for step in range(int64(steps_D[d])):
            length = step + 1
            for k in range(words_DLK.shape[2]):
                word = words_DLK[d, step, k]
                if word < 0 or (word != eos and length != longest_D[d]):
                    continue
                score = finished_score(costs_DLK[d, step, k], length, word_penalty, lengths_L1)
                if score <= scores_DB[d, B - 1]:
                    continue
                at = B - 1
                while at and scores_DB[d, at - 1] < score:
                    scores_DB[d, at], lengths_DB[d, at] = scores_DB[d, at - 1], lengths_DB[d, at - 1]
                    place_B[at] = place_B[at - 1]
                    at -= 1
                scores_DB[d, at], lengths_DB[d, at], place_B[at] = score, length, k
        for b in range(B):
            place = place_B[b]
            for step in range(lengths_DB[d, b] - 1, -1, -1):
                words_DBL[d, b, step], places_DBL[d, b, step] = words_DLK[d, step, place], place
                word_scores_DBL[d, b, step] = costs_DLK[d, step, place]
                place = int64(before_DLK[d, step, place])
            if lengths_DB[d, b]:
                costs_DB[d, b] = word_scores_DBL[d, b, lengths_DB[d, b] - 1]
            for step in range(lengths_DB[d, b] - 1, 0, -1):
                word_scores_DBL[d, b, step] -= word_scores_DBL[d, b, step - 1]
