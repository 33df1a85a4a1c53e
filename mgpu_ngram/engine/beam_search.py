"""Beam search over any step function, for many sentences that begin and end at different steps.

Each sentence is searched as if it were alone: its beam shrinks as its hypotheses end, and it leaves when it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.engine.best_words import Chosen, Draws, Rows, best_of_sentences, draw_words
from mgpu_ngram.engine.ensemble_steps import Ensemble
from mgpu_ngram.engine.search_options import Found, Request, SearchOptions
from mgpu_ngram.engine.search_trace import Trace
from mgpu_ngram.engine.state_trees import state_module, take_rows
from mgpu_ngram.engine.word_scores import WordScores


@dataclass
class _Sentence:
    """A sentence that is searched for."""

    request: Request
    entered: int  # step of the search
    longest: int
    steps: int
    size: int  # places of the beam
    finished: list[tuple[float, int, int, float]] = field(default_factory=list)  # score, step, hypothesis, cost


class BeamSearch:
    """A search of sentences that enter by `enter` and leave by `advance`.

    hold  keep computing rows of ended hypotheses, as batches without compaction do: results are the same
    """

    def __init__(self, model: Ensemble, options: SearchOptions, hold: bool = False):
        self.model, self.options, self._hold = model, options, hold
        self._sentences: list[_Sentence] = []
        self._state: Any = None
        self._idle = 0  # rows after the live ones, which are computed for nothing
        self._now = 0
        self._trace = Trace(options.alignments, options.breakdown)
        self._sentence_R = np.zeros(0, np.int64)
        self._word_R, self._slot_R = np.zeros(0, np.int64), np.zeros(0, np.int64)  # slot: number of a sample
        self._before_R = np.zeros(0, np.int64)  # hypothesis of the step before
        self._cost_R = np.zeros(0, np.float32)

    @property
    def sentences(self) -> int:
        """Number of sentences that have not left."""
        return len(self._sentences)

    @property
    def rows(self) -> int:
        """Number of hypotheses that go on."""
        return len(self._cost_R)

    def enter(self, requests: Sequence[Request], sources: Sequence[Any]) -> None:
        """Begin to search for sentences."""
        if not requests:
            return
        if self._idle:
            self._state, self._idle = take_rows(self._state, np.arange(self.rows)), 0
        self._state = self.model.start(self._state if self.rows else None, sources)
        new, first = len(requests), len(self._sentences)
        for request in requests:
            self._check_prefix(request)
            longest, steps = request.limits(self.options)
            self._sentences.append(_Sentence(request, self._now, longest, steps, self.options.beam_size))
        self._sentence_R = np.concatenate([self._sentence_R, np.arange(first, first + new)])
        self._word_R = np.concatenate([self._word_R, np.full(new, self.model.start_word)])
        self._before_R = np.concatenate([self._before_R, np.full(new, -1)])
        self._slot_R = np.concatenate([self._slot_R, np.zeros(new, np.int64)])
        self._cost_R = np.concatenate([self._cost_R, np.zeros(new, np.float32)])

    def advance(self) -> list[Found]:
        """Extend all hypotheses by a word. Return the results of the sentences that are done."""
        R = self.rows
        if not R:
            return []
        words = np.concatenate([self._word_R, np.zeros(self._idle, np.int64)])
        xp = state_module(self._state)
        state, scores = self.model.step(self._state, xp.asarray(words))
        scores = scores.first(R)
        unk = -1 if self.options.allow_unk else self.model.unk
        rows = Rows(self._sentence_R, self._cost_R, self._forced(), unk)
        size_S = np.array([sentence.size for sentence in self._sentences])
        if self.options.sampling is None:
            chosen, slot_C = best_of_sentences(scores, rows, size_S), None
        else:
            chosen, slot_C = self._draw(scores, rows)
        self._check_numbers(chosen)
        self._trace.add(self._now, self._before_R[chosen.parent_C], chosen, scores)
        kept_C = self._end_hypotheses(chosen)
        self._now += 1
        done_S = self._done(chosen, kept_C)
        found = [self._results(int(s)) for s in np.flatnonzero(done_S)]
        self._compact(
            state, chosen, np.flatnonzero(kept_C & ~done_S[self._sentence_R[chosen.parent_C]]), slot_C, done_S
        )
        return found

    def _check_prefix(self, request: Request) -> None:
        words = request.prefix[:-1] if request.whole else request.prefix
        wrong = [word for word in request.prefix if not 0 <= word < self.model.vocab_size]
        if wrong or self.model.eos in words:
            raise InputError(
                f"sentence {request.number} has the forced word {wrong[0] if wrong else self.model.eos} but words are "
                f"0 to {self.model.vocab_size - 1} without the end of the sentence, {self.model.eos}"
            )

    def _forced(self) -> np.ndarray:
        """Return the word that must follow each row; -1: any."""
        forced_S = np.full(len(self._sentences), -1)
        for s, sentence in enumerate(self._sentences):
            at = self._now - sentence.entered
            if at < len(sentence.request.prefix):
                forced_S[s] = sentence.request.prefix[at]
        return forced_S[self._sentence_R]

    def _draw(self, scores: WordScores, rows: Rows) -> tuple[Chosen, np.ndarray]:
        """Draw a word for each sample; the first row of a sentence stands for all its samples."""
        sampling = self.options.sampling
        assert sampling is not None
        new_R = np.array([self._sentences[s].entered == self._now for s in self._sentence_R])
        copies_R = np.where(new_R, self.options.beam_size, 1)
        row_D = np.repeat(np.arange(self.rows), copies_R)
        number_D = np.arange(len(row_D)) - np.searchsorted(row_D, row_D)
        slot_D = np.where(new_R[row_D], number_D, self._slot_R[row_D])
        sentence_D = np.array([self._sentences[s].request.number for s in self._sentence_R])[row_D]
        step_D = np.array([self._now - self._sentences[s].entered for s in self._sentence_R])[row_D]
        return draw_words(scores, rows, Draws(row_D, sentence_D, slot_D, step_D), sampling), slot_D

    def _check_numbers(self, chosen: Chosen) -> None:
        wrong_C = np.flatnonzero(np.isnan(chosen.score_C))
        if len(wrong_C):
            number = self._sentences[self._sentence_R[chosen.parent_C[wrong_C[0]]]].request.number
            raise RunError(f"the model gives NaN for sentence {number}; check its weights or compute in float32")

    def _end_hypotheses(self, chosen: Chosen) -> np.ndarray:
        """Note finished hypotheses and make beams smaller. Return (C,) whether each goes on."""
        sentence_C = self._sentence_R[chosen.parent_C]
        length_S = np.array([self._now + 1 - sentence.entered for sentence in self._sentences])
        longest_S = np.array([sentence.longest for sentence in self._sentences])
        end_C = chosen.word_C == self.model.eos
        kept_C = ~end_C & (length_S <= longest_S)[sentence_C]
        for c in np.flatnonzero(end_C | (length_S == longest_S)[sentence_C]):
            s, cost = sentence_C[c], float(chosen.score_C[c])
            score = self.options.score(cost, int(length_S[s]))
            self._sentences[s].finished.append((score, self._now, int(c), cost))
        for s, ended in Counter(sentence_C[~kept_C].tolist()).items():
            self._sentences[s].size -= ended
        return kept_C

    def _done(self, chosen: Chosen, kept_C: np.ndarray) -> np.ndarray:
        """Return (S,) whether each sentence is done; call it after the step."""
        sentence_C = self._sentence_R[chosen.parent_C]
        alive_S = np.bincount(sentence_C[kept_C], minlength=len(self._sentences)) > 0
        done_S = ~alive_S
        rule = self.options.early_stopping
        best_S: dict[int, float] = {}
        if rule == "bound":
            for c in np.flatnonzero(kept_C):
                s = int(sentence_C[c])
                best_S[s] = max(best_S.get(s, -np.inf), float(chosen.score_C[c]))
        for s, sentence in enumerate(self._sentences):
            length = self._now - sentence.entered
            if length >= sentence.steps or (rule == "first" and sentence.finished):
                done_S[s] = True
            elif rule == "bound" and s in best_S and len(sentence.finished) >= self.options.n_best:
                worst = sorted((f[0] for f in sentence.finished), reverse=True)[self.options.n_best - 1]
                done_S[s] |= worst >= self.options.bound(best_S[s], length + 1, sentence.steps)
        return done_S

    def _results(self, s: int) -> Found:
        """Return the best finished hypotheses of a sentence; the first of equal ones is the one that ended first."""
        sentence = self._sentences[s]
        ranked = sorted(sentence.finished, key=lambda finished: -finished[0])[: self.options.n_best]
        length = sentence.request.length
        return Found(sentence.request.number, [self._trace.hypothesis(*f, length) for f in ranked])

    def _compact(
        self, state: Any, chosen: Chosen, on_R: np.ndarray, slot_C: np.ndarray | None, done_S: np.ndarray
    ) -> None:
        """Keep the rows of hypotheses that go on, and the sentences that are not done."""
        computed = self.rows + self._idle
        parent_R = chosen.parent_C[on_R]
        number_S = np.cumsum(~done_S) - 1
        self._sentences = [sentence for sentence, done in zip(self._sentences, done_S, strict=True) if not done]
        self._sentence_R = number_S[self._sentence_R[parent_R]]
        self._word_R, self._cost_R, self._before_R = chosen.word_C[on_R], chosen.score_C[on_R], on_R
        self._slot_R = np.zeros(len(on_R), np.int64) if slot_C is None else slot_C[on_R]
        self._idle = max(0, computed - len(on_R)) if self._hold and len(on_R) else 0
        rows = np.concatenate([parent_R, np.zeros(self._idle, np.int64)])
        self._state = take_rows(state, rows) if len(on_R) else None
        self._trace.forget_before(min((sentence.entered for sentence in self._sentences), default=self._now))
