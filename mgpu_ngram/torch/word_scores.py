"""Scores of tokens under a model of words, for rows of tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from mgpu_ngram.api.model import Model
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.states.spellings import Spellings
from mgpu_ngram.engine.states.text_ends import TextReader
from mgpu_ngram.engine.states.word_pieces import WordPieces
from mgpu_ngram.engine.torch.arrays import as_array, as_tensor, on_stream_of
from mgpu_ngram.engine.torch.model_numbers import number_of

from . import operators


class PieceScores:
    """A tokenizer's pieces under a model of words; see `WordPieces`.

    starts  tokens after which a sentence begins
    """

    def __init__(self, model: Model, pieces: Sequence[bytes], partial: str, starts: Collection[int]):
        self._device, states = model.device, model._state_model
        self.vocab_size, self._number = len(pieces), number_of(self)
        with memory_guard("indexing the spelling of words", model.device, "use a model of fewer words"):
            spellings = Spellings(model.vocabulary, model.device)
            self._pieces = WordPieces(states, spellings, pieces, partial)
            self._reader = TextReader(states, spellings, pieces, starts)
            synchronize(model.device)  # calls may use another stream

    def __call__(self, input_ids: torch.Tensor, is_token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ln scores that each token adds to each row, (B, T) float32, and that the end adds, (B,).

        input_ids  (B, L)
        is_token   (B, L) bool, False on the left of shorter rows
        """
        if torch.compiler.is_compiling():
            return operators.piece_scores(input_ids, is_token, self._number)
        with on_stream_of(input_ids), memory_guard("scoring tokens", self._device, "give fewer rows at once"):
            ends = self._reader.ends(as_array(input_ids.long()), as_array(is_token.sum(1)))
            made, final = self._pieces.scores(ends)
            return as_tensor(made, input_ids), as_tensor(final, input_ids)
