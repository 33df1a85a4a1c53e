"""States of an n-gram model over the tokens of another model: rows in the order of the ids of that model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.distribution.row_maker import RowMaker, children_among
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.engine.states.state_model import StateModel
from mgpu_ngram.kernels.decode.logit_rows import NgramChildren
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.distribution.advance_states import Histories, StateRows
from mgpu_ngram.kernels.distribution.state_children import state_children
from mgpu_ngram.kernels.score.step_states import StateTable


class TokenStates:
    """The n-grams of a model that end with tokens, sorted by token.

    tokens   the word of each token; words that the model lacks have the probability of <unk>
    share    whether these words share it; then the sum over all tokens is the probability that the model gives their
             words
    ids_V    word of each token, 0 for <unk>

    Raises InputError if two tokens are the same word, no token is a word of the model, or the model has no rows.
    """

    def __init__(self, model: StateModel, rows: NextWordModel, tokens: Sequence[str | bytes], share: bool):
        rows.check(RowOptions((1,)))
        xp, V, trie = array_module(rows.word_G), len(tokens), rows.trie
        ids_V = np.array([rows.words.id(token) for token in tokens], np.int64)
        known = np.flatnonzero(ids_V)
        words, first, sizes = np.unique(ids_V[known], return_index=True, return_counts=True)
        if not len(known):
            raise InputError(
                f"none of the {V:,} tokens is a word of the model; check how the words of the model name tokens"
            )
        if sizes.max() > 1:
            twice = np.flatnonzero(ids_V == words[sizes.argmax()])[:2]
            raise InputError(
                f"tokens {twice[0]} and {twice[1]} are the same word of the model, {tokens[twice[0]]!r}; rename one"
            )
        token_of = np.full(rows.symbols, -1)
        token_of[words] = known[first]
        first_M, nodes_C, words_C = children_among(trie, xp.asarray(token_of), V)
        self.ids_V = xp.asarray(ids_V)
        prob_V, unknown = to_host(rows.prob_V)[ids_V], V - len(known)
        if share and unknown:
            prob_V[ids_V == 0] -= np.float32(np.log10(unknown))
        # As in a trie: first the nodes of single words, then those of longer n-grams.
        word_A = xp.concatenate([xp.arange(V, dtype=np.uint32), words_C])
        prob_A = xp.concatenate([xp.asarray(prob_V), rows.prob_G[nodes_C]])
        self._rows = RowMaker(word_A, prob_A, prob_A[:V], -1, rows.has_backoffs, rows.threads, rows.backoff_M)
        self._first_M = (first_M + first_M.dtype.type(V)).astype(first_M.dtype)
        of_model = model.table
        state_A = xp.concatenate([of_model.state_G[self.ids_V], of_model.state_G[nodes_C]])
        self._table, self._order = StateTable(of_model.nodes_M2, state_A), model.order
        histories = Histories(self._first_M, self._rows.scaled("ln").backoff_M)
        self._state_rows = StateRows(self._table, self._order, histories, self._rows.values("ln"), multiply=False)
        synchronize(model.device)  # the first call may use another stream

    def __deepcopy__(self, memo: Any) -> TokenStates:
        """Return the same states, which never change."""
        return self

    def advance(self, states_B: Any) -> tuple[Any, Any]:
        """Return (B, V) float32, ln P of every token after each state, and (B, V) int32, the states after them."""
        options = RowOptions((self._order,), scale="ln")
        rows_BV = self._rows.room(len(states_B), options)[:, 0]
        next_BV = self._rows.room(len(states_B), options)[:, 0].view(np.int32)
        self._state_rows.fill(rows_BV, next_BV, states_B, bfloat16=False)
        V = len(self.ids_V)
        return rows_BV[:, :V], next_BV[:, :V]

    def children(self, states_B: Any) -> NgramChildren:
        """Return the n-grams that continue each state, and single tokens, as probabilities."""
        backoff_M = self._rows.scaled("prob").backoff_M
        found = state_children(states_B, self._table.nodes_M2, self._order, self._first_M, backoff_M, neutral=1.0)
        return NgramChildren(*found, *self._rows.values("prob"))
