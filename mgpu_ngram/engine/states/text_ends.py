"""The ends of texts of tokens: the state after the last whole word, and the partial word that follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.states.spellings import Spellings
from mgpu_ngram.engine.states.state_model import StateModel
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.trie.last_words import TokenPieces

UNKNOWN_TEXT = b" <unk> "  # in place of a token without a piece: a word of its own, which no model knows


class TextEnds(NamedTuple):
    """The ends of B texts.

    states_B  (B,) int32, the state after the last whole word
    nodes_B   (B,) int32, the node of the partial word in the trie of spellings
    begun_B   (B,) bool, whether there is a partial word
    """

    states_B: Any
    nodes_B: Any
    begun_B: Any


class TextReader:
    """Reads the ends of texts, on the device of a model; the host does not wait for it.

    pieces  bytes of each token
    starts  tokens after which a sentence begins
    """

    def __init__(self, model: StateModel, spellings: Spellings, pieces: Sequence[bytes], starts: Collection[int]):
        self._model, self._spellings = model, spellings
        begins_S = np.array(list(starts), np.int64)
        self._pieces = TokenPieces(*spellings.texts([*pieces, UNKNOWN_TEXT]), to_device(begins_S, model.device))

    def ends(self, tokens_BT: Any, lengths_B: Any) -> TextEnds:
        """Return the ends of texts.

        tokens_BT  (B, T) int64
        lengths_B  (B,) int64: length of each text, which is at the right end of its row
        """
        model, K, xp = self._model, self._model.order - 1, array_module(tokens_BT)
        nodes_BK = self._spellings.last_words(self._pieces, tokens_BT, lengths_B, K)
        words_BK = self._spellings.word_M[nodes_BK]
        states_B = xp.full(len(nodes_BK), model.begin, np.int32)
        for k in range(K):  # a state holds K words at most, so the state before the first of them does not matter
            after_B = model.step(states_B, xp.ascontiguousarray(words_BK[:, k]), "ln")[1]
            states_B = xp.where(nodes_BK[:, k] > 0, after_B, states_B)
        nodes_B = xp.ascontiguousarray(nodes_BK[:, K])
        return TextEnds(states_B, nodes_B, nodes_B > 0)
