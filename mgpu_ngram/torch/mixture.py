"""Mixtures of count distributions and words: the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import check_flag
from mgpu_ngram.engine.states.torch_mixture import DROPPED_BITS, tensor_rows
from mgpu_ngram.engine.torch.arrays import check_dense
from mgpu_ngram.engine.trie.signed_backoffs import EMPTY, MAX_STATE

from . import operators
from .arguments import check_tensor, described, finite_number, integer, ordered
from .mixture_loss import mixture_loss
from .ngram_lm import NGramLM

MAX_WEIGHTS = 1 << 40
ALIGNED_COLUMNS = 8  # columns; 8 numbers of float16 are 16 bytes


class MixtureOfDistributions(torch.nn.Module):
    """The output layer of a language model that mixes count distributions with the words of a softmax.

    One softmax weighs N count distributions, such as n-gram models of several orders, and for each word of the
    vocabulary a distribution that has this word alone: P(w) = weight of w + sum of weight_i P_i(w). Without count
    distributions, it is a softmax; without words, an interpolation whose weights depend on the context (Neubig and
    Dyer, "Generalizing and hybridizing count-based and neural language models", 2016).

    hidden_size    numbers in a hidden state
    num_words      V, words of the vocabulary
    num_counts     N, count distributions
    block_dropout  in training, the share of rows that lack a block: "counts" or "words", together at most 1. Without
                   it, the layer learns to rely on the count distributions alone, and the words learn little; 0.5 for
                   "counts" is usual
    only_counts    whether to mix the count distributions alone: words have no weights
    """

    def __init__(
        self,
        hidden_size: int,
        num_words: int,
        num_counts: int,
        block_dropout: Mapping[str, float] | None = None,
        only_counts: bool = False,
    ):
        super().__init__()
        hidden_size, num_words = integer("hidden_size", hidden_size, 1), integer("num_words", num_words, 1)
        num_counts = integer("num_counts", num_counts, 0)
        if block_dropout is not None and not isinstance(block_dropout, Mapping):
            raise InputError(f"block_dropout is {block_dropout!r} but must be a share by block, as {{'counts': 0.5}}")
        shares = {
            block: finite_number(f"block_dropout of {block}", share) for block, share in (block_dropout or {}).items()
        }
        if unknown := shares.keys() - DROPPED_BITS:
            raise InputError(f"block_dropout names {sorted(unknown)} but blocks are {sorted(DROPPED_BITS)}")
        if any(share < 0 for share in shares.values()) or sum(shares.values()) > 1:
            raise InputError(f"block_dropout is {shares} but needs shares of at least 0 and together at most 1")
        if shares.get("words") and not num_counts:
            raise InputError("block_dropout drops the words but num_counts is 0, so that nothing is left; give 0")
        check_flag("only_counts", only_counts)
        if only_counts and (shares or not num_counts):
            raise InputError(
                f"only_counts is True but block_dropout is {shares} and num_counts {num_counts}; give neither "
                "block_dropout nor num_counts=0"
            )
        self.num_words, self.num_counts, self.block_dropout = num_words, num_counts, shares
        self._weighed = 1 if only_counts else num_words  # words that have logits; that of only_counts is always dropped
        self.only_counts = bool(only_counts)
        if hidden_size * (num_words + num_counts) > MAX_WEIGHTS:
            raise InputError(
                f"hidden_size {hidden_size:,} and {num_words + num_counts:,} words and count distributions need over "
                f"{MAX_WEIGHTS:,} weights; give smaller ones"
            )
        columns = -(-(self._weighed + num_counts) // ALIGNED_COLUMNS) * ALIGNED_COLUMNS
        self.logits = torch.nn.Linear(hidden_size, columns)

    def forward(self, hidden: torch.Tensor, log_probs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return -ln P of each target, (...,) float32.

        hidden     (..., hidden_size)
        log_probs  (..., N) ln P of the target by each count distribution; -inf is legal
        target     (...,) int64: words
        """
        self._check(hidden, log_probs=log_probs, target=target)
        shape = hidden.shape[:-1]
        if target.shape != shape or log_probs.shape != (*shape, self.num_counts):
            raise InputError(
                f"targets have shape {tuple(target.shape)} and log_probs {tuple(log_probs.shape)} but hidden states "
                f"{tuple(hidden.shape)} need {tuple(shape)} and {(*shape, self.num_counts)}"
            )
        rows, targets = hidden.reshape(-1, hidden.shape[-1]), target.flatten()
        dropped = self._dropped(rows) if self.training and self.block_dropout else None
        if self.only_counts:
            dropped = torch.full((len(rows),), DROPPED_BITS["words"], dtype=torch.uint8, device=rows.device)
            targets = torch.where((targets >= 0) & (targets < self.num_words), 0, -1)  # others have no loss
        losses = mixture_loss(
            self.logits(rows), log_probs.reshape(len(rows), self.num_counts), targets, self._weighed, dropped
        )
        return losses.view(target.shape)

    def probabilities(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return P of all words, (..., V) float32; no block is dropped. Fastest without a gradient.

        hidden  (..., hidden_size)
        rows    (..., N, V) P of all words by each count distribution
        """
        self._check(hidden, rows=rows)
        V, N, shape = self.num_words, self.num_counts, hidden.shape[:-1]
        if rows.shape != (*shape, N, V):
            raise InputError(f"rows have shape {tuple(rows.shape)} but the layer needs {(*shape, N, V)}")
        logits = self.logits(hidden)
        if self.only_counts:
            with torch.autocast(logits.device.type, enabled=False):
                weights = logits[..., 1 : 1 + N].float().softmax(-1)
                return (weights[..., None, :] @ rows.float())[..., 0, :]
        has_gradient = torch.is_grad_enabled() and (logits.requires_grad or rows.requires_grad)
        if has_gradient or torch.compiler.is_compiling() or logits.dtype == torch.float64:
            with torch.autocast(logits.device.type, enabled=False):  # it would round the product to 16 bits
                weights = logits[..., : V + N].float().softmax(-1)
                return weights[..., :V] + (weights[..., None, V:] @ rows.float())[..., 0, :]
        if rows.device != logits.device:
            raise InputError(f"rows are on {rows.device} but hidden states are on {logits.device}; move them there")
        rows = rows if rows.dtype in (torch.float32, torch.float16, torch.bfloat16) else rows.float()
        return tensor_rows(logits.reshape(-1, logits.shape[-1]), V, rows.reshape(shape.numel(), N, V)).view(*shape, V)

    def top_k(
        self, hidden: torch.Tensor, models: Sequence[NGramLM], states: torch.Tensor, k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the k greatest probabilities of each row, (..., k) float32, and their words, (..., k) int64.

        hidden  (..., hidden_size)
        models  the N count distributions: n-gram models over the words of the layer, on the device of `hidden`
        states  (..., N) integers: the state of each model, as its `step` returns it
        k       1 to 64

        The greatest probability is first; of words with equal probability, the one with the lower number. No block is
        dropped. No row of all words is made, so this takes little memory. Raises InputError for models, shapes and k
        that do not fit.
        """
        self._check(hidden)
        if self.only_counts:
            raise InputError("top_k needs the words but only_counts is True; use probabilities(hidden, rows).topk(k)")
        shape, models, k = hidden.shape[:-1], ordered("models", models, "NGramLMs"), integer("k", k, 1)
        for i, model in enumerate(models):
            if not isinstance(model, NGramLM):
                raise InputError(f"model {i} is {type(model).__name__} but must be an NGramLM")
        check_tensor("states", states)
        if states.dtype not in (torch.int64, torch.int32):
            raise InputError(f"states are {described(states)} but must be a tensor of int64 or int32")
        sizes = [model.vocab_size for model in models]
        if sizes != [self.num_words] * self.num_counts or states.shape != (*shape, self.num_counts):
            raise InputError(
                f"models of {sizes} words and states {tuple(states.shape)} do not fit {self.num_counts} count "
                f"distributions of {self.num_words} words and hidden states {tuple(hidden.shape)}"
            )
        for i, model in enumerate(models):
            if model.device.type != hidden.device.type or states.device != hidden.device:
                raise InputError(
                    f"model {i} is on {model.device} and the states on {states.device} but hidden states are on "
                    f"{hidden.device}; load the model there: Model.load(path, device)"
                )
        with torch.no_grad():
            logits = self.logits(hidden.reshape(-1, hidden.shape[-1]))
            logits = logits.float() if logits.dtype == torch.float64 else logits
            of_rows = states.clamp(EMPTY, MAX_STATE).reshape(shape.numel(), self.num_counts).to(torch.int32)
            top = operators.mixture_top if torch.compiler.is_compiling() else operators.top
            probs, words = top(logits, self.num_words, k, [model._number for model in models], of_rows)
        return probs.view(*shape, k), words.view(*shape, k)

    def _check(self, hidden: torch.Tensor, **others: torch.Tensor) -> None:
        size = self.logits.in_features
        check_dense(hidden)
        if not isinstance(hidden, torch.Tensor) or hidden.shape[-1:] != (size,) or not hidden.is_floating_point():
            raise InputError(
                f"hidden states are {described(hidden)} but must be a tensor of floating-point numbers of shape "
                f"(..., {size})"
            )
        for name, given in others.items():
            check_tensor(name, given)

    def _dropped(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the block that each row lacks, (R,) uint8."""
        draws = torch.rand(len(rows), device=rows.device)
        dropped, first = torch.zeros(len(rows), dtype=torch.uint8, device=rows.device), 0.0
        for block, share in self.block_dropout.items():
            dropped[(draws >= first) & (draws < first + share)] = DROPPED_BITS[block]
            first += share
        return dropped
