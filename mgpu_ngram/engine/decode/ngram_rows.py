"""An n-gram model on the vocabulary of a translation model; its states advance with the hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.decode.word_scores import NgramScores
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.distribution.row_maker import FoundHistories, RowMaker, children_among
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.decode.logit_rows import NgramChildren
from mgpu_ngram.kernels.decode.next_states import next_states
from mgpu_ngram.kernels.dispatch import array_module, to_host


class NgramRows:
    """An n-gram model with the vocabulary of a translation model.

    Its n-grams are sorted once by the ids of the target, so that a search reads them in the order of its logits.

    tokens  words of the target, by id; words that the n-gram model lacks have the probability of <unk>
    eos     id of the end of a sentence, which is </s> in the n-gram model
    """

    def __init__(self, model: NextWordModel, tokens: Sequence[str], eos: int):
        self._model, self._index = model, index_of(model.trie)
        xp, V = array_module(model.word_G), len(tokens)
        ids_V = np.array([model.words.id("</s>" if i == eos else token) for i, token in enumerate(tokens)])
        self._ids_V = xp.asarray(ids_V)
        known, first = np.unique(ids_V, return_index=True)
        token_of = np.full(model.symbols, -1)  # the first token that is a word of the n-gram model
        token_of[known] = first
        self._first_M, nodes, words = children_among(model.trie, xp.asarray(token_of), V)
        prob_V = model.prob_V[self._ids_V]
        self._rows = RowMaker(
            words, model.prob_G[nodes], prob_V, -1, model.has_backoffs, model.threads, model.backoff_M
        )
        self._options = RowOptions((model.order,), scale="ln")
        # Tokens that are the same word as an earlier one, such as <unk>; n-grams end with that one. Models with such
        # n-grams are read as rows.
        ends = np.zeros(model.symbols, bool)
        ends[to_host(xp.unique(model.word_G[model.symbols :]))] = True
        copies = np.flatnonzero((token_of[ids_V] != np.arange(V)) & ends[ids_V])
        self._copies, self._origins = xp.asarray(copies), xp.asarray(token_of[ids_V[copies]])
        self.is_fixed = len(copies) == 0  # steps neither wait for a GPU nor copy from the host

    def start(self, rows: int) -> Any:
        """Return the states of `rows` new sentences."""
        return array_module(self._ids_V).full((rows, self._model.order - 1), -1, np.int64)

    def step(self, nodes_RK: Any, words_R: Any) -> tuple[Any, NgramScores]:
        """Return (next states, scores of the next words) after words of the target.

        words_R  -1: the sentence begins
        """
        xp = array_module(words_R)
        ids_R = xp.where(words_R < 0, np.int64(-1), self._ids_V[xp.maximum(words_R, 0)])
        backoff_M = self._rows.scaled("ln").backoff_M
        nodes_RK, children = next_states(
            self._index, nodes_RK, ids_R, self._model.begin, self._first_M, backoff_M
        )  # fmt: skip
        found = FoundHistories(*children, "ln")
        if len(self._copies):
            return nodes_RK, NgramScores(lambda: self._dense(found))
        return nodes_RK, NgramScores(lambda: self._dense(found), NgramChildren(*children, *self._rows.values("ln")))

    def _dense(self, found: FoundHistories) -> Any:
        """Return (R, V) rows."""
        rows_RV = self._rows.dense(found, self._options)[:, 0]
        if len(self._copies):
            rows_RV[:, self._copies] = rows_RV[:, self._origins]
        return rows_RV
