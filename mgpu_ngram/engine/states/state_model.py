"""Score many states of a model at once on a device: one word after each state, or all words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.distribution.row_maker import MIN_PIECE_ROWS
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.threads import in_pieces
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.engine.trie.signed_backoffs import signed_backoffs
from mgpu_ngram.kernels.common.powers import LN_10
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.distribution.advance_states import Histories, StateRows
from mgpu_ngram.kernels.score.step_states import EMPTY, make_states, step_states

MIN_PIECE_STATES = 4096  # least states to step per thread
SCALE_UNITS = {"log10": 1.0, "ln": LN_10}


class StateModel:
    """A model whose states advance on a device. See `StateTable` for what a state is.

    model    the model, whose trie has the suffixes
    replica  a replica of the model with an edge table, which scores words
    rows     the row maker

    Raises InputError for a replica without an edge table, and for a model with too many histories.
    """

    def __init__(self, model: BackoffModel, replica: Replica, rows: NextWordModel):
        if replica.edges is None:
            raise InputError("states need the edge table but the index is btree; load the model with index='edge'")
        self.edges, self._rows, self.device = replica.edges, rows, rows.device
        self.order, self.words = rows.order, rows.symbols
        self._scales: dict[str, StateRows] = {}
        self.begin, self.end = (replica.begin if self.order > 1 else EMPTY), replica.end
        suffix_M = model.trie.suffixes().astype(np.int64)
        suffix_M[: self.words] = EMPTY
        try:
            self.table = make_states(
                index_of(rows.trie), to_device_fast(suffix_M, self.device), signed_backoffs(rows.trie)
            )  # fmt: skip
        except OverflowError as error:
            raise InputError(f"the model has too many states: {error}; prune it") from None

    def step(self, states_B: Any, words_B: Any, scale: str, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """Return the logarithms of the probabilities of words after states, and the next states; see `step_states`.

        scale  "log10" or "ln"
        """
        xp, B = array_module(states_B), len(states_B)
        made = (xp.empty(B, np.float32), xp.empty(B, np.int32)) if out is None else out

        def step(states_B: Any, words_B: Any, prob_B: Any, next_B: Any) -> None:
            step_states(self.edges, self.order, self.table, states_B, words_B, SCALE_UNITS[scale], (prob_B, next_B))

        self._in_pieces(step, MIN_PIECE_STATES, states_B, words_B, *made)
        return made

    def advance(
        self, states_B: Any, options: RowOptions, next_states: bool, rows: Any = None, following: Any = None
    ) -> tuple[Any, Any]:
        """Return the smoothed rows of the highest order after states, (B, V), and the state after every word, (B, V)
        int32; None without `next_states`.

        rows, following  arrays to fill, both or neither; by default new ones, padded so that rows start at multiples of
                         128 bytes
        """
        model, state_rows = self._rows, self._state_rows(options.scale)
        made, after = rows, following
        if rows is None:
            made = model.room(len(states_B), options)[:, 0]
            if next_states:
                after = model.room(len(states_B), RowOptions(options.orders))[:, 0].view(np.int32)

        def advance(rows_B: Any, states_B: Any, following_B: Any = None) -> None:
            state_rows.fill(rows_B, following_B, states_B, options.dtype == "bfloat16")

        self._in_pieces(advance, MIN_PIECE_ROWS, made, states_B, *(() if after is None else (after,)))
        if rows is not None:
            return rows, following
        return made[:, : self.words], None if after is None else after[:, : self.words]

    def _state_rows(self, scale: str) -> StateRows:
        """Return the model that makes rows in a scale. All are kept: CUDA graphs may read their arrays later."""
        if scale not in self._scales:
            values, backoff_M = self._rows.values(scale), self._rows.scaled(scale).backoff_M
            histories = Histories(self._rows.trie.first_child_M, backoff_M)
            self._scales[scale] = StateRows(self.table, self.order, histories, values, scale == "prob")
        return self._scales[scale]

    def _in_pieces(self, fn: Callable[..., None], least: int, *arrays: Any) -> None:
        """Call fn with the arrays, or with at least `least` rows of each; threads share them on a CPU."""
        threads = self._rows.threads if self.device == "cpu" else 1
        if threads == 1:
            fn(*arrays)
        else:
            in_pieces(lambda begin, end: fn(*(array[begin:end] for array in arrays)), len(arrays[0]), threads, least)
