"""The hypotheses of all steps of a search, on the host, to follow the finished ones back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.engine.best_words import Chosen
from mgpu_ngram.engine.search_options import Hypothesis
from mgpu_ngram.engine.word_scores import WordScores
from mgpu_ngram.kernels.dispatch import array_module, to_host


class TraceStep(NamedTuple):
    """The hypotheses of one step of all sentences.

    before_C      hypothesis of the step before that each extends; -1 at the start of a sentence
    attention_CT  or None
    parts_MC      scores of each model's words, or None
    """

    before_C: np.ndarray
    word_C: np.ndarray
    score_C: np.ndarray
    attention_CT: Any
    parts_MC: Any


class Trace:
    """Steps by number. `alignments` and `breakdown` say what to keep besides words and scores."""

    def __init__(self, alignments: bool, breakdown: bool):
        self._alignments, self._breakdown = alignments, breakdown
        self._steps: dict[int, TraceStep] = {}

    def add(self, step: int, before_C: np.ndarray, chosen: Chosen, scores: WordScores) -> None:
        """Keep the hypotheses that a step chose."""
        attention_CT = parts_MC = None
        xp = array_module(scores.logits_MRV)
        if self._alignments and scores.attention_RT is not None:
            attention_CT = to_host(scores.attention_RT[xp.asarray(chosen.parent_C)])
        if self._breakdown:
            parts_MC = to_host(scores.parts(xp.asarray(chosen.parent_C), xp.asarray(chosen.word_C)))
        self._steps[step] = TraceStep(before_C, chosen.word_C, chosen.score_C, attention_CT, parts_MC)

    def forget_before(self, step: int) -> None:
        """Drop the steps before one."""
        for old in [number for number in self._steps if number < step]:
            del self._steps[old]

    def hypothesis(self, score: float, step: int, c: int, cost: float, source_length: int) -> Hypothesis:
        """Follow hypothesis `c` of a step back to its start."""
        words, costs, attention, parts = [], [], [], []
        while c >= 0:
            at = self._steps[step]
            words.append(int(at.word_C[c]))
            costs.append(float(at.score_C[c]))
            if at.attention_CT is not None:
                attention.append(at.attention_CT[c, :source_length])
            if at.parts_MC is not None:
                parts.append(at.parts_MC[:, c])
            c, step = int(at.before_C[c]), step - 1
        word_scores = np.diff(np.array(costs[::-1]), prepend=0.0)
        alignment_LT = np.stack(attention[::-1]) if attention else None
        sums = tuple(np.stack(parts).sum(axis=0).tolist()) if parts else ()
        return Hypothesis(tuple(words[::-1]), score, cost, tuple(word_scores.tolist()), alignment_LT, sums)
