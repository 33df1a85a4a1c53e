"""An ensemble of models and an n-gram model as one step function: the weighted sum of their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.state_trees import join_rows
from mgpu_ngram.engine.decode.step_function import StepFunction, StepScores
from mgpu_ngram.engine.decode.word_scores import NgramScores, WordScores
from mgpu_ngram.kernels.dispatch import array_module


class HistoryModel(Protocol):
    """A model of the previous words, on the device of the models."""

    def start(self, rows: int) -> Any:
        """Return the states of `rows` new sentences, as a tree of arrays of rows."""

    def step(self, state: Any, words_R: Any) -> tuple[Any, NgramScores]:
        """Return (next states, scores of the next words) after words of the target.

        words_R  -1: the sentence begins
        """


class WeightedModel(NamedTuple):
    """A model of the previous words, and the weight of its rows."""

    model: HistoryModel
    weight: float


def check_weights(weights: Sequence[float]) -> None:
    """Raise InputError for a weight of a model that is negative or not finite."""
    for weight in weights:
        if not 0 <= weight < math.inf:
            raise InputError(f"the weight of a model is {weight} but must be a finite number, at least 0")


class Ensemble:
    """Models that score the same words, as one model. The attention is that of the first model with attention.

    weights  weights of the logarithms of their probabilities
    threads  that choose words on a CPU
    """

    def __init__(
        self,
        models: Sequence[StepFunction],
        weights: Sequence[float],
        lm: WeightedModel | None = None,
        threads: int = 1,
    ):
        if not models or len(weights) != len(models):
            raise InputError(f"there are {len(models)} models but {len(weights)} weights; give one for each model")
        check_weights((*weights, 0.0 if lm is None else lm.weight))
        first = models[0]
        for i, model in enumerate(models):
            if (model.vocab_size, model.eos) != (first.vocab_size, first.eos):
                raise InputError(
                    f"model {i} has {model.vocab_size} target words that end with {model.eos} but model 0 has "
                    f"{first.vocab_size} that end with {first.eos}; an ensemble needs one target vocabulary"
                )
        self.models, self.weights, self.lm = models, tuple(map(float, weights)), lm
        self._threads = threads
        self.vocab_size, self.eos, self.unk = first.vocab_size, first.eos, first.unk
        # If models begin with different words, -1 stands for them: the first word of one may follow in the target.
        self.start_word = first.start_word if len({model.start_word for model in models}) == 1 else -1

    @property
    def version(self) -> Any:
        """The versions of the models; None if steps cannot be captured. See `StepFunction`."""
        versions = tuple(getattr(model, "version", None) for model in self.models)
        is_fixed = self.lm is None or getattr(self.lm.model, "is_fixed", False)
        return versions if is_fixed and None not in versions else None

    def prepare(self, sources: Sequence[Any]) -> None:
        """Begin the work of `start` for these sources. See `StepFunction`."""
        for model in self.models:
            if hasattr(model, "prepare"):
                model.prepare(sources)

    def start(self, state: Any, sources: Sequence[Any], slots: Sequence[int]) -> Any:
        """Return the state with a row for each new source. See `StepFunction`."""
        of = [None] * len(self.models) if state is None else state["models"]
        models = tuple(model.start(part, sources, slots) for model, part in zip(self.models, of, strict=True))
        if self.lm is None:
            return {"models": models, "history": None}
        history = join_rows(None if state is None else state["history"], self.lm.model.start(len(sources)))
        return {"models": models, "history": history}

    def step(self, state: Any, words_R: Any) -> tuple[Any, WordScores]:
        """Return (next state, scores) after one word for each row."""
        states, parts = [], []
        for model, part in zip(self.models, state["models"], strict=True):
            # A model's own word before the first one stands for the ensemble's.
            own = words_R
            if model.start_word != self.start_word:
                own = array_module(words_R).where(words_R == self.start_word, model.start_word, words_R)
            new, scores = model.step(part, own)
            states.append(new)
            parts.append(scores)
        history, ngrams, ngram_weight = state["history"], None, 0.0
        if self.lm is not None:
            before_R = array_module(words_R).where(words_R == self.start_word, -1, words_R)
            history, ngrams = self.lm.model.step(history, before_R)
            ngram_weight = self.lm.weight
        attention_RT = next((part.attention_RT for part in parts if part.attention_RT is not None), None)
        found = WordScores(
            _logits_of(parts), self.weights, _biases_of(parts), ngrams, ngram_weight, attention_RT, self._threads
        )
        return {"models": tuple(states), "history": history}, found


def _logits_of(parts: Sequence[StepScores]) -> Any:
    """Return (M, R, V) logits of models; those of one model are not copied."""
    logits = [part.logits_RV for part in parts]
    dtypes = {rows.dtype.name for rows in logits}
    if len(dtypes) > 1:
        raise InputError(f"models of an ensemble have logits of {' and '.join(sorted(dtypes))}; use one dtype for all")
    logits_MRV = logits[0][None] if len(logits) == 1 else _stacked(logits)
    return logits_MRV.astype(np.float32) if logits_MRV.dtype == np.float64 else logits_MRV


def _biases_of(parts: Sequence[StepScores]) -> Any:
    """Return (M, V) biases of models, or None if no model has one."""
    biases = [part.bias_V for part in parts]
    if all(bias_V is None for bias_V in biases):
        return None
    if len(biases) == 1:
        return biases[0][None]
    xp, V = array_module(parts[0].logits_RV), parts[0].logits_RV.shape[1]
    return _stacked([xp.zeros(V, np.float32) if bias_V is None else bias_V for bias_V in biases])


def _stacked(arrays: Sequence[Any]) -> Any:
    """Return arrays as one. CuPy's own function copies from the host, which a captured step must not."""
    stacked = array_module(arrays[0]).empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for i, array in enumerate(arrays):
        stacked[i] = array
    return stacked
