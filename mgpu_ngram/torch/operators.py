"""Custom operators of PyTorch that call models: `torch.compile` calls them and does not trace their code.

Each model (`NGramLM` or `PieceScores`) has a number, which the operators take in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import library

from mgpu_ngram.core.models.row_options import ROW_ALIGNMENT_BYTES
from mgpu_ngram.engine.states.torch_mixture import tensor_top
from mgpu_ngram.engine.torch.model_numbers import model_of

ALIGNED_WORDS = ROW_ALIGNMENT_BYTES // 4  # words that rows of float32 are padded to


def _advance(states: Any, number: int) -> Any:
    return model_of(number).advance(states)


def _step(states: Any, tokens: Any, number: int) -> Any:
    return model_of(number).step(states, tokens)


def _pieces(input_ids: Any, is_token: Any, number: int) -> Any:
    return model_of(number)(input_ids, is_token)


def top(logits: Any, num_words: int, k: int, numbers: Any, states: Any) -> Any:
    """Return `tensor_top` of the models that have these numbers."""
    return tensor_top(logits, num_words, k, [model_of(number)._states for number in numbers], states)


_OPTIONS: Any = {"mutates_args": ()}
advance = library.custom_op(
    "mgpu_ngram::advance", _advance, schema="(Tensor states, int model) -> (Tensor, Tensor)", **_OPTIONS
)
step = library.custom_op(
    "mgpu_ngram::step", _step, schema="(Tensor states, Tensor tokens, int model) -> Tensor", **_OPTIONS
)
piece_scores = library.custom_op(
    "mgpu_ngram::piece_scores",
    _pieces,
    schema="(Tensor input_ids, Tensor is_token, int model) -> (Tensor, Tensor)",
    **_OPTIONS,
)
mixture_top = library.custom_op(
    "mgpu_ngram::mixture_top",
    top,
    schema="(Tensor logits, int num_words, int k, int[] models, Tensor states) -> (Tensor, Tensor)",
    **_OPTIONS,
)


@advance.register_fake
def _(states: Any, number: int) -> Any:
    rows, words = len(states), model_of(number).vocab_size
    scores = states.new_empty((rows, -(-words // ALIGNED_WORDS) * ALIGNED_WORDS), dtype=torch.float32)[:, :words]
    return scores, states.new_empty((rows, words), dtype=torch.int64)


@step.register_fake
def _(states: Any, tokens: Any, number: int) -> Any:
    return states.new_empty(len(states), dtype=torch.int64)


@piece_scores.register_fake
def _(input_ids: Any, is_token: Any, number: int) -> Any:
    rows = len(input_ids)
    scores = input_ids.new_empty((rows, model_of(number).vocab_size), dtype=torch.float32)
    return scores, input_ids.new_empty(rows, dtype=torch.float32)


@mixture_top.register_fake
def _(logits: Any, num_words: int, k: int, numbers: Any, states: Any) -> Any:
    shape = len(logits), k
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int64)
