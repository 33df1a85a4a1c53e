"""The loss of mixtures of count distributions and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import library

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.mixture import BLOCKS, Mixture, tensor_gradient, tensor_sums

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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

    A row of probability 0 has the loss inf. Autocast changes nothing: logits of 16 bits are read without a copy, and
    the loss is that of their float32 values. `torch.compile` takes the loss as one operator. Raises InputError for
    shapes, dtypes and devices that do not fit.
    """
    _check(logits, log_probs, target, num_words, dropped)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    inputs = logits, log_probs.to(exact), target, num_words, dropped
    return _loss_operator(*inputs)[0] if torch.compiler.is_compiling() else _MixtureLoss.apply(*inputs)


class _MixtureLoss(torch.autograd.Function):
    """The operators below without their calls, which take longer than a small batch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _losses(*inputs)
        _keep(ctx, inputs, output)
        return output[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Any) -> Any:
        return _gradients(ctx, scale, _gradient)


def _losses(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> Any:
    """Return the losses, and the two sums that their gradients need."""
    log_sum, log_gold = tensor_sums(Mixture(logits, num_words, log_probs, target, dropped))
    return (log_sum - log_gold).to(log_probs.dtype), log_sum, log_gold


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    logits, log_probs, target, ctx.num_words, dropped = inputs
    ctx.save_for_backward(logits, log_probs, target, dropped, *output[1:])


def _gradients(ctx: Any, scale: Any, gradient: Callable[..., Any]) -> Any:
    """Return the gradients of the inputs of `_losses`; `gradient` is `_gradient` or its operator."""
    logits, log_probs, target, dropped, log_sum, log_gold = ctx.saved_tensors
    of_logits = of_probs = None
    if ctx.needs_input_grad[0]:
        of_logits = gradient(logits, log_probs, target, ctx.num_words, dropped, log_sum, log_gold, scale)
    if ctx.needs_input_grad[1]:
        end = ctx.num_words + log_probs.shape[1]
        terms = logits[:, ctx.num_words : end].double() + log_probs - log_gold[:, None]
        of_probs = (-scale[:, None] * terms.exp()).nan_to_num(0).to(log_probs.dtype)
        if dropped is not None:
            of_probs = of_probs.masked_fill((dropped & BLOCKS["counts"] > 0)[:, None], 0)
    return of_logits, of_probs, None, None, None


def _gradient(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any, *of_rows: Any) -> Any:
    return tensor_gradient(Mixture(logits, num_words, log_probs, target, dropped), *of_rows)


# Operators, which `torch.compile` takes as they are.
_OF_MIXTURE = "Tensor logits, Tensor log_probs, Tensor target, int num_words, Tensor? dropped"
_loss_operator = library.custom_op(
    "mgpu_ngram::mixture_loss", _losses, mutates_args=(), schema=f"({_OF_MIXTURE}) -> (Tensor, Tensor, Tensor)"
)
_gradient_operator = library.custom_op(
    "mgpu_ngram::mixture_gradient",
    _gradient,
    mutates_args=(),
    schema=f"({_OF_MIXTURE}, Tensor log_sum, Tensor log_gold, Tensor scale) -> Tensor",
)


@_loss_operator.register_fake
def _(logits: Any, log_probs: Any, *_: Any) -> Any:
    rows = len(logits)
    return log_probs.new_empty(rows), *(logits.new_empty(rows, dtype=torch.float64) for _ in range(2))


@_gradient_operator.register_fake
def _(logits: Any, *_: Any) -> Any:
    return logits.new_empty(logits.shape)


_loss_operator.register_autograd(lambda ctx, scale, *_: _gradients(ctx, scale, _gradient_operator), setup_context=_keep)


def _check(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> None:
    """Raise InputError unless the arguments of `mixture_loss` fit together."""
    for name, given in {"logits": logits, "log_probs": log_probs, "target": target, "dropped": dropped}.items():
        if not isinstance(given, torch.Tensor) and (given is not None or name != "dropped"):
            raise InputError(f"{name} is {type(given).__name__} but must be a tensor")
    if logits.ndim != 2 or log_probs.ndim != 2 or not 1 <= num_words <= logits.shape[1] - log_probs.shape[-1]:
        raise InputError(
            f"logits {tuple(logits.shape)} and log_probs {tuple(log_probs.shape)} do not fit {num_words} words; "
            "give (R, X) and (R, N) with X at least words + N"
        )
    if logits.dtype not in DTYPES:
        raise InputError(f"logits are {logits.dtype} but must be of {', '.join(map(str, DTYPES))}")
    if log_probs.dtype not in DTYPES:
        raise InputError(f"log_probs are {log_probs.dtype} but must be of {', '.join(map(str, DTYPES))}")
    wanted = {"log_probs": (log_probs, log_probs.dtype), "target": (target, torch.int64)}
    if dropped is not None:
        wanted["dropped"] = dropped, torch.uint8
    for name, (tensor, dtype) in wanted.items():
        shape = (len(logits), *log_probs.shape[1:]) if name == "log_probs" else (len(logits),)
        if tensor.shape != shape or tensor.dtype != dtype:
            raise InputError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} but needs {dtype} of {shape}")
        if tensor.device != logits.device:
            raise InputError(f"{name} is on {tensor.device} but the logits are on {logits.device}; move it there")
