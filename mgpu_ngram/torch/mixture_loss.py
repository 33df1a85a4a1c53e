"""The loss of mixtures of count distributions and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import library

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.states.torch_mixture import DROPPED_BITS, Mixture, tensor_gradient, tensor_sums

from .arguments import check_tensor, integer

LOSS_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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

    A row of probability 0 has the loss inf. Logits must be below 2^21, and the greatest of a row above -2^21, in
    float16 above -65,504; otherwise the loss is NaN. So words may be masked by the least number, but not a whole row.
    Autocast changes nothing: logits of 16 bits are read without a copy, and the loss is that of their float32 values.
    `torch.compile` takes the loss as one operator. Raises InputError for shapes, dtypes and devices that do not fit.
    """
    _check(logits, log_probs, target, num_words, dropped)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    inputs = logits, log_probs.to(exact), target, num_words, dropped
    if torch.compiler.is_compiling():
        return _loss_operator(*inputs)[0]
    return _TransformedLoss.apply(*inputs)[0] if _is_transformed() else _MixtureLoss.apply(*inputs)


def _losses(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> Any:
    """Return the losses, and the two sums that their gradients need."""
    log_sum, log_gold = tensor_sums(Mixture(logits, num_words, log_probs, target, dropped))
    return (log_sum - log_gold).to(log_probs.dtype), log_sum, log_gold


def _gradient(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any, *of_rows: Any) -> Any:
    """Return the gradient of the logits."""
    return tensor_gradient(Mixture(logits, num_words, log_probs, target, dropped), *of_rows)


def _gradient_of_probs(
    logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any, log_sum: Any, log_gold: Any, scale: Any
) -> Any:
    """Return the gradient of the log-probabilities."""
    terms = logits[:, num_words : num_words + log_probs.shape[1]].double() + log_probs - log_gold[:, None]
    made = (-scale[:, None] * terms.exp()).nan_to_num(0).to(log_probs.dtype)
    return made if dropped is None else made.masked_fill((dropped & DROPPED_BITS["counts"] > 0)[:, None], 0)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    logits, log_probs, target, ctx.num_words, dropped = inputs
    ctx.save_for_backward(logits, log_probs, target, dropped, *output[1:])


def _gradients(ctx: Any, scale: Any, *of_inputs: Callable[..., Any]) -> Any:
    """Return the gradients of the inputs of `_losses`; of_inputs make those of the first two."""
    logits, log_probs, target, dropped, *sums = ctx.saved_tensors
    kept = logits, log_probs, target, ctx.num_words, dropped, *sums, scale
    made = (of(*kept) if needed else None for of, needed in zip(of_inputs, ctx.needs_input_grad[:2], strict=True))
    return *made, None, None, None


class _MixtureLoss(torch.autograd.Function):
    """The loss without the operators below: calling an operator takes longer than computing a small batch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _losses(*inputs)
        _keep(ctx, inputs, output)
        return output[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Any) -> Any:
        return _gradients(ctx, scale, _gradient, _gradient_of_probs)


# Functions for `torch.func`. Their calls cost more, because PyTorch binds the arguments to the signature each time.
_is_transformed = torch._C._are_functorch_transforms_active


class _OfRows(torch.autograd.Function):
    """A function whose tensors have a row for each target, so that `torch.vmap` may join their rows."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> Any:
        size, joined = info.batch_size, []
        for given, axis in zip(inputs, in_dims, strict=True):
            if isinstance(given, torch.Tensor):
                batched = given.expand(size, *given.shape) if axis is None else given.movedim(axis, 0)
                rows, given = batched.shape[1], batched.flatten(0, 1)
            joined.append(given)
        made = cls.apply(*joined)
        if isinstance(made, torch.Tensor):
            return made.unflatten(0, (size, rows)), 0
        return tuple(tensor.unflatten(0, (size, rows)) for tensor in made), (0,) * len(made)


class _TransformedLoss(_OfRows):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _losses(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, scale: Any, *_: Any) -> Any:
        return _gradients(ctx, scale, _LogitGradient.apply, _ProbGradient.apply)


class _Gradient(_OfRows):
    """A gradient without a derivative. It is an autograd function because `torch.func` transforms no other code."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise InputError("mixture_loss has first derivatives only; write the loss in plain operators for second ones")


class _LogitGradient(_Gradient):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _gradient(*inputs)


class _ProbGradient(_Gradient):
    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _gradient_of_probs(*inputs)


# Custom operators: `torch.compile` calls them and does not trace their code.
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


_loss_operator.register_autograd(
    lambda ctx, scale, *_: _gradients(ctx, scale, _gradient_operator, _gradient_of_probs), setup_context=_keep
)


def _check(logits: Any, log_probs: Any, target: Any, num_words: int, dropped: Any) -> None:
    """Raise InputError unless the arguments of `mixture_loss` fit together."""
    for name, given in {"logits": logits, "log_probs": log_probs, "target": target, "dropped": dropped}.items():
        if given is not None or name != "dropped":
            check_tensor(name, given)
    integer("num_words", num_words, 1)
    if logits.ndim != 2 or log_probs.ndim != 2 or num_words > logits.shape[1] - log_probs.shape[-1]:
        raise InputError(
            f"logits {tuple(logits.shape)} and log_probs {tuple(log_probs.shape)} do not fit {num_words} words; "
            "give (R, X) and (R, N) with X at least words + N"
        )
    if logits.dtype not in LOSS_DTYPES:
        raise InputError(f"logits are {logits.dtype} but must be of {', '.join(map(str, LOSS_DTYPES))}")
    if log_probs.dtype not in LOSS_DTYPES:
        raise InputError(f"log_probs are {log_probs.dtype} but must be of {', '.join(map(str, LOSS_DTYPES))}")
    wanted = {"log_probs": (log_probs, log_probs.dtype), "target": (target, torch.int64)}
    if dropped is not None:
        wanted["dropped"] = dropped, torch.uint8
    for name, (tensor, dtype) in wanted.items():
        shape = (len(logits), *log_probs.shape[1:]) if name == "log_probs" else (len(logits),)
        if tensor.shape != shape or tensor.dtype != dtype:
            raise InputError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} but needs {dtype} of {shape}")
        if tensor.device != logits.device:
            raise InputError(f"{name} is on {tensor.device} but the logits are on {logits.device}; move it there")
