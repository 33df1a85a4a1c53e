"""Sums and gradients of mixtures of distributions on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.states.token_states import TokenStates
from mgpu_ngram.engine.torch.arrays import as_array, as_tensor, on_stream_of, torch_of
from mgpu_ngram.kernels.mixture.mixture_gradient import mixture_gradient
from mgpu_ngram.kernels.mixture.mixture_rows import mixture_rows
from mgpu_ngram.kernels.mixture.mixture_sums import COUNTS, WORDS, Mixture, mixture_sums
from mgpu_ngram.kernels.mixture.mixture_top import mixture_top

__all__ = ["DROPPED_BITS", "Mixture", "tensor_gradient", "tensor_rows", "tensor_sums", "tensor_top"]

DROPPED_BITS = {"counts": COUNTS, "words": WORDS}


def tensor_sums(mixture: Mixture) -> tuple[Any, Any]:
    """Return `mixture_sums` of tensors as tensors.

    Logits of float64, for tests of gradients, are computed by PyTorch.
    """
    torch = torch_of(mixture.logits_RX)
    if mixture.logits_RX.dtype == torch.float64:
        kept_RX, terms_RN1 = _terms(mixture)
        return kept_RX.logsumexp(1), terms_RN1.logsumexp(1)
    return _run(lambda: mixture_sums(_arrays(mixture)), mixture)


def tensor_gradient(mixture: Mixture, log_sum_R: Any, log_gold_R: Any, scale_R: Any) -> Any:
    """Return `mixture_gradient` of tensors as a tensor of the dtype of the logits."""
    torch = torch_of(mixture.logits_RX)
    if mixture.logits_RX.dtype == torch.float64:
        kept_RX, terms_RN1 = _terms(mixture)
        posterior_RN1 = (terms_RN1 - log_gold_R[:, None]).exp().nan_to_num(0)
        gradient_RX = (kept_RX - log_sum_R[:, None]).exp()
        gradient_RX[:, mixture.words : mixture.words + mixture.log_probs_RN.shape[1]] -= posterior_RN1[:, 1:]
        gradient_RX.scatter_add_(1, _places(mixture), -posterior_RN1[:, :1])
        return (gradient_RX * scale_R[:, None]).masked_fill_(log_gold_R.isnan()[:, None], float("nan"))
    of_rows = log_sum_R, log_gold_R, scale_R.to(torch.float32).contiguous()
    (gradient_RX,) = _run(lambda: (mixture_gradient(_arrays(mixture), *map(as_array, of_rows)),), mixture)
    return gradient_RX.view(torch.bfloat16) if mixture.logits_RX.dtype == torch.bfloat16 else gradient_RX


def tensor_rows(logits_RX: Any, words: int, rows_RNV: Any) -> Any:
    """Return `mixture_rows` of tensors as a tensor."""
    with on_stream_of(logits_RX):
        return as_tensor(mixture_rows(as_array(logits_RX), words, as_array(rows_RNV)), logits_RX)


def tensor_top(logits_RX: Any, words: int, k: int, models: Sequence[TokenStates], states_RN: Any) -> tuple[Any, Any]:
    """Return `mixture_top` of tensors as tensors: probabilities (R, k) float32, and words (R, k) int64.

    states_RN  (R, N) int32, states of the N models

    Raises InputError if k or the number of models is out of range.
    """
    torch = torch_of(logits_RX)
    with on_stream_of(logits_RX):
        states = (as_array(states_R) for states_R in states_RN.T.contiguous())
        counts = [model.children(states_R) for model, states_R in zip(models, states, strict=True)]
        try:
            found = mixture_top(as_array(logits_RX), words, k, counts)
        except ValueError as error:
            raise InputError(str(error)) from None
        words_RK, probs_RK = (as_tensor(array, logits_RX) for array in found)
        return probs_RK, words_RK.to(torch.int64)


def _arrays(mixture: Mixture) -> Mixture:
    """Return the same mixture of NumPy or CuPy arrays."""
    return Mixture(*(field if isinstance(field, int) else as_array(field) for field in mixture))


def _run(make: Callable[[], tuple[Any, ...]], mixture: Mixture) -> tuple[Any, ...]:
    """Return arrays that are made on PyTorch's stream as tensors."""
    logits = mixture.logits_RX
    with on_stream_of(logits):
        return tuple(as_tensor(array, logits) for array in make())


def _terms(mixture: Mixture) -> tuple[Any, Any]:
    """Return the logits, -inf where dropped, and the terms of the gold word: its own, then those of counts."""
    logits_RX, words, log_probs_RN, _, dropped_R = mixture
    end = words + log_probs_RN.shape[1]
    kept_RX = logits_RX.clone()
    kept_RX[:, end:] = -float("inf")
    if dropped_R is not None:
        kept_RX[:, :words].masked_fill_((dropped_R & WORDS > 0)[:, None], -float("inf"))
        kept_RX[:, words:].masked_fill_((dropped_R & COUNTS > 0)[:, None], -float("inf"))
    of_counts_RN = kept_RX[:, words:end] + log_probs_RN
    of_gold_R1 = kept_RX.gather(1, _places(mixture)).masked_fill_(_outside(mixture)[:, None], float("nan"))
    return kept_RX, torch_of(logits_RX).cat([of_gold_R1, of_counts_RN], 1)


def _outside(mixture: Mixture) -> Any:
    """Return where a gold word is none, (R,) bool."""
    return (mixture.gold_R < 0) | (mixture.gold_R >= mixture.words)


def _places(mixture: Mixture) -> Any:
    """Return the column of each gold word, (R, 1); 0 where it is none."""
    return mixture.gold_R.masked_fill(_outside(mixture), 0)[:, None]
