"""Where texts of tokens end: the state after the last whole word, and the word that may go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.spellings import Spellings
from mgpu_ngram.engine.state_model import StateModel
from mgpu_ngram.kernels.dispatch import array_module

TOKENS_PER_WORD = 4  # that are read at first for each word of a state
UNKNOWN = b" <unk> "  # in place of a token without a piece: a word of its own, which no model knows


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
    """Reads the ends of texts.

    pieces  bytes of each token
    starts  tokens after which a sentence begins
    """

    def __init__(self, model: StateModel, spellings: Spellings, pieces: Sequence[bytes], starts: Collection[int]):
        self._model, self._spellings, self._pieces, self._starts = model, spellings, pieces, frozenset(starts)

    def ends(self, lengths: Sequence[int], last: Callable[[int], Sequence[Sequence[int]]]) -> TextEnds:
        """Return the ends of texts.

        lengths  of each text, in tokens
        last     returns at least so many of the last tokens of each text, or all; more may stand on their left
        """
        model, K, width = self._model, self._model.order - 1, TOKENS_PER_WORD * self._model.order
        found: dict[int, tuple[list[bytes], bytes]] = {}
        while len(found) < len(lengths):
            for b, tokens in enumerate(last(width)):
                if b not in found:
                    whole, end = width >= lengths[b], len(tokens)
                    read = self._read(tokens[end - min(width, lengths[b]) :], whole)
                    if read is not None:
                        found[b] = read
            width *= 2
        texts, has_BK = [], np.zeros((len(lengths), K), bool)
        for b in range(len(lengths)):
            words, partial = found[b]
            has_BK[b, K - len(words) :] = bool(words)
            texts += [b""] * (K - len(words)) + words + [partial]
        nodes_BK1 = self._spellings.walk_from_root(self._spellings.texts(texts)).reshape(len(lengths), K + 1)
        xp = array_module(nodes_BK1)
        words_BK, has_BK = self._spellings.word_M[nodes_BK1[:, :K]], to_device(has_BK, model.device)
        states_B = xp.full(len(lengths), model.begin, np.int32)
        for k in range(K):  # a state has no more words, so it is the same wherever the first one comes from
            after_B = model.step(states_B, xp.ascontiguousarray(words_BK[:, k]), "ln")[1]
            states_B = xp.where(has_BK[:, k], after_B, states_B)
        begun_B = to_device(np.array([bool(found[b][1]) for b in range(len(lengths))]), model.device)
        return TextEnds(states_B, xp.ascontiguousarray(nodes_BK1[:, K]), begun_B)

    def _read(self, tokens: Sequence[int], whole: bool) -> tuple[list[bytes], bytes] | None:
        """Return the last words of a text and its partial word; None if they begin before these tokens.

        whole  whether the text begins with these tokens
        """
        for i in range(len(tokens) - 1, -1, -1):
            if tokens[i] in self._starts:
                tokens, whole = tokens[i + 1 :], True
                break
        pieces, K = self._pieces, self._model.order - 1
        text = b"".join([pieces[token] if 0 <= token < len(pieces) else UNKNOWN for token in tokens])
        words = text.split()
        partial = words.pop() if words and not text[-1:].isspace() else b""
        if not whole:
            if not text[:1].isspace():  # the first word may have begun before
                if not words:
                    return None
                words.pop(0)
            if len(words) < K:
                return None
        return words[max(0, len(words) - K) :], partial
