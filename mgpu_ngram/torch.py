"""The n-gram engine for PyTorch: models over token ids for NeMo and `generate`, and mixtures of distributions.

Imported as `mgpu_ngram.torch`, not with the package, so that the rest of the package does not need PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.mixture import BLOCKS, Mixture, tensor_gradient, tensor_sums
from mgpu_ngram.engine.token_states import TokenStates
from mgpu_ngram.model import Model

try:
    import torch
except ImportError:
    raise InputError("mgpu_ngram.torch needs PyTorch, which is not installed; pip install torch") from None

TOKEN_OFFSET = 100  # NeMo writes token t as the character t + 100
ALIGNED = 8  # columns; 8 numbers of float16 are 16 bytes
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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
        for end in self._ends:
            if not 0 <= end < width:
                raise InputError(f"eos_token_id is {end} but there are scores of {width:,} tokens; give one of those")
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


class MixtureOfDistributions(torch.nn.Module):
    """The output layer of a language model that mixes count distributions with the words of a softmax.

    One softmax weighs N count distributions, such as n-gram models of several orders, and for each word of the
    vocabulary a distribution that has this word alone: P(w) = weight of w + sum of weight_i P_i(w). Without count
    distributions, it is a softmax; without words, an interpolation whose weights depend on the context (Neubig and
    Dyer, "Generalizing and hybridizing count-based and neural language models", 2016).

    hidden_size    numbers of a hidden state
    num_words      V, words of the vocabulary
    num_counts     N, count distributions
    block_dropout  in training, the share of rows that lack a block: "counts" or "words", together at most 1. Without
                   it the weights follow the count distributions alone, which learn nothing; 0.5 for "counts" is usual
    """

    def __init__(
        self, hidden_size: int, num_words: int, num_counts: int, block_dropout: Mapping[str, float] | None = None
    ):
        super().__init__()
        shares = dict(block_dropout or {})
        if unknown := shares.keys() - BLOCKS:
            raise InputError(f"block_dropout names {sorted(unknown)} but blocks are {sorted(BLOCKS)}")
        if any(share < 0 for share in shares.values()) or sum(shares.values()) > 1:
            raise InputError(f"block_dropout is {shares} but needs shares of at least 0 and together at most 1")
        if num_words < 1 or num_counts < 0:
            raise InputError(f"{num_words} words and {num_counts} count distributions: give 1 or more and 0 or more")
        if shares.get("words") and not num_counts:
            raise InputError("block_dropout drops the words but num_counts is 0, so that nothing is left; give 0")
        self.num_words, self.num_counts, self.block_dropout = num_words, num_counts, shares
        columns = -(-(num_words + num_counts) // ALIGNED) * ALIGNED
        self.logits = torch.nn.Linear(hidden_size, columns)

    def forward(self, hidden: torch.Tensor, log_probs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return -ln P of each target, (...,) float32.

        hidden     (..., hidden_size)
        log_probs  (..., N) ln P of the target by each count distribution; -inf is legal
        target     (...,) int64: words
        """
        rows = hidden.flatten(0, -2)
        losses = mixture_loss(
            self.logits(rows),
            log_probs.reshape(len(rows), self.num_counts),
            target.flatten(),
            self.num_words,
            self._dropped(rows) if self.training and self.block_dropout else None,
        )
        return losses.view(target.shape)

    def probabilities(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return P of all words, (..., V) float32; no block is dropped.

        hidden  (..., hidden_size)
        rows    (..., N, V) P of all words by each count distribution
        """
        V, N = self.num_words, self.num_counts
        weights = self.logits(hidden)[..., : V + N].float().softmax(-1)
        return weights[..., :V] + (weights[..., None, V:] @ rows.float())[..., 0, :]

    def _dropped(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the block that each row lacks, (R,) uint8."""
        draws = torch.rand(len(rows), device=rows.device)
        dropped, first = torch.zeros(len(rows), dtype=torch.uint8, device=rows.device), 0.0
        for block, share in self.block_dropout.items():
            dropped[(draws >= first) & (draws < first + share)] = BLOCKS[block]
            first += share
        return dropped


def mixture_loss(
    logits: torch.Tensor,
    log_probs: torch.Tensor,
    target: torch.Tensor,
    num_words: int,
    dropped: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return -ln P of each target by a mixture of distributions, (R,) float32; differentiable once.

    logits     (R, X) float32, float16 or bfloat16: of V words, of N count distributions, then columns that are not
               read. With X a multiple of 8 rows are aligned, which is fastest. float64 uses PyTorch alone, slowly
    log_probs  (R, N) ln P of the target by each count distribution; -inf is legal
    target     (R,) int64: words, 0 to V - 1; for others, the loss is NaN
    num_words  V
    dropped    None or (R,) uint8: 1 for rows without count distributions, 2 for rows without words

    A row of probability 0 has the loss inf. Raises InputError for shapes, dtypes and devices that do not fit.
    """
    _check(logits, log_probs, target, num_words, dropped)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return _MixtureLoss.apply(logits, log_probs.to(exact), target, num_words, dropped)


class _MixtureLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> Any:
        log_sum, log_gold = tensor_sums(Mixture(logits, num_words, log_probs, target, dropped))
        ctx.save_for_backward(logits, log_probs, target, dropped, log_sum, log_gold)
        ctx.num_words = num_words
        return (log_sum - log_gold).to(log_probs.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Any) -> Any:
        logits, log_probs, target, dropped, log_sum, log_gold = ctx.saved_tensors
        mixture = Mixture(logits, ctx.num_words, log_probs, target, dropped)
        of_logits = of_probs = None
        if ctx.needs_input_grad[0]:
            of_logits = tensor_gradient(mixture, log_sum, log_gold, scale)
        if ctx.needs_input_grad[1]:
            end = ctx.num_words + log_probs.shape[1]
            terms = logits[:, ctx.num_words : end].double() + log_probs - log_gold[:, None]
            of_probs = (-scale[:, None] * terms.exp()).nan_to_num(0).to(log_probs.dtype)
            if dropped is not None:
                of_probs[dropped & BLOCKS["counts"] > 0] = 0
        return of_logits, of_probs, None, None, None


def _check(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> None:
    """Raise InputError unless the arguments of `mixture_loss` fit together."""
    if logits.ndim != 2 or log_probs.ndim != 2 or not 1 <= num_words <= logits.shape[1] - log_probs.shape[-1]:
        raise InputError(
            f"logits {tuple(logits.shape)} and log_probs {tuple(log_probs.shape)} do not fit {num_words} words; "
            "give (R, X) and (R, N) with X at least words + N"
        )
    if logits.dtype not in DTYPES:
        raise InputError(f"logits are {logits.dtype} but must be of {', '.join(map(str, DTYPES))}")
    wanted = {"log_probs": (log_probs, log_probs.dtype), "target": (target, torch.int64)}
    if dropped is not None:
        wanted["dropped"] = dropped, torch.uint8
    for name, (tensor, dtype) in wanted.items():
        shape = (len(logits), *log_probs.shape[1:]) if name == "log_probs" else (len(logits),)
        if tensor.shape != shape or tensor.dtype != dtype:
            raise InputError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} but needs {dtype} of {shape}")
        if tensor.device != logits.device:
            raise InputError(f"{name} is on {tensor.device} but the logits are on {logits.device}; move it there")
