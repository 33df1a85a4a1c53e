"""A step function that restricts each sentence to the words of its lexical shortlist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.nmt.shortlist import Shortlist
from mgpu_ngram.engine.decode.state_trees import join_rows, state_module
from mgpu_ngram.engine.decode.step_function import StepFunction, StepScores
from mgpu_ngram.kernels.dispatch import array_module


class ShortlistSteps:
    """A step function whose probabilities are normalised over the allowed words of each sentence.

    Amun allows all words of the sentences that share a batch; here, other sentences do not change a result.
    """

    def __init__(self, steps: StepFunction, shortlist: Shortlist):
        self._steps, self._shortlist = steps, shortlist
        self.vocab_size, self.eos, self.unk, self.start_word = steps.vocab_size, steps.eos, steps.unk, steps.start_word

    @property
    def version(self) -> int | None:
        """See `StepFunction`."""
        return getattr(self._steps, "version", None)

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        """See `StepFunction`."""
        if hasattr(self._steps, "prepare"):
            self._steps.prepare(sources)

    def start(self, state: Any, sources: Sequence[np.ndarray], slots: Sequence[int]) -> Any:
        """Return the state with a row for each new source, (T,) ids or (T, factors)."""
        inner = self._steps.start(None if state is None else state["inner"], sources, slots)
        words = [np.asarray(source).reshape(len(source), -1)[:, 0] for source in sources]
        allowed_BV = np.stack([self._shortlist.allowed(source_T, self.vocab_size) for source_T in words])
        new = state_module(inner).asarray(allowed_BV)
        return {"inner": inner, "allowed": join_rows(None if state is None else state["allowed"], new)}

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one word for each row; -inf for words that are not allowed."""
        inner, scores = self._steps.step(state["inner"], words_R)
        logits_RV = scores.logits_RV
        logits_RV = array_module(logits_RV).where(state["allowed"], logits_RV, logits_RV.dtype.type(-np.inf))
        return {"inner": inner, "allowed": state["allowed"]}, scores._replace(logits_RV=logits_RV)
