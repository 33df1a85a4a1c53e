"""Steps of a translation model: sentences to first states, states and words to scores of the next words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt_model import Lstm, NmtModel
from mgpu_ngram.engine.nmt_cells import apply, encode, multiply, run
from mgpu_ngram.engine.nmt_weights import ReadyModel, ready
from mgpu_ngram.engine.state_trees import join_rows
from mgpu_ngram.engine.step_function import StepScores
from mgpu_ngram.kernels.decode.activations import singles, stored
from mgpu_ngram.kernels.decode.attention import Sentences, attention
from mgpu_ngram.kernels.decode.tanh_sum import tanh_sum
from mgpu_ngram.kernels.dispatch import array_module, to_host


class NmtSteps:
    """A model as a step function with a pool of encoded sentences. A row's bits do not depend on other rows.

    A state has rows of "hidden", "memory" (of LSTMs) and "slot", the sentence of the row in the pool.
    """

    def __init__(self, model: NmtModel):
        self.model = model = model if isinstance(model, ReadyModel) else ready(model)
        self.vocab_size, self.eos, self.unk, self.start_word = model.vocab_size, model.eos, model.unk, model.start
        self._xp = array_module(model.target_embedding)
        self._pool: Sentences | None = None
        self._has_memory = any(isinstance(cell, Lstm) for cell in (*model.decoder, *model.conditional))
        bias_V = model.output.bias_Y
        self._bias_V = None if bias_V is None else singles(bias_V)  # added by the search

    def start(self, state: Any, sources: Sequence[np.ndarray]) -> Any:
        """Return the state with a row for each new sentence after its own rows.

        state    rows that go on; sentences of other rows leave the pool. None: no rows
        sources  ids of each sentence with the end of the sentence, (T,) or (T, factors)
        """
        contexts, hidden = self._encode(sources)
        first = 0
        if self.model.attention is not None:
            first = self._keep(state)
            self._pool = contexts if first == 0 else _joined(self._pool, contexts)
        new = {"hidden": hidden, "slot": self._xp.arange(first, first + len(sources))}
        if self._has_memory:
            new["memory"] = self._xp.zeros_like(hidden)
        return join_rows(state, new)

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after a word for each row; word -1 stands for none."""
        xp, m = self._xp, self.model
        previous_RE = row_R = None
        if m.word_inputs is not None:
            row_R = xp.where(words_R >= 0, words_R, len(m.word_inputs) - 1).astype(np.int64)
        else:
            previous_RE = m.target_embedding[xp.maximum(words_R, 0)]
            if m.start < 0:
                previous_RE = xp.where((words_R >= 0)[:, None], previous_RE, previous_RE.dtype.type(0))
        top_RE, c = run(m.decoder, previous_RE, state["hidden"], state.get("memory"), m.word_inputs, row_R)
        h, attention_RT = top_RE, None
        if m.attention is not None:
            assert self._pool is not None
            query_RA = apply(m.attention.query, h)
            attention_RT, context_RC = attention(query_RA, state["slot"], self._pool, m.attention.energy_A)
            h, c = run(m.conditional, context_RC, h, c)
            of_state, of_word, of_context = m.hidden
            word_NE = apply(of_word, previous_RE) if m.word_hidden is None else m.word_hidden
            top_RE = tanh_sum(apply(of_state, h), apply(of_context, context_RC), word_NE, row_R)
        logits_RV = multiply(top_RE, m.output.weight_XY)
        new = {"hidden": h, "slot": state["slot"]}
        if self._has_memory:
            new["memory"] = c
        return new, StepScores(logits_RV, attention_RT, self._bias_V)

    def _encode(self, sources: Sequence[np.ndarray]) -> tuple[Sentences | None, Any]:
        """Return (contexts, first hidden states) of sentences."""
        xp, m = self._xp, self.model
        F, B = len(m.source_embeddings), len(sources)
        lengths_B = np.array([len(source) for source in sources])
        T = int(lengths_B.max())
        live_TB = np.arange(T)[:, None] < lengths_B
        ids_BTF = np.zeros((B, T, F), np.int64)
        ids_BTF[live_TB.T] = np.concatenate([np.asarray(source).reshape(len(source), -1) for source in sources])
        ids_TBF = ids_BTF.transpose(1, 0, 2)
        rows_F = [len(embedding) for embedding in m.source_embeddings]
        if (ids_TBF < 0).any() or (ids_TBF >= rows_F).any():
            raise InputError(
                f"a source word has id {int(ids_TBF.max())} but the embeddings of {m.name!r} have {min(rows_F)} rows; "
                "give the vocabulary of this model"
            )
        ids, live = xp.asarray(ids_TBF), xp.asarray(live_TB)
        x_TBX, row_TB, inputs = None, None, m.source_inputs or (None, None)
        if m.source_inputs:
            row_TB = ids[:, :, 0]
        else:
            x_TBX = xp.concatenate([e[ids[:, :, f]] for f, e in enumerate(m.source_embeddings)], axis=2)
        states_TBH = encode(m.forward, x_TBX, live, inputs=inputs[0], row_TB=row_TB)
        if m.attention is None or m.initial is None:
            return None, states_TBH[-1]
        backward_TBH = encode(m.backward, x_TBX, live, True, inputs[1], row_TB)
        context_TBC = xp.concatenate([states_TBH, backward_TBH], axis=2)
        context_TBC[~live] = 0
        total_BC = xp.zeros(context_TBC.shape[1:], np.float32)
        for t in range(T):  # by rising position: the sum of an array may depend on its length
            total_BC += singles(context_TBC[t])
        mean_BC = stored(total_BC / xp.asarray(lengths_B[:, None].astype(np.float32)), context_TBC.dtype)
        hidden_BH = tanh_sum(apply(m.initial, mean_BC))
        context_BTC = xp.ascontiguousarray(context_TBC.transpose(1, 0, 2))
        return Sentences(apply(m.attention.memory, context_BTC), context_BTC, xp.asarray(lengths_B)), hidden_BH

    def _keep(self, state: Any) -> int:
        """Drop sentences of the pool without a row, and number those of `state` anew. Return how many are left."""
        if state is None or self._pool is None:
            return 0
        used, slots = np.unique(to_host(state["slot"]), return_inverse=True)
        state["slot"] = self._xp.asarray(slots)
        at = self._xp.asarray(used)
        memory_STA, context_STC, length_S = self._pool
        length_S = length_S[at]
        T = int(length_S.max())
        self._pool = Sentences(memory_STA[at, :T], context_STC[at, :T], length_S)
        return len(used)


def _joined(pool: Sentences | None, new: Sentences | None) -> Sentences:
    """Return two pools as one; the shorter sentences are padded."""
    assert pool is not None and new is not None
    xp = array_module(new.length_S)
    T = max(pool.memory_STA.shape[1], new.memory_STA.shape[1])

    def join(old: Any, more: Any) -> Any:
        parts = [
            array if array.shape[1] == T else xp.pad(array, ((0, 0), (0, T - array.shape[1]), (0, 0)))
            for array in (old, more)
        ]
        return xp.concatenate(parts)

    lengths = xp.concatenate([pool.length_S, new.length_S])
    return Sentences(join(pool.memory_STA, new.memory_STA), join(pool.context_STC, new.context_STC), lengths)
