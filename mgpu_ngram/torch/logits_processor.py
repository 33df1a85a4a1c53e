"""An n-gram model in Hugging Face's `generate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.model import Model

from .ngram_lm import NGramLM


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
