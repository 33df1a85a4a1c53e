"""Steps of a translation model: sentences to first states, states and words to scores of the next words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.nmt_model import Lstm, NmtModel
from mgpu_ngram.engine.nmt_cells import apply, multiply, run
from mgpu_ngram.engine.nmt_weights import ReadyModel, ready
from mgpu_ngram.engine.sentence_encoder import SentenceEncoder
from mgpu_ngram.engine.state_trees import join_rows
from mgpu_ngram.engine.step_function import StepScores
from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.decode.attention import Sentences, attention
from mgpu_ngram.kernels.decode.tanh_sum import tanh_sum
from mgpu_ngram.kernels.dispatch import array_module, to_host

SPARE_ROOM = 4  # times the positions that the pool needs, at most


class NmtSteps:
    """A model as a step function with a pool of encoded sentences. A row's bits do not depend on other rows.

    A state has rows of "hidden", "memory" (of LSTMs) and "slot", the sentence of the row in the pool.
    """

    def __init__(self, model: NmtModel):
        self.model = model = model if isinstance(model, ReadyModel) else ready(model)
        self.vocab_size, self.eos, self.unk, self.start_word = model.vocab_size, model.eos, model.unk, model.start
        self._xp = array_module(model.target_embedding)
        self._pool: Sentences | None = None
        self._length_S = np.zeros(0, np.int64)  # of the pool, on the host
        self.version = None if self._xp is np else 0
        self._encoder = SentenceEncoder(model, in_graphs=self.version is not None)
        self._has_memory = any(isinstance(cell, Lstm) for cell in (*model.decoder, *model.conditional))
        bias_V = model.output.bias_Y
        self._bias_V = None if bias_V is None else singles(bias_V)  # added by the search

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        """Begin to encode the sources that `start` gets next. Raises InputError for a word without an embedding."""
        self._encoder.begin(sources)

    def start(self, state: Any, sources: Sequence[np.ndarray]) -> Any:
        """Return the state with a row for each new sentence after its own rows.

        state    rows that go on; sentences of other rows leave the pool. None: no rows
        sources  ids of each sentence with the end of the sentence, (T,) or (T, factors)
        """
        used, slot_R = np.zeros(0, np.int64), None
        if state is not None:  # waits for the stream of the steps
            used, slot_R = np.unique(to_host(state["slot"]), return_inverse=True)
        encoded, hidden = self._encoder.take(sources)
        slots = np.zeros(len(sources), np.int64)
        if encoded is not None:
            slots, is_new_pool = self._place(used, encoded, sources)
            if is_new_pool and slot_R is not None:
                state["slot"] = self._xp.asarray(slot_R)
        new = {"hidden": hidden.copy(), "slot": self._xp.asarray(slots)}
        self._encoder.release()
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

    def _place(self, used: np.ndarray, new: Sentences, sources: Sequence[np.ndarray]) -> tuple[np.ndarray, bool]:
        """Put sentences into slots of the pool that are not used; return these, and whether the pool is a new one.

        Sentences of a new pool have the slots 0, 1, ..., in the order of `used`.
        """
        length_B = np.array([len(source) for source in sources])
        B, T = len(length_B), int(max(length_B.max(), self._length_S[used].max(initial=0)))
        free = np.setdiff1d(np.arange(len(self._length_S)), used)[:B]
        needed = (len(used) + B) * T
        room = 0 if self._pool is None else self._pool.context_STC.shape[1]
        is_new_pool = len(free) < B or T > room or len(self._length_S) * room > SPARE_ROOM * needed
        if is_new_pool:
            free = np.arange(len(used), len(used) + B)
            if self.version is not None:
                self.version += 1
            if self._pool is None:
                memory, context = (self._xp.ascontiguousarray(array) for array in new[:2])
                self._pool, self._length_S = Sentences(memory, context, new.length_S.copy()), length_B
                return free, True
            self._rebuild(used, len(used) + B, T)
        assert self._pool is not None
        is_range = free[-1] - free[0] == B - 1
        at = slice(int(free[0]), int(free[-1]) + 1) if is_range else self._xp.asarray(free)
        for array, values in zip(self._pool[:2], new[:2], strict=True):
            array[at, : values.shape[1]] = values
        self._pool.length_S[at] = new.length_S
        self._length_S[free] = length_B
        return free, is_new_pool

    def _rebuild(self, used: np.ndarray, slots: int, positions: int) -> None:
        """Make a pool of so many slots, the first of which have the sentences of the slots `used`."""
        assert self._pool is not None
        xp, old, at, D = self._xp, self._pool, self._xp.asarray(used), len(used)
        memory, context = (xp.zeros((slots, positions, array.shape[2]), array.dtype) for array in old[:2])
        self._pool = Sentences(memory, context, xp.ones(slots, np.int64))
        T = min(positions, old.context_STC.shape[1])
        for array, values in zip(self._pool[:2], old[:2], strict=True):
            array[:D, :T] = values[at, :T]
        self._pool.length_S[:D] = old.length_S[at]
        length_S = np.ones(slots, np.int64)
        length_S[:D] = self._length_S[used]
        self._length_S = length_S
