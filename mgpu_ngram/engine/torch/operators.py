"""Methods of `Model` as custom operators of PyTorch: `torch.compile` calls them and does not trace their code.

Importing this module imports PyTorch and defines the operators. `torch_arrays.operator` calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import library

from mgpu_ngram.core.models.row_options import ROW_ALIGNMENT_BYTES, RowOptions
from mgpu_ngram.engine.torch.model_numbers import model_of


def _define(method: str, arguments: str, empty: Callable[..., list[Any]]) -> None:
    """Define the operator `model_METHOD`, which returns a list of tensors and takes the number of a model last.

    arguments  those of the method, without `out` and `stream`, as in a schema of PyTorch
    empty      (model, arguments) -> empty tensors of the shapes, dtypes and strides of the result
    """

    def call(*args: Any, model: int, **options: Any) -> list[Any]:
        made = getattr(model_of(model), method)(*args, **options)
        return [tensor for tensor in (made if isinstance(made, tuple) else (made,)) if tensor is not None]

    def fake(*args: Any, model: int, **options: Any) -> list[Any]:
        return empty(model_of(model), *args, **options)

    made = library.custom_op(
        f"mgpu_ngram::model_{method}", call, mutates_args=(), schema=f"({arguments}, *, int model) -> Tensor[]"
    )
    made.register_fake(fake)


def _rows(like: Any, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return an empty tensor whose rows are padded like those of a model."""
    kind = getattr(torch, dtype)
    aligned = ROW_ALIGNMENT_BYTES // kind.itemsize
    return like.new_empty((*shape[:-1], -(-shape[-1] // aligned) * aligned), dtype=kind)[..., : shape[-1]]


def _numbers(like: Any, *dtypes: Any) -> list[Any]:
    """Return an empty tensor of each dtype, with a number for each row of `like`."""
    return [like.new_empty(len(like), dtype=dtype) for dtype in dtypes]


def _advanced(
    model: Any, states: Any, scale: str = "log10", dtype: str = "float32", next_states: bool = True
) -> list[Any]:
    shape = len(states), len(model.vocabulary)
    return [_rows(states, shape, dtype), *([_rows(states, shape, "int32")] if next_states else [])]


def _distribution(
    model: Any, histories: Any, orders: str = "all", mode: str = "smoothed", top_k: int | None = None,
    dtype: str = "float32", scale: str = "prob", bos: bool = False,
) -> list[Any]:  # fmt: skip
    options = RowOptions.of(model.order, orders, mode, scale, dtype, top_k)
    H, N = len(histories), len(options.orders)
    if options.top_k:
        return [histories.new_empty((H, N, options.top_k), dtype=kind) for kind in (torch.int32, torch.float32)]
    return [_rows(histories, (H, N, len(model.vocabulary)), dtype)]


_define(
    "step", "Tensor states, Tensor words, str scale='log10'",
    lambda model, states, words, scale="log10": _numbers(states, torch.float32, torch.int32),
)  # fmt: skip
_define(
    "final", "Tensor states, str scale='log10'",
    lambda model, states, scale="log10": _numbers(states, torch.float32),
)  # fmt: skip
_define("advance", "Tensor states, str scale='log10', str dtype='float32', bool next_states=True", _advanced)
_define(
    "distribution",
    "Tensor histories, str orders='all', str mode='smoothed', int? top_k=None, str dtype='float32', str scale='prob', "
    "bool bos=False",
    _distribution,
)
_define(
    "sample",
    "Tensor histories, float temperature=1.0, int? top_k=None, float top_p=1.0, int seed=0, bool bos=False",
    lambda model, histories, *args, **options: _numbers(histories, torch.int32),
)
_define(
    "score_ids", "Tensor ids, Tensor offsets, bool bos=True, bool eos=True",
    lambda model, ids, offsets, *args, **options: [ids.new_empty(len(offsets) - 1, dtype=torch.float32)],
)  # fmt: skip
