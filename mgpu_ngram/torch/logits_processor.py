"""An n-gram model in Hugging Face's `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mgpu_ngram.api.model import Model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import check_option
from mgpu_ngram.engine.states.word_pieces import PARTIAL
from mgpu_ngram.engine.torch.arrays import check_dense

from .arguments import check_model, described, finite_number, integer, ordered
from .ngram_lm import NGramLM
from .word_scores import PieceScores

SCORE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class LogitsProcessor:
    """Adds the scores of an n-gram model, of token ids or of words, in Hugging Face's `generate`.

    The score of each token becomes score + weight * ln P(token | tokens before). Pass the object as
    `logits_processor=LogitsProcessorList([...])`, for greedy search, sampling or beam search. States are computed from
    the last tokens of each row, so beams may be reordered. Rows may be padded on the left.

    model         a loaded `Model`, such as one that `estimate --unit id` made of the tokenizer's ids, or one of words
    weight        of the model, 0 or more
    tokens        the word of each token in the model; None: its decimal number, as `--unit id` writes it
    bos_token_id  a token that begins a sentence, <s> of the model; None: none does
    eos_token_id  a token that ends a sentence, </s> of the model, or several such tokens; None: none does
    pad_token_id  the token on the left of shorter rows; None: no row is padded
    pieces        for a model of words: the bytes of each token, as `pieces_of` makes them
    partial       the look-ahead of a partial word: "sum", "lexicon" or "none"; see below

    Each row begins a sentence, and so does what follows an end. Tokens that the model lacks have the probability of
    <unk>. Scores beyond the tokens stay as they are.

    With pieces, words are what white space separates in the joined pieces. The score of a text is ln P of its whole
    words, plus a look-ahead of its partial last word. A token gets what it adds to this score. Look-aheads:

    "sum"      ln of the sum of P(word | words before) of all words that begin so and of <unk>
    "lexicon"  the same with P(word), whatever the words before
    "none"     0: a word counts when it ends

    With "sum" and "lexicon", a partial word that begins no word of the model has the probability of <unk>.
    """

    def __init__(
        self,
        model: Model,
        weight: float,
        tokens: Sequence[str | bytes] | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        pieces: Sequence[bytes] | None = None,
        partial: str = "sum",
    ):
        check_model(model)
        self._arguments = model, weight, tokens, bos_token_id, eos_token_id, pad_token_id, pieces, partial
        check_option("partial", partial, PARTIAL)
        if tokens is not None and pieces is not None:
            raise InputError("tokens are for a model of tokens and pieces for one of words; give one of them")
        self.model, self.weight, self._tokens = model, finite_number("weight", weight, 0), tokens
        self._pad = None if pad_token_id is None else integer("pad_token_id", pad_token_id)
        self._ends = _ids("eos_token_id", eos_token_id)
        self._begins = self._ends if bos_token_id is None else [*self._ends, integer("bos_token_id", bos_token_id)]
        self._lm: NGramLM | None = None
        self._words = None
        if pieces is not None:
            self._words = PieceScores(model, ordered("pieces", pieces, "bytes, by token id"), partial, self._begins)
        elif tokens is not None:
            self._tokens = ordered("tokens", tokens, "words, by token id")

    def __reduce__(self) -> tuple[type[LogitsProcessor], tuple[Any, ...]]:
        return LogitsProcessor, self._arguments

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next tokens with the model's, (B, V) of their dtype; see the class.

        input_ids  (B, L) int64, the tokens so far
        scores     (B, V)
        """
        _check(input_ids, scores)
        if self.weight == 0:  # 0 times ln 0 would be NaN
            return scores.clone()
        is_token = torch.ones_like(input_ids, dtype=torch.bool)
        if self._pad is not None:  # a padding token may be one that also occurs in a row, such as the end
            is_token = (input_ids != self._pad).cumsum(1) > 0
        if self._words is not None:
            ngrams, final = self._words(input_ids, is_token)
        else:
            ngrams, final = self._of_tokens(input_ids, is_token, scores.shape[1])
        width = min(ngrams.shape[1], scores.shape[1])
        for end in self._ends:
            if not 0 <= end < width:
                raise InputError(f"eos_token_id is {end} but there are scores of {width:,} tokens; give one of those")
            ngrams[:, end] = final
        made = scores.clone()
        made[:, :width] += (self.weight * ngrams[:, :width]).to(scores)
        return made

    def _of_tokens(
        self, input_ids: torch.Tensor, is_token: torch.Tensor, vocab_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ln P of each token after each row, and ln P that the sentence ends."""
        lm, (rows, length) = self._lm, input_ids.shape
        if lm is None or (self._tokens is None and lm.vocab_size < vocab_size):
            lm = self._make_lm(vocab_size)
        states = begin = lm.get_init_states(rows).to(input_ids.device)
        first = max(0, length - (self.model.order - 1))  # a state depends on no earlier token
        for i in range(first, length):
            tokens = input_ids[:, i]
            after = lm.step(states, tokens)
            for token in self._begins:
                after = torch.where(tokens == token, begin, after)
            states = torch.where(is_token[:, i], after, states)
        return lm.advance(states)[0], lm.get_final(states)

    @torch.compiler.disable  # a first call breaks the graph
    def _make_lm(self, vocab_size: int) -> NGramLM:
        words = [str(token) for token in range(vocab_size)] if self._tokens is None else self._tokens
        self._lm = NGramLM(self.model, words, normalize_unk=False)
        return self._lm


def _ids(name: str, given: Any) -> list[int]:
    """Return a list of token ids from one id, several ids or None."""
    check_dense(given)
    several = given.tolist() if hasattr(given, "tolist") else [] if given is None else given
    is_one = isinstance(several, str) or not isinstance(several, Iterable)
    return [integer(name, token) for token in ([several] if is_one else several)]


def _check(input_ids: Any, scores: Any) -> None:
    """Raise InputError unless the arguments of a call fit together."""
    check_dense(input_ids)
    check_dense(scores)
    both = isinstance(input_ids, torch.Tensor) and isinstance(scores, torch.Tensor)
    fit = both and input_ids.ndim == scores.ndim == 2 and len(input_ids) == len(scores)
    if not fit or input_ids.dtype not in (torch.int64, torch.int32) or scores.dtype not in SCORE_DTYPES:
        raise InputError(
            f"input_ids are {described(input_ids)} and scores {described(scores)} but must be tensors of integers, "
            "(B, L), and of floating-point numbers of 16 bits or more, (B, V)"
        )
