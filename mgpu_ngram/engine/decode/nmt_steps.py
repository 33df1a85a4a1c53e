"""Steps of a translation model: from sentences to first states, and from states and words to scores of next words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mgpu_ngram.core.nmt.model import Lstm, NmtModel
from mgpu_ngram.engine.decode.nmt_cells import apply, multiply, run, with_skip
from mgpu_ngram.engine.decode.nmt_weights import ReadyModel, ready
from mgpu_ngram.engine.decode.sentence_encoder import SentenceEncoder
from mgpu_ngram.engine.decode.state_trees import join_rows
from mgpu_ngram.engine.decode.step_function import StepScores
from mgpu_ngram.engine.memory.cuda_graphs import rounded_up
from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.decode.attention import Sentences, attention
from mgpu_ngram.kernels.decode.tanh_sum import tanh_sum
from mgpu_ngram.kernels.dispatch import array_module

SPARE_ROOM = 4  # times the positions that the pool needs, at most
POOLS_PER_OCTAVE = 4  # numbers of slots of pools, from one power of two to the next


class NmtSteps:
    """A model as a step function with a pool of encoded sentences. A row's bits do not depend on other rows.

    A state has rows of "hidden", "memory" (LSTMs only), "stack" (stacked layers only) and "slot", the place of the
    sentence in the pool.
    """

    def __init__(self, model: NmtModel):
        self.model = model = model if isinstance(model, ReadyModel) else ready(model)
        self.vocab_size, self.eos, self.unk, self.start_word = model.vocab_size, model.eos, model.unk, model.start
        self._xp = array_module(model.target_embedding)
        self._pool: Sentences | None = None
        self._length_S = np.zeros(0, np.int64)  # of the slots that rows may name, on the host
        self.version = None if self._xp is np else 0
        self._encoder = SentenceEncoder(model, in_graphs=self.version is not None)
        self._has_memory = any(isinstance(cell, Lstm) for cell in (*model.decoder, *model.conditional))
        bias_V = model.output.bias_Y
        self._bias_V = None if bias_V is None else singles(bias_V)  # added by the search

    def prepare(self, sources: Sequence[np.ndarray]) -> None:
        """Begin to encode sources. Raises InputError for a word without an embedding."""
        self._encoder.begin(sources)

    def start(self, state: Any, sources: Sequence[np.ndarray], slots: Sequence[int]) -> Any:
        """Return the state with a row for each new sentence after its own rows.

        sources  ids of each sentence and of its end, (T,) or (T, factors)
        slots    places in the pool: see `StepFunction`
        """
        if state is None:
            self._length_S = np.zeros(0, np.int64)
        encoded, hidden = self._encoder.take(sources)
        new = {"hidden": hidden.copy(), "slot": self._xp.asarray(np.array(slots[-len(sources) :], np.int64))}
        if encoded is not None:
            lengths = [len(source) for source in sources]
            self._place(encoded, np.array(slots), np.array(lengths), new["slot"])
        self._encoder.release()
        if self._has_memory:
            new["memory"] = self._xp.zeros_like(hidden)
        if self.model.stacks.decoder:
            new["stack"] = tuple(hidden.copy() for _ in self.model.stacks.decoder)
        return join_rows(state, new)

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after a word for each row; word -1 stands for no word."""
        xp, m = self._xp, self.model
        previous_RE = row_R = None
        if m.word_inputs is not None:
            row_R = xp.where(words_R >= 0, words_R, len(m.word_inputs) - 1).astype(np.int64)
        else:
            previous_RE = m.target_embedding[xp.maximum(words_R, 0)]
            if m.start < 0:
                previous_RE = xp.where((words_R >= 0)[:, None], previous_RE, previous_RE.dtype.type(0))
        top_RE, c = run(m.decoder, previous_RE, state["hidden"], state.get("memory"), m.word_inputs, row_R)
        h, attention_RT, stack = top_RE, None, []
        if m.attention is not None:
            assert self._pool is not None
            query_RA = apply(m.attention.query, h)
            attention_RT, context_RC = attention(query_RA, state["slot"], self._pool, m.attention.energy_A)
            h, c = run(m.conditional, context_RC, h, c)
            top_RH = h
            for layer, state_RH in zip(m.stacks.decoder, state.get("stack", ()), strict=True):
                stack.append(run(layer, top_RH, state_RH, None)[0])
                top_RH = with_skip(stack[-1], top_RH, m.stacks.skip)
            of_state, of_word, of_context = m.hidden
            word_NE = apply(of_word, previous_RE) if m.word_hidden is None else m.word_hidden
            top_RE = tanh_sum(apply(of_state, top_RH), apply(of_context, context_RC), word_NE, row_R)
        logits_RV = multiply(top_RE, m.output.weight_XY)
        new = {"hidden": h, "slot": state["slot"]}
        if self._has_memory:
            new["memory"] = c
        if stack:
            new["stack"] = tuple(stack)
        return new, StepScores(logits_RV, attention_RT, self._bias_V)

    def _place(self, new: Sentences, slots: np.ndarray, length_B: np.ndarray, slot_B: Any) -> None:
        """Put new sentences into slot_B, the last of `slots`; `slots` are all slots in use."""
        B = len(length_B)
        kept = len(self._length_S)
        length_S = np.ones(max(kept, slots.max() + 1), np.int64)
        length_S[slots[:-B]] = self._length_S[slots[:-B]]
        length_S[slots[-B:]] = length_B
        self._length_S = length_S
        S, T = len(length_S), int(length_S.max())
        room = (0, 0) if self._pool is None else self._pool.context_STC.shape[:2]
        if S > room[0] or T > room[1] or room[0] * room[1] > SPARE_ROOM * S * T:
            self._rebuild(new, kept, rounded_up(S, POOLS_PER_OCTAVE), T)
        assert self._pool is not None
        first, last = int(slots[-B]), int(slots[-1])
        at = slice(first, last + 1) if (slots[-B:] == np.arange(first, first + B)).all() else slot_B
        for array, values in zip(self._pool[:2], new[:2], strict=True):
            array[at, : values.shape[1]] = values
        self._pool.length_S[at] = new.length_S

    def _rebuild(self, like: Sentences, kept: int, slots: int, positions: int) -> None:
        """Make a pool of `slots` slots with `positions` positions each. The first `kept` slots keep their sentences."""
        xp, old = self._xp, self._pool if kept else None
        self._pool = None  # its memory is free, unless it is read below
        memory, context = (xp.zeros((slots, positions, array.shape[2]), array.dtype) for array in like[:2])
        self._pool = Sentences(memory, context, xp.ones(slots, np.int64))
        if self.version is not None:
            self.version += 1
        if old is not None:
            T = min(positions, old.context_STC.shape[1])
            for array, values in zip(self._pool[:2], old[:2], strict=True):
                array[:kept, :T] = values[:kept, :T]
            self._pool.length_S[:kept] = xp.minimum(old.length_S[:kept], positions)
