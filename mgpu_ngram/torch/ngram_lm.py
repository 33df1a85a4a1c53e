"""An n-gram model over token ids with the interface of NeMo's NGPU-LM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mgpu_ngram.api.model import Model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.models.row_options import check_flag
from mgpu_ngram.engine.states.token_states import TokenStates
from mgpu_ngram.engine.torch.arrays import check_dense
from mgpu_ngram.engine.torch.model_numbers import number_of
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY, MAX_BATCH

from . import operators
from .arguments import check_integers, check_model, described, integer, ordered
from .nemo_file import read_nemo

TOKEN_OFFSET = 100  # NeMo writes token t as the character t + 100
MANY_WORDS = 1 << 22  # words of all rows; for more, GPUs of up to 256 multiprocessors use another kernel


class NGramLM(torch.nn.Module):
    """An n-gram model whose words are the tokens of an acoustic or a translation model.

    It takes the place of NeMo's `NGramGPULanguageModel` in batched decoders: `get_init_states`, `advance` and
    `get_final` have the same arguments, shapes and dtypes, and CUDA graphs may capture them. It has no parameters, so
    it is not trained. `to` moves it between the CPU and the GPU.

    model          a loaded `Model`
    tokens         the word of each token in the model, by token id
    normalize_unk  tokens that the model lacks share the probability of <unk>, so that a row sums to 1; False: each has
                   it, as in KenLM

    Raises InputError if two tokens are one word, or no token is a word of the model.
    """

    _words: torch.Tensor  # of each token; a buffer, which shows where the module was moved

    def __init__(self, model: Model, tokens: Sequence[str | bytes], normalize_unk: bool = True):
        super().__init__()
        check_model(model)
        tokens = ordered("tokens", tokens, "words, by token id")
        check_flag("normalize_unk", normalize_unk)
        self.vocab_size, self._tokens, self._share = len(tokens), tokens, normalize_unk
        self._number = number_of(self)
        self._use(model)
        self.register_buffer("_words", torch.from_dlpack(self._states.ids_V), persistent=False)
        self._load_kernels()

    @classmethod
    def from_file(
        cls,
        lm_path: str | Path,
        vocab_size: int,
        normalize_unk: bool = True,
        token_offset: int = TOKEN_OFFSET,
        device: str = "auto",
    ) -> NGramLM:
        """Load a model whose words are tokens: a file as for `Model.load`, or a .nemo file. NeMo's script for training
        n-gram models writes ARPA and .nemo files.

        vocab_size     tokens, without the blank
        normalize_unk  as for the class; ignored for a .nemo file, which holds the probabilities of unknown tokens
        token_offset   token t is the character t + token_offset; 0: the decimal number t

        Raises InputError for a file of another format, and for a .nemo file with another number of tokens.
        """
        check_path(lm_path, "lm_path")
        vocab_size, token_offset = integer("vocab_size", vocab_size, 1), integer("token_offset", token_offset, 0)
        if token_offset and vocab_size + token_offset > sys.maxunicode + 1:
            raise InputError(
                f"vocab_size is {vocab_size:,} but there are {sys.maxunicode + 1 - token_offset:,} characters from "
                f"{token_offset} on; use a model of decimal numbers, and token_offset=0"
            )
        words = [chr(t + token_offset) if token_offset else str(t) for t in range(vocab_size)]
        if Path(lm_path).suffix == ".nemo":
            return cls(Model(read_nemo(lm_path, words), device), words, normalize_unk=False)
        return cls(Model.load(lm_path, device), words, normalize_unk)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs; the states of tokens follow from the model."""
        return {name: value for name, value in self.__dict__.items() if name != "_states"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of another module, of which this is a copy. A copy has a number of its own."""
        super().__setstate__(state)
        self._use(self.model)
        self._number = number_of(self)

    def _use(self, model: Model) -> None:
        self.model, self._begin = model, model._state_model.begin
        self._states = TokenStates(model._state_model, model._next_word_model, self._tokens, self._share)

    def _load_kernels(self) -> None:
        """Call the kernels of few and of many rows once: a first call loads code, which a CUDA graph cannot capture."""
        if self.model.device == "gpu":
            for batch in 1, MANY_WORDS // self.vocab_size + 1:
                self.advance(self.get_init_states(batch), eos_id=0)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> NGramLM:
        """Follow the buffer: `to`, `cuda` and `cpu`, of this module and of one that contains it, end here."""
        super()._apply(fn, recurse)
        device = "gpu" if self._words.is_cuda else "cpu"
        if device != self.model.device:
            self._use(Model(self.model.arrays, device))
            self._load_kernels()
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self._words.device

    def compatible_with_cuda_graphs(self) -> bool:
        """Return True, as NeMo's decoders ask before they capture `advance` in a CUDA graph."""
        return True

    def get_init_states(self, batch_size: int, bos: bool = True) -> torch.Tensor:
        """Return the states of sentences that have not begun, (B,) int64; see `Model.start`."""
        if not torch.compiler.is_compiling():
            check_flag("bos", bos)
            batch_size = integer("batch_size", batch_size, 0)
            if batch_size > MAX_BATCH:
                raise InputError(f"batch_size is {batch_size:,} but must be at most {MAX_BATCH:,}")
        return torch.full((batch_size,), self._begin if bos else EMPTY, dtype=torch.int64, device=self.device)

    def advance(self, states: torch.Tensor, eos_id: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ln P of every token after each state, (B, V) float32, and the state after it, (B, V) int64.

        eos_id  a token that gets the probability that the sentence ends, and whose state stays
        """
        if torch.compiler.is_compiling():
            scores, after = operators.advance(states, self._number)
        else:
            check_integers("states", states)
            eos_id = None if eos_id is None else integer("eos_id", eos_id)
            scores, after = self.model.advance_tokens(states, self._states)
            after = after.to(torch.int64, memory_format=torch.contiguous_format)
        if eos_id is not None:
            if not 0 <= eos_id < self.vocab_size:
                raise InputError(f"eos_id is {eos_id} but must be a token, 0 to {self.vocab_size - 1}")
            scores[:, eos_id], after[:, eos_id] = self.get_final(states), states
        return scores, after

    def step(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the state after one token for each row, (B,) int64. Numbers outside the vocabulary count as <unk>."""
        if torch.compiler.is_compiling():
            return operators.step(states, tokens, self._number)
        check_integers("states", states)
        check_integers("tokens", tokens)
        words, tokens = self._words.to(tokens.device), tokens.long()  # PyTorch takes uint8 for a mask
        is_token = (tokens >= 0) & (tokens < self.vocab_size)
        ids = torch.where(is_token, words[torch.where(is_token, tokens, 0)], 0)
        return self.model.step(states, ids)[1].to(torch.int64)

    def get_final(self, states: torch.Tensor) -> torch.Tensor:
        """Return ln P that the sentence ends after each state, (B,) float32."""
        if not torch.compiler.is_compiling():  # the operator of `final` also checks them
            check_integers("states", states)
        return self.model.final(states, scale="ln")

    def forward(
        self, labels: torch.Tensor, labels_lengths: torch.Tensor | None = None, bos: bool = True, eos: bool = False
    ) -> torch.Tensor:
        """Return ln P of each label after those before it, (B, L) float32; 0 behind the end of a row.

        labels          (B, L) token ids; any numbers behind the end of a row
        labels_lengths  (B,) labels of each row; None: all
        eos             also of the end, behind the labels of each row: (B, L + 1)
        """
        check_flag("bos", bos)
        check_flag("eos", eos)
        labels, labels_lengths = self._checked(labels, labels_lengths)
        rows, length = labels.shape
        states = self.get_init_states(rows, bos).to(labels.device)
        made = torch.zeros(rows, length + bool(eos), dtype=torch.float32, device=labels.device)
        for i in range(length):
            is_label, of_label = i < labels_lengths, labels[:, i : i + 1]
            scores, after = self.advance(states)
            made[:, i] = torch.where(is_label, scores.gather(1, of_label)[:, 0], 0)
            states = torch.where(is_label, after.gather(1, of_label)[:, 0], states)
        if eos:
            made.scatter_(1, labels_lengths[:, None], self.get_final(states)[:, None])
        return made

    def _checked(self, labels: torch.Tensor, lengths: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return labels, 0 behind the ends of rows, and the lengths, both int64. Waits for the GPU."""
        check_dense(labels)
        check_dense(lengths)
        if not isinstance(labels, torch.Tensor) or labels.ndim != 2 or labels.dtype not in (torch.int64, torch.int32):
            raise InputError(f"labels are {described(labels)} but must be a tensor of integers, (B, L)")
        (rows, length), device = labels.shape, labels.device
        try:
            lengths = torch.as_tensor([length] * rows if lengths is None else lengths, device=device)
        except (TypeError, ValueError, RuntimeError):  # no numbers, or rows of several lengths
            raise InputError(
                f"labels_lengths are {lengths!r:.60} but must be {rows} integers, one for each row"
            ) from None
        is_real = lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool
        if lengths.shape != (rows,) or (rows and is_real):
            raise InputError(f"labels_lengths are {described(lengths)} but must be {rows} integers, one for each row")
        lengths = lengths.to(torch.int64)  # PyTorch does not compare uint64
        labels = labels.to(torch.int64).where(torch.arange(length, device=device) < lengths[:, None], 0)
        for name, numbers, most in ("labels", labels, self.vocab_size - 1), ("labels_lengths", lengths, length):
            wrong = numbers[(numbers < 0) | (numbers > most)]
            if len(wrong):
                raise InputError(f"{name} have {wrong[0].item()} but must be 0 to {most}")
        return labels, lengths

    score_sentences = forward  # another name in NeMo
