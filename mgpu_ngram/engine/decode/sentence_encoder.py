"""The encoder of a translation model: from sentences to contexts and first states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.nmt_cells import apply, encode, encode_on
from mgpu_ngram.engine.decode.nmt_weights import ReadyModel
from mgpu_ngram.engine.memory.cuda_graphs import StepGraphs, rounded_up, side_stream
from mgpu_ngram.kernels.decode.attention import Sentences
from mgpu_ngram.kernels.decode.contexts import contexts
from mgpu_ngram.kernels.decode.tanh_sum import tanh_sum
from mgpu_ngram.kernels.dispatch import array_module

GRAPH_POSITIONS = 1 << 14  # most positions that a graph encodes; more positions keep a GPU busy without a graph
GRAPHS, SIZES_PER_OCTAVE = 2, 8  # graphs that are kept; sizes of graphs from one power of two to the next


class Encoded(NamedTuple):
    """Encoded sentences.

    sentences  encoded sources for the attention; None without attention
    hidden_BH  first states
    """

    sentences: Sentences | None
    hidden_BH: Any

    def part(self, some: slice, positions: int | None = None) -> Encoded:
        """Return some of the sentences, with only their first positions."""
        found = self.sentences
        if found is not None:
            T = slice(positions)
            found = Sentences(found.memory_STA[some, T], found.context_STC[some, T], found.length_S[some])
        return Encoded(found, self.hidden_BH[some])


class _Begun(NamedTuple):
    """Sentences that wait for `take`, and the event after which they are encoded; None: they are encoded."""

    sources: Sequence[np.ndarray]
    encoded: Encoded
    event: Any


class SentenceEncoder:
    """Encodes sentences; on a GPU on a separate stream, beside the steps of the search.

    in_graphs  on a GPU, encode few sentences by CUDA graphs: the host would take longer than the device
    """

    def __init__(self, model: ReadyModel, in_graphs: bool):
        self._model, self._xp = model, array_module(model.target_embedding)
        self._begun: _Begun | None = None
        self._graphs = StepGraphs() if in_graphs else None
        self._inputs: dict[tuple[int, int], tuple[Any, Any]] = {}  # of graphs
        self._read: Any = None  # event after the last read of the previous results

    def begin(self, sources: Sequence[np.ndarray]) -> _Begun:
        """Begin to encode sentences; `take` returns them. Raises InputError for a word without an embedding."""
        ids_TBF, length_B = self._arrays(sources)
        if self._xp is np:
            self._begun = _Begun(sources, self._encoded(ids_TBF, length_B), None)
            return self._begun
        import cupy

        stream = side_stream()
        stream.wait_event(self._read or cupy.cuda.get_current_stream().record())
        with stream:
            encoded = self._encoded_on_gpu(ids_TBF, length_B)
            self._begun = _Begun(sources, encoded, stream.record())
        return self._begun

    def take(self, sources: Sequence[np.ndarray]) -> Encoded:
        """Return encoded sentences: the next ones that `begin` has begun, or other ones, which begin now.

        See `release`.
        """
        begun = self._begun
        if begun is None or [*map(id, begun.sources[: len(sources)])] != [*map(id, sources)]:
            begun = self.begin(sources)
        if begun.event is not None:
            import cupy

            cupy.cuda.get_current_stream().wait_event(begun.event)
        B, T = len(sources), max(map(len, sources))
        left = begun.sources[B:]
        self._begun = begun._replace(sources=left, encoded=begun.encoded.part(slice(B, None))) if left else None
        return begun.encoded.part(slice(B), T)

    def release(self) -> None:
        """Declare that only work already begun on the current stream reads the results of `take` so far.

        Another encoder of this thread may use their memory next, so its stream waits, too.
        """
        if self._xp is not np:
            import cupy

            self._read = cupy.cuda.get_current_stream().record()
            side_stream().wait_event(self._read)

    def _arrays(self, sources: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids (T, B, F), lengths) of sentences; ids are 0 after the end."""
        m = self._model
        F, B = len(m.source_embeddings), len(sources)
        length_B = np.array([len(source) for source in sources])
        T = int(length_B.max())
        ids_BTF = np.zeros((B, T, F), np.int64)
        ids_BTF[np.arange(T) < length_B[:, None]] = np.concatenate(sources).reshape(-1, F)
        rows_F = [len(embedding) for embedding in m.source_embeddings]
        if (ids_BTF < 0).any() or (ids_BTF >= rows_F).any():
            raise InputError(
                f"a source word has id {int(ids_BTF.max())} but the embeddings of {m.name!r} have {min(rows_F)} rows; "
                "give the vocabulary of this model"
            )
        return ids_BTF.transpose(1, 0, 2), length_B

    def _encoded_on_gpu(self, ids_TBF: np.ndarray, length_B: np.ndarray) -> Encoded:
        """Encode on the current stream; few sentences by a graph, whose sizes are rounded."""
        xp, (T, B, F) = self._xp, ids_TBF.shape
        if self._graphs is None or T * B > GRAPH_POSITIONS:
            return self._encoded(xp.asarray(ids_TBF), xp.asarray(length_B))
        sizes = rounded_up(T, SIZES_PER_OCTAVE), rounded_up(B, SIZES_PER_OCTAVE)
        if sizes not in self._inputs:
            if len(self._inputs) == GRAPHS:
                self._inputs.clear()
                self._graphs.clear()
            self._inputs[sizes] = xp.empty((*sizes, F), np.int64), xp.empty(sizes[1], np.int64)
        ids, length = np.zeros((*sizes, F), np.int64), np.ones(sizes[1], np.int64)
        ids[:T, :B], length[:B] = ids_TBF, length_B
        for array, values in zip(self._inputs[sizes], (ids, length), strict=True):
            array.set(values)
        return self._graphs.run(sizes, lambda key: self._encoded(*self._inputs[key]))

    def _encoded(self, ids_TBF: Any, length_B: Any) -> Encoded:
        xp, m = self._xp, self._model
        T = len(ids_TBF)
        live_TB = xp.arange(T)[:, None] < length_B
        x_TBX, row_TB, inputs = None, None, m.source_inputs or (None, None)
        if m.source_inputs:
            row_TB = xp.ascontiguousarray(ids_TBF[:, :, 0])
        else:
            x_TBX = _embedded(m.source_embeddings, ids_TBF)
        states_TBH = encode(m.forward, x_TBX, live_TB, inputs=inputs[0], row_TB=row_TB)
        if m.attention is None or m.initial is None:
            return Encoded(None, states_TBH[-1])
        backward_TBH = encode(m.backward, x_TBX, live_TB, True, inputs[1], row_TB)
        states_TBH = encode_on(m.stacks.forward, states_TBH, live_TB, False, m.stacks)
        backward_TBH = encode_on(m.stacks.backward, backward_TBH, live_TB, True, m.stacks)
        context_BTC, mean_BC = contexts(states_TBH, backward_TBH, length_B)
        if m.stacks.context:
            first, *rest = m.stacks.context
            states_TBH = encode(first, context_BTC.transpose(1, 0, 2), live_TB)
            states_TBH = encode_on(tuple(rest), states_TBH, live_TB, False, m.stacks)
            context_BTC, mean_BC = contexts(states_TBH, None, length_B)
        hidden_BH = tanh_sum(apply(m.initial, mean_BC))
        return Encoded(Sentences(apply(m.attention.memory, context_BTC), context_BTC, length_B), hidden_BH)


def _embedded(embeddings: Sequence[Any], ids_TBF: Any) -> Any:
    """Return (T, B, X): embeddings of all factors, side by side.

    A graph must not copy from the host, as CuPy's `concatenate` does.
    """
    if len(embeddings) == 1:
        return embeddings[0][ids_TBF[:, :, 0]]
    T, B, _ = ids_TBF.shape
    x_TBX = array_module(ids_TBF).empty((T, B, sum(e.shape[1] for e in embeddings)), embeddings[0].dtype)
    first = 0
    for f, embedding in enumerate(embeddings):
        end = first + embedding.shape[1]
        x_TBX[:, :, first:end] = embedding[ids_TBF[:, :, f]]
        first = end
    return x_TBX
