"""Steps of a translation model: sentences to first states, states and words to scores of the next words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt_model import NmtModel
from mgpu_ngram.engine.nmt_cells import apply, encode, run
from mgpu_ngram.engine.state_trees import join_rows
from mgpu_ngram.engine.step_function import StepScores
from mgpu_ngram.kernels.dispatch import array_module, to_host

BLOCK_BYTES = {
    "cpu": 1 << 20,
    "gpu": 256 << 20,
}  # of energies that are computed at once; a core's cache holds the first


class Contexts(NamedTuple):
    """Encoded sentences, the pool that rows attend to.

    context_STC  states of the encoder; 0 after the end of a sentence
    memory_STA   their side of the energies
    outside_ST   -inf after the end of a sentence, else 0
    """

    context_STC: Any
    memory_STA: Any
    outside_ST: Any


class NmtSteps:
    """A model as a step function with a pool of encoded sentences.

    A state has rows of "hidden", "memory" (of LSTMs) and "slot", the sentence of the row in the pool.
    """

    def __init__(self, model: NmtModel):
        self.model = model
        self.vocab_size, self.eos, self.unk, self.start_word = model.vocab_size, model.eos, model.unk, model.start
        self._xp = array_module(model.target_embedding)
        self._pool: Contexts | None = None
        bias_V = model.output.bias_Y
        self._bias_V = None if bias_V is None else bias_V.astype(np.float32, copy=False)  # added by the search
        budget = BLOCK_BYTES["cpu" if self._xp is np else "gpu"]
        self._block_floats = budget // np.dtype(np.float32).itemsize

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
        new = {
            "hidden": hidden,
            "memory": self._xp.zeros_like(hidden),
            "slot": self._xp.arange(first, first + len(sources)),
        }
        return join_rows(state, new)

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after a word for each row; word -1 stands for none."""
        xp, m = self._xp, self.model
        previous = m.target_embedding[xp.maximum(words_R, 0)]
        if m.start < 0:
            previous = xp.where((words_R >= 0)[:, None], previous, previous.dtype.type(0))
        h, c = run(m.decoder, previous, state["hidden"], state["memory"])
        attention_RT = None
        if m.attention is None:
            top = h
        else:
            attention_RT, context_RC = self._attend(apply(m.attention.query, h), state["slot"])
            h, c = run(m.conditional, context_RC, h, c)
            top = xp.tanh(sum(apply(f, x) for f, x in zip(m.hidden, (h, previous, context_RC), strict=True)))
        logits_RV = top @ m.output.weight_XY
        new = {"hidden": h, "memory": c, "slot": state["slot"]}
        return new, StepScores(logits_RV, attention_RT, self._bias_V)

    def _encode(self, sources: Sequence[np.ndarray]) -> tuple[Contexts | None, Any]:
        """Return (contexts, first hidden states) of sentences."""
        xp, m = self._xp, self.model
        F, B = len(m.source_embeddings), len(sources)
        lengths_B = np.array([len(source) for source in sources])
        T = int(lengths_B.max())
        ids_TBF = np.zeros((T, B, F), np.int64)
        for b, source in enumerate(sources):
            ids_TBF[: len(source), b] = np.asarray(source).reshape(len(source), -1)
        rows_F = [len(embedding) for embedding in m.source_embeddings]
        if (ids_TBF < 0).any() or (ids_TBF >= rows_F).any():
            raise InputError(
                f"a source word has id {int(ids_TBF.max())} but the embeddings of {m.name!r} have {min(rows_F)} rows; "
                "give the vocabulary of this model"
            )
        mask_TB = np.arange(T)[:, None] < lengths_B
        ids, mask_TB1 = xp.asarray(ids_TBF), xp.asarray(mask_TB[:, :, None])
        x_TBX = xp.concatenate([e[ids[:, :, f]] for f, e in enumerate(m.source_embeddings)], axis=2)
        states_TBH = encode(m.forward, x_TBX, mask_TB1)
        if m.attention is None or m.initial is None:
            return None, states_TBH[-1]
        both = [states_TBH, encode(m.backward, x_TBX, mask_TB1, backward=True)]
        context_TBC = xp.concatenate(both, axis=2) * mask_TB1
        mean_BC = context_TBC.sum(axis=0) / xp.asarray(lengths_B[:, None].astype(context_TBC.dtype))
        hidden_BH = xp.tanh(apply(m.initial, mean_BC))
        context_BTC = xp.ascontiguousarray(context_TBC.transpose(1, 0, 2))
        outside_BT = xp.asarray(np.where(mask_TB.T, 0, -np.inf).astype(context_TBC.dtype))
        return Contexts(context_BTC, apply(m.attention.memory, context_BTC), outside_BT), hidden_BH

    def _keep(self, state: Any) -> int:
        """Drop sentences of the pool without a row, and number those of `state` anew. Return how many are left."""
        if state is None or self._pool is None:
            return 0
        used, slots = np.unique(to_host(state["slot"]), return_inverse=True)
        state["slot"] = self._xp.asarray(slots)
        at = self._xp.asarray(used)
        T = int((self._pool.outside_ST[at] == 0).sum(axis=1).max())
        self._pool = Contexts(*(self._xp.ascontiguousarray(array[at, :T]) for array in self._pool))
        return len(used)

    def _attend(self, query_RA: Any, slot_R: Any) -> tuple[Any, Any]:
        """Return (weights of the source positions, the weighted means of the contexts)."""
        xp, pool, attention = self._xp, self._pool, self.model.attention
        assert pool is not None and attention is not None
        R, T, A = len(query_RA), pool.memory_STA.shape[1], query_RA.shape[1]
        energy_RT = xp.empty((R, T), query_RA.dtype)
        context_RC = xp.empty((R, pool.context_STC.shape[2]), query_RA.dtype)
        step = max(1, self._block_floats // max(1, T * A))
        for first in range(0, R, step):
            rows = slice(first, first + step)
            memory = pool.memory_STA[slot_R[rows]]
            memory += query_RA[rows, None]
            e = xp.tanh(memory, out=memory) @ attention.energy_A + pool.outside_ST[slot_R[rows]]
            e -= e.max(axis=1, keepdims=True)
            xp.exp(e, out=e)
            e /= e.sum(axis=1, keepdims=True)
            energy_RT[rows] = e
            context_RC[rows] = (e[:, None] @ pool.context_STC[slot_R[rows]])[:, 0]
        return energy_RT, context_RC


def _joined(pool: Contexts | None, new: Contexts | None) -> Contexts:
    """Return two pools as one; the shorter sentences are padded."""
    assert pool is not None and new is not None
    xp = array_module(new.outside_ST)
    T = max(pool.outside_ST.shape[1], new.outside_ST.shape[1])

    def pad(array: Any, value: float) -> Any:
        room = [(0, 0), (0, T - array.shape[1])] + [(0, 0)] * (array.ndim - 2)
        return xp.pad(array, room, constant_values=value) if array.shape[1] < T else array

    pairs = zip(pool, new, (0.0, 0.0, -np.inf), strict=True)
    return Contexts(*(xp.concatenate([pad(old, value), pad(more, value)]) for old, more, value in pairs))
