"""Tensors of PyTorch beside NumPy and CuPy arrays, without a copy. PyTorch is never imported, only found."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.dispatch import array_module


def torch_of(value: Any) -> Any:
    """Return the module torch if `value` is a tensor, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def check_dense(value: Any) -> None:
    """Raise InputError for a tensor that is sparse or has no memory; other values pass."""
    torch = torch_of(value)
    if torch is not None and (value.layout != torch.strided or value.is_meta):
        raise InputError(f"a tensor is {value.layout} on {value.device} but must be dense and in memory; give a copy")


def as_array(value: Any) -> Any:
    """Return a tensor as a NumPy or CuPy array that shares its memory; other values unchanged.

    A tensor of bfloat16, which NumPy and CuPy lack, becomes uint16: its bits. Raises InputError for a tensor that is
    sparse or has no memory.
    """
    torch = torch_of(value)
    if torch is None:
        return value
    check_dense(value)
    tensor, halves = value.detach(), value.dtype == torch.bfloat16
    if halves:
        tensor = tensor.view(torch.int16)
    array = _cupy().from_dlpack(tensor) if tensor.is_cuda else tensor.cpu().numpy()
    return array.view(np.uint16) if halves else array


def as_tensor(array: Any, like: Any) -> Any:
    """Return a NumPy or CuPy array as a tensor on the device of the tensor `like`; shares memory that is there."""
    torch = torch_of(like)
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)
    return torch.from_dlpack(array).to(like.device)


def on_stream_of(value: Any) -> AbstractContextManager[Any]:
    """Return a context in which CuPy works on PyTorch's current stream, if `value` is a tensor on a GPU."""
    torch = torch_of(value)
    if torch is None or not value.is_cuda:
        return nullcontext()
    stream = torch.cuda.current_stream(value.device)
    return _cupy().cuda.ExternalStream(stream.cuda_stream, value.device.index)


def memory_module(value: Any) -> Any:
    """Return NumPy or CuPy, whichever uses the memory of an array or a tensor."""
    if torch_of(value) is None:
        return array_module(value)
    return _cupy() if value.is_cuda else np


def gpu_of(value: Any) -> Any:
    """Return the CuPy device of an array or a tensor; None if it is in host memory."""
    if torch_of(value) is not None:
        return _cupy().cuda.Device(value.device.index) if value.is_cuda else None
    return getattr(value, "device", None) if hasattr(value, "__cuda_array_interface__") else None


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        raise InputError("a tensor is on a GPU, where the search needs CuPy; install it, or move the tensor") from None
    return cupy
