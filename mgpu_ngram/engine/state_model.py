"""Many states of a model at once, on a device: a word after each, or all words."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import BackoffModel
from mgpu_ngram.engine.device import to_device_fast
from mgpu_ngram.engine.next_word import Found, NextWordModel
from mgpu_ngram.engine.pieces import in_pieces
from mgpu_ngram.engine.row_options import RowOptions
from mgpu_ngram.engine.score import Replica
from mgpu_ngram.engine.states import signed_backoffs
from mgpu_ngram.engine.trie import index_of
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.distribution.find_histories import Children
from mgpu_ngram.kernels.distribution.state_children import state_children
from mgpu_ngram.kernels.distribution.write_states import write_states
from mgpu_ngram.kernels.score.step_states import EMPTY, make_states, step_states

MIN_PIECE_STATES, MIN_PIECE_ROWS = 4096, 4  # least states to step, or rows of states to make, per thread
UNITS = {"log10": 1.0, "ln": float(np.log(10))}


class StateModel:
    """A model whose states advance on a device. See `StateTable` for what a state is.

    model    its trie gives the suffixes
    replica  scores words; it has an edge table
    rows     makes rows

    Raises InputError for a replica without an edge table, and for a model of too many histories.
    """

    def __init__(self, model: BackoffModel, replica: Replica, rows: NextWordModel):
        if replica.edges is None:
            raise InputError("states need the edge table but the index is btree; load the model with index='edge'")
        self._edges, self._rows, self.device = replica.edges, rows, rows.device
        self.order, self.words = rows.order, rows.symbols
        self.begin, self.end = (replica.begin if self.order > 1 else EMPTY), replica.end
        suffix_M = model.trie.suffixes().astype(np.int64)
        suffix_M[: self.words] = EMPTY
        try:
            self._states = make_states(
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

        def step(begin: int, end: int) -> None:
            part = slice(begin, end)
            step_states(
                self._edges, self.order, self._states, states_B[part], words_B[part], UNITS[scale],
                (made[0][part], made[1][part]),
            )  # fmt: skip

        in_pieces(step, B, self._threads, MIN_PIECE_STATES)
        return made

    def advance(
        self, states_B: Any, options: RowOptions, next_states: bool, rows: Any = None, following: Any = None
    ) -> tuple[Any, Any]:
        """Return the smoothed rows of the highest order after states, (B, V), and the state after every word, (B, V)
        int32; None without `next_states`.

        rows, following  arrays to fill; None: new ones. Rows are padded, as those of `Rows.dense`
        """
        t, scale = self._rows.trie, options.scale
        children = state_children(
            states_B, self._states.nodes_M2, self.order, t.first_child_M, self._rows.scaled(scale).backoff_M,
            1.0 if scale == "prob" else -0.0,
        )  # fmt: skip
        made = self._rows.dense(Found(*children, scale), options, None if rows is None else rows[:, None])[:, 0]
        if not next_states:
            return made, None
        if following is None:
            following = array_module(states_B).empty((len(states_B), self.words), np.int32)

        def write(begin: int, end: int) -> None:
            part = Children(*(array[begin:end] for array in children))
            write_states(following[begin:end], part, t.word_G, self._states.state_G)

        in_pieces(write, len(states_B), self._threads, MIN_PIECE_ROWS)
        return made, following

    @property
    def _threads(self) -> int:
        return self._rows.threads if self.device == "cpu" else 1
