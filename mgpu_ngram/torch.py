"""The n-gram engine for PyTorch: a model over token ids with the interface of NeMo's NGPU-LM, and for `generate`.

Imported as `mgpu_ngram.torch`, not with the package, so that the rest of the package does not need PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.token_states import TokenStates
from mgpu_ngram.model import Model

try:
    import torch
except ImportError:
    raise InputError("mgpu_ngram.torch needs PyTorch, which is not installed; pip install torch") from None

TOKEN_OFFSET = 100  # NeMo writes token t as the character t + 100


class LogitsProcessor:
    """Adds an n-gram model over token ids to the scores in Hugging Face's `generate`: greedy, sampling or beams.

    scores + weight * ln P(token | tokens before), for each token of the tokenizer. Pass it as
    `logits_processor=LogitsProcessorList([...])`. States are found from the last order - 1 tokens of each row, so they
    follow any reordering of beams. Rows may be padded on the left.

    model         a loaded `Model`, such as one that `estimate --unit id` made of the tokenizer's ids
    weight        of the model, 0 or more
    tokens        the word of each token in the model; None: its decimal number, as `--unit id` writes it
    bos_token_id  a token that begins a sentence, <s> of the model; None: none does
    eos_token_id  a token that ends a sentence, </s> of the model, or several such tokens; None: none does
    pad_token_id  the token on the left of shorter rows; None: no row is padded

    Each row begins a sentence, and so does what follows an end. Tokens that the model lacks have the probability of
    <unk>. Scores beyond the tokens stay as they are.
    """

    def __init__(
        self,
        model: Model,
        weight: float,
        tokens: Sequence[str | bytes] | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
    ):
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise InputError(f"weight is {weight!r} but must be a number, 0 or more")
        self.model, self.weight, self._tokens = model, float(weight), tokens
        self._pad = pad_token_id
        ends = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id
        self._ends: list[int] = [] if ends is None else list(ends)
        self._begins = self._ends if bos_token_id is None else [*self._ends, bos_token_id]
        self._lm: NGramLM | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens with the model's, (B, V) of their dtype; see the class.

        input_ids  (B, L) int64, the tokens so far
        scores     (B, V)
        """
        if self._lm is None:
            words = [str(token) for token in range(scores.shape[1])] if self._tokens is None else self._tokens
            self._lm = NGramLM(self.model, words, normalize_unk=False)
        lm = self._lm
        width = min(lm.vocab_size, scores.shape[1])
        states = self._states(lm, input_ids)
        ngrams = lm.advance(states)[0][:, :width]
        for end in self._ends:
            ngrams[:, end] = lm.get_final(states)
        made = scores.clone()
        made[:, :width] += (self.weight * ngrams).to(scores)
        return made

    def _states(self, lm: NGramLM, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the state after each row of tokens."""
        rows, length = input_ids.shape
        states = begin = lm.get_init_states(rows).to(input_ids.device)
        first = max(0, length - (self.model.order - 1))  # a state has no more words, wherever it comes from
        is_token = torch.ones_like(input_ids, dtype=torch.bool)
        if self._pad is not None:  # a padding token may be one that also occurs in a row, such as the end
            is_token = (input_ids != self._pad).cumsum(1) > 0
        for i in range(first, length):
            tokens = input_ids[:, i]
            after = lm.step(states, tokens)
            for token in self._begins:
                after = torch.where(tokens == token, begin, after)
            states = torch.where(is_token[:, i], after, states)
        return states


class NGramLM(torch.nn.Module):
    """An n-gram model whose words are the tokens of an acoustic or a translation model.

    It takes the place of NeMo's `NGramGPULanguageModel` in batched decoders: `get_init_states`, `advance` and
    `get_final` have the same arguments, shapes and dtypes. It has no parameters, so it is not trained, and `to` does
    not move it: the model is on the device on which it was loaded.

    model          a loaded `Model`
    tokens         the word of each token in the model, by token id
    normalize_unk  tokens that the model lacks share the probability of <unk>, so that a row sums to 1; False: each has
                   it, as in KenLM

    Raises InputError if two tokens are one word, or no token is a word of the model.
    """

    def __init__(self, model: Model, tokens: Sequence[str | bytes], normalize_unk: bool = True):
        super().__init__()
        self.model, self.vocab_size = model, len(tokens)
        self._states = TokenStates(model._state_model, model._next_word_model, tokens, normalize_unk)
        self._words = torch.from_dlpack(self._states.ids_V)

    @classmethod
    def from_file(
        cls,
        lm_path: str | Path,
        vocab_size: int,
        normalize_unk: bool = True,
        token_offset: int = TOKEN_OFFSET,
        device: str = "auto",
    ) -> NGramLM:
        """Load an ARPA file or a model file whose words are tokens, as NeMo's script for training them writes them.

        vocab_size    tokens, without the blank
        token_offset  token t is the character t + token_offset; 0: the decimal number t
        """
        words = [chr(t + token_offset) if token_offset else str(t) for t in range(vocab_size)]
        return cls(Model.load(lm_path, device), words, normalize_unk)

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return torch.device("cuda", torch.cuda.current_device()) if self.model.device == "gpu" else torch.device("cpu")

    def get_init_states(self, batch_size: int, bos: bool = True) -> torch.Tensor:
        """Return the states of sentences that have not begun, (B,) int64; see `Model.start`."""
        return torch.from_dlpack(self.model.start(batch_size, bos)).to(torch.int64)

    def advance(self, states: torch.Tensor, eos_id: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ln P of every token after each state, (B, V) float32, and the state after it, (B, V) int64.

        eos_id  a token that gets the probability that the sentence ends, and whose state stays
        """
        scores, after = self.model.advance_tokens(states, self._states)
        after = after.to(torch.int64)
        if eos_id is not None:
            scores[:, eos_id], after[:, eos_id] = self.get_final(states), states
        return scores, after

    def step(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the states after a token each, (B,) int64; tokens that are none count as <unk>."""
        words = self._words.to(tokens.device)
        is_token = (tokens >= 0) & (tokens < self.vocab_size)
        ids = torch.where(is_token, words[torch.where(is_token, tokens, 0)], 0)
        return self.model.step(states, ids)[1].to(torch.int64)

    def get_final(self, states: torch.Tensor) -> torch.Tensor:
        """Return ln P that the sentence ends after each state, (B,) float32."""
        return self.model.final(states, scale="ln")

    def forward(
        self, labels: torch.Tensor, labels_lengths: torch.Tensor | None = None, bos: bool = True, eos: bool = False
    ) -> torch.Tensor:
        """Return ln P of each label after those before it, (B, L) float32; 0 behind the end of a row.

        labels          (B, L) token ids
        labels_lengths  (B,) labels of each row; None: all
        eos             also of the end, behind the labels of each row: (B, L + 1)
        """
        rows, length = labels.shape
        if labels_lengths is None:
            labels_lengths = torch.full((rows,), length, device=labels.device)
        states = self.get_init_states(rows, bos).to(labels.device)
        made = torch.zeros(rows, length + eos, device=labels.device)
        for i in range(length):
            is_label, of_label = i < labels_lengths, labels[:, i : i + 1]
            scores, after = self.advance(states)
            made[:, i] = scores.gather(1, of_label)[:, 0] * is_label
            states = torch.where(is_label, after.gather(1, of_label)[:, 0], states)
        if eos:
            made.scatter_(1, labels_lengths[:, None].to(torch.int64), self.get_final(states)[:, None])
        return made
