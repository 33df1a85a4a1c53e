"""States of a model for decoders: the words so far that affect later scores, for many hypotheses at once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.api.next_words import NextWords
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import RowOptions, check_flag, check_option
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import check_gpu, device_of, refuse_capture, synchronize
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.states.state_model import SCALE_UNITS, StateModel
from mgpu_ngram.engine.states.token_states import TokenStates
from mgpu_ngram.engine.torch.arrays import as_integers, not_compiled, on_stream, on_stream_of, operator, tensors_like
from mgpu_ngram.engine.torch.out_arrays import writable
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY, MAX_BATCH, MAX_STATE
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
FEWER = "give fewer states at once"


class ModelStates(NextWords):
    """The methods of `Model` for states, with KenLM's scores and states. Rows support orders up to 33.

    A state is a small number, int32 on the device of the model: the longest suffix of the words so far that can affect
    later scores. So hypotheses with equal states can be recombined. -1 is the state without words.

    States and words are NumPy or CuPy arrays, or PyTorch tensors. If states are a tensor, so are the results, in
    memory from PyTorch. If any argument is a tensor on a GPU, the work is done on PyTorch's current stream, else on
    CuPy's, or on `stream`: an object with `__cuda_stream__`, or the address of a CUDA stream. Arrays of other libraries
    are read through DLPack. Words are ids of the model's vocabulary; other numbers count as <unk>. The model needs the
    index "edge".

    After the first call with a scale, no call waits for the GPU. `torch.cuda.graph` may then capture calls with
    tensors, and CuPy's streams may capture `step` with int32 states and `out`, which allocates no memory.
    """

    _held_states: StateModel | None = None
    if TYPE_CHECKING:

        @property
        def _replica(self) -> Replica: ...

    @not_compiled
    def start(self, batch: int, bos: bool = True, out: Any = None, stream: Any = None) -> Any:
        """Return the states before sentences, (batch,) int32.

        bos  whether <s> precedes each sentence; False: the previous words are unknown
        out  an array or a tensor to fill and return; None: a new array
        """
        if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or not 0 <= batch <= MAX_BATCH:
            raise InputError(f"batch is {batch!r:.60} but must be a number of sentences, 0 to {MAX_BATCH:,}")
        check_flag("bos", bos)
        with on_stream(stream, self.device, out), memory_guard(f"making {batch:,} states", self.device, FEWER):
            state = self._state_model.begin if bos else EMPTY
            if out is None:
                return array_module(self._next_word_model.word_G).full(batch, state, np.int32)
            writable(out, (int(batch),), "int32", self.device)[...] = state
            return out

    @operator(tensors=2, results=2)
    def step(
        self, states: Any, words: Any, scale: str = "log10", out: Any = None, stream: Any = None
    ) -> tuple[Any, Any]:
        """Return the logarithm of the probability of a word after each state, and the states after the words.

        states  (B,) int32
        words   (B,) int32 or int64
        scale   "log10" (with the same bits as KenLM) or "ln"
        out     (log-probabilities, states) to fill and return: (B,) float32 and int32, contiguous

        Returns (B,) float32 and (B,) int32. Raises InputError for other shapes, dtypes and scales.
        """
        check_option("scale", scale, SCALE_UNITS)
        given = None if out is None else _pair(out)
        with on_stream(stream, self.device, states, words, *(given or ())):
            model, states_B = self._state_model, self._numbers("states", states, np.int32)
            words_B = self._numbers("words", words)
            if len(states_B) != len(words_B):
                raise InputError(f"got {len(states_B):,} states but {len(words_B):,} words; give a word for each state")
            targets = None
            if given is not None:
                names = zip(given, ("float32", "int32"), strict=True)
                targets = tuple(writable(array, states_B.shape, dtype, self.device) for array, dtype in names)
            with memory_guard(f"scoring {len(states_B):,} words", self.device, FEWER):
                made = model.step(states_B, words_B, scale, targets)
            return out if out is not None else tensors_like(states, *made)

    @operator()
    def final(self, states: Any, scale: str = "log10", stream: Any = None) -> Any:
        """Return the logarithm of the probability that the sentence ends after each state, (B,) float32."""
        check_option("scale", scale, SCALE_UNITS)
        with on_stream(stream, self.device, states):
            states_B = self._numbers("states", states, np.int32)
            with memory_guard(f"scoring {len(states_B):,} words", self.device, FEWER):
                ends_B = array_module(states_B).full(len(states_B), self._state_model.end, np.int32)
                [made] = tensors_like(states, self._state_model.step(states_B, ends_B, scale)[0])
            return made

    @operator(results=2)
    def advance(
        self,
        states: Any,
        scale: str = "log10",
        dtype: str = "float32",
        next_states: bool = True,
        out: Any = None,
        stream: Any = None,
    ) -> tuple[Any, Any]:
        """Return a row of every word after each state, (B, V), and the state after every word, (B, V) int32.

        scale        "log10" (with the same bits as KenLM), "ln" or "prob"
        dtype        "float32", "float16" or "bfloat16", as in `distribution`
        next_states  False: return None instead of the states; `step` returns the states of chosen words
        out          (rows, states) to fill and return; states None without next_states

        Raises InputError for invalid arguments and RunError if the memory is too small.
        """
        options = _options(self.arrays.trie.order, scale, dtype)
        check_flag("next_states", next_states)
        rows, following = _pair(out) if out is not None else (None, None)
        with on_stream(stream, self.device, states, rows, following):
            model, states_B = self._state_model, self._numbers("states", states, np.int32)
            shape = len(states_B), model.words
            if out is not None and (following is None) == next_states:
                raise InputError("out must be (rows, states); states are None if next_states is False, and only then")
            row_target = None if out is None else writable(rows, shape, dtype, self.device)
            state_target = None if following is None else writable(following, shape, "int32", self.device)
            with memory_guard(f"making rows of shape {shape}", self.device, FEWER):
                made, after = model.advance(states_B, options, next_states, row_target, state_target)
            if out is not None:
                return rows, following
            return tensors_like(states, made)[0], None if after is None else tensors_like(states, after)[0]

    def advance_tokens(self, states: Any, tokens: TokenStates) -> tuple[Any, Any]:
        """Return ln P of every token after each state, (B, V) float32, and the states after them, (B, V) int32."""
        if not isinstance(tokens, TokenStates):
            raise InputError(f"tokens is {tokens!r:.60} but must be the TokenStates of a vocabulary of tokens")
        with on_stream_of(states), memory_guard("making rows of tokens", self.device, "give fewer states at once"):
            rows, after = tokens.advance(self._numbers("states", states, np.int32))
            return tensors_like(states, rows)[0], tensors_like(states, after)[0]

    @property
    def _state_model(self) -> StateModel:
        """Created on first use; threads that ask at once share one."""
        if self._held_states is None:
            refuse_capture("the states of the model", self.device)
            replica, rows = self._replica, self._next_word_model
            with self._loading:
                if self._held_states is None:
                    with memory_guard("making states", self.device, "use a smaller model"):
                        made = StateModel(self.arrays, replica, rows)
                        synchronize(self.device)  # the next call may use another stream
                        self._held_states = made
        return self._held_states

    def _numbers(self, name: str, values: Any, dtype: Any = None) -> Any:
        """Return a row of integers on the device of the model, of `dtype`, or of int32 or int64."""
        is_ready = on_gpu(values) == (self.device == "gpu") and getattr(values, "dtype", None) == np.int32
        if is_ready and hasattr(values, "flags") and values.ndim == 1 and values.flags.c_contiguous:
            check_gpu(name, values, self._state_model.table.state_G)
            return values
        array = as_integers(name, values)
        try:
            array = array if hasattr(array, "dtype") else np.asarray(array)
        except ValueError:
            raise InputError(f"{name} are rows of several lengths but must be integers in one dimension") from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InputError(f"{name} are {array.dtype} of shape {array.shape} but must be integers in one dimension")
        wanted = dtype or (array.dtype if array.dtype in INDEX_DTYPES else np.int64)
        if device_of(array) != self.device:
            array = move_to(array, self.device)
        xp = array_module(array)
        array = xp.asarray(array)
        check_gpu(name, array, self._state_model.table.state_G)
        if dtype is not None and array.size and not np.can_cast(array.dtype, dtype):
            array = xp.clip(array, -1 if array.dtype.kind == "i" else 0, MAX_STATE)  # no other number becomes a state
        return xp.ascontiguousarray(array, wanted)


def _options(order: int, scale: Any, dtype: Any) -> RowOptions:
    try:
        return _kept_options(order, scale, dtype)
    except TypeError:  # an unhashable argument has no known value
        return RowOptions.of(order, "max", "smoothed", scale, dtype)


@functools.lru_cache
def _kept_options(order: int, scale: str, dtype: str) -> RowOptions:
    return RowOptions.of(order, "max", "smoothed", scale, dtype)


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise InputError(f"out is {type(out).__name__} but must be two arrays: (log-probabilities, states)")
    return out[0], out[1]
