"""Mixtures of count distributions and words: the layer and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.mixture import BLOCKS, Mixture, tensor_gradient, tensor_sums

ALIGNED = 8  # columns; 8 numbers of float16 are 16 bytes
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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
