"""Adapt a user's step function, step(tokens, state) -> logits, state, to the interface of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.decode.state_trees import join_rows, leaves, map_state, rows_of_tree
from mgpu_ngram.engine.decode.step_function import StepScores
from mgpu_ngram.engine.torch.arrays import as_array, as_tensor, gpu_of, torch_of
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

LOGIT_DTYPES = (np.float32, np.float16, np.uint16)  # dtypes that logits keep; others become float32
GivenStep = Callable[[Any, Any], tuple[Any, Any]]


class GivenSteps:
    """A user's step function as a `StepFunction`. A source is the number of a row of `state`.

    state  any tree of arrays whose first axis is the sentence; tokens have the type of its first array
    bos    token before the first one
    """

    start_word = -1

    def __init__(self, step: GivenStep, state: Any, vocab_size: int, eos: int, bos: int, unk: int):
        state = map_state(lambda value: value.detach() if torch_of(value) else value, state)
        self._step, self._state, self._bos = step, state, bos
        self.vocab_size, self.eos, self.unk = vocab_size, eos, unk
        self._first = next((array for _, array in leaves(state)), None)
        self.rows = self._rows()

    @property
    def gpu(self) -> Any:
        """Return the CuPy device of the state; None for host memory."""
        return gpu_of(self._first)

    def start(self, state: Any, sources: Sequence[int], slots: Sequence[int]) -> Any:
        """Return the state with a row for each new source after its rows."""
        new = rows_of_tree(self._state, np.asarray(sources))
        if state is not None:
            now = {name: tuple(array.shape[1:]) for name, array in leaves(state)}
            for name, array in leaves(new):
                if now.get(name) != tuple(array.shape[1:]):
                    raise InputError(
                        f"a row of {name} has shape {now.get(name)} after a step but {tuple(array.shape[1:])} at the "
                        "start, so new sentences cannot join a batch; give refill=False"
                    )
        return join_rows(state, new)

    def step(self, state: Any, words_R: Any) -> tuple[Any, StepScores]:
        """Return (next state, scores) after one token for each row."""
        R = len(words_R)
        tokens_R = array_module(words_R).where(words_R < 0, self._bos, words_R).astype(np.int64)
        torch = torch_of(self._first)
        with torch.no_grad() if torch else nullcontext():
            made = self._step(as_tensor(tokens_R, self._first) if torch else tokens_R, state)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise InputError(f"step returns {_kind(made)} but must return two values: logits, state")
        logits, new = made
        shape = tuple(getattr(logits, "shape", ()))
        if shape != (R, self.vocab_size):
            raise InputError(
                f"step returns logits of {f'shape {shape}' if shape else _kind(logits)} for {R} tokens and "
                f"{self.vocab_size} words; return an array of shape {(R, self.vocab_size)}"
            )
        check_state_rows(new, R, "the state that step returns")
        logits_RV = as_array(logits)
        if on_gpu(logits_RV) != on_gpu(words_R) or not hasattr(logits_RV, "astype"):
            raise InputError(
                f"step returns logits as {_kind(logits)} but the state is {_kind(self._first)}; use one kind of arrays"
            )
        if logits_RV.dtype.kind not in "fiub":
            raise InputError(f"step returns logits of dtype {logits_RV.dtype} but they must be numbers; convert them")
        return new, StepScores(logits_RV if logits_RV.dtype in LOGIT_DTYPES else logits_RV.astype(np.float32))

    def _rows(self) -> int:
        """Return the number of sentences."""
        if self._first is None:
            raise InputError("initial_state has no array, so the number of sentences is unknown; add np.zeros(S)")
        shape = getattr(self._first, "shape", ())
        check_state_rows(self._state, int(shape[0]) if shape else 1, "initial_state")
        return len(self._first)


def check_state_rows(state: Any, rows: int, name: str) -> None:
    """Raise InputError unless each value of a state is an array with this number of rows."""
    for where, value in leaves(state, name):
        if not (torch_of(value) or isinstance(value, np.ndarray) or on_gpu(value)):
            raise InputError(f"{where} is {_kind(value)} but must be an array of NumPy, CuPy or PyTorch; convert it")
        if tuple(value.shape[:1]) != (rows,):
            raise InputError(f"{where} has shape {tuple(value.shape)} but must have {rows} rows, the first axis")


def _kind(value: Any) -> str:
    return f"{type(value).__module__.split('.')[0]}.{type(value).__name__}".removeprefix("builtins.")
