"""Use buffers of other libraries as arrays, to write into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.memory.device import check_gpu
from mgpu_ngram.engine.torch.arrays import check_dense, to_numpy, torch_of


def writable(out: Any, shape: tuple[int, ...], dtype: str, device: str) -> Any:
    """Return `out` as a NumPy or CuPy array that shares its memory.

    out  an array, or an object with the CUDA array interface or DLPack, on the device. For dtype "bfloat16": a PyTorch
         tensor of it, or uint16. Its last axis must be contiguous

    Raises InputError for unsuitable objects.
    """
    check_dense(out)
    if torch_of(out) is not None and out.requires_grad:
        raise InputError("out requires a gradient, which in-place writes would invalidate; give out.detach()")
    wanted = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    array = _array(_as_bits(out) if dtype == "bfloat16" else out, device)
    if dtype == "bfloat16" and array.dtype == np.int16:
        array = array.view(np.uint16)
    if array.shape != shape or array.dtype != wanted:
        raise InputError(f"out is {array.dtype} of shape {array.shape} but must be {wanted} of shape {shape}")
    has_gaps = array.size and not array.flags.c_contiguous
    if has_gaps and array.strides[-1] != array.itemsize:
        raise InputError(f"out has strides {array.strides} but its last axis must be contiguous; give out.copy()")
    if has_gaps and any(stride < 0 or stride % array.itemsize for stride in array.strides):
        raise InputError(
            f"out has strides {array.strides} but strides must be multiples of the item size, 0 or more; "
            "give out.copy()"
        )
    check_gpu("out", array)
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise InputError("out is read-only; give a copy")
    return array


def _as_bits(out: Any) -> Any:
    """Return a PyTorch tensor of bfloat16, which no interface knows, as int16; other objects unchanged."""
    torch = torch_of(out)
    return out.view(torch.int16) if torch is not None and out.dtype == torch.bfloat16 else out


def _array(out: Any, device: str) -> Any:
    if device == "gpu":
        import cupy

        if isinstance(out, cupy.ndarray):
            return out
        if hasattr(out, "__cuda_array_interface__"):
            return cupy.asarray(out)
        if hasattr(out, "__dlpack_device__") and out.__dlpack_device__()[0] == 2:  # kDLCUDA
            return cupy.from_dlpack(out)
        raise InputError(f"out is {type(out).__name__} but the model is on a GPU; give an array on that GPU")
    if hasattr(out, "__cuda_array_interface__") and not isinstance(out, np.ndarray):
        raise InputError(f"out is {type(out).__name__} on a GPU but the model is on the CPU; load it with device='gpu'")
    if isinstance(out, np.ndarray):
        return out
    if torch_of(out) is not None:
        if out.is_neg() or out.is_conj():  # PyTorch would write into a copy
            raise InputError("out is a view with another sign than its memory; give out.clone()")
        return to_numpy(out)  # DLPack of earlier releases does not tell whether memory may be written
    if hasattr(out, "__dlpack__"):
        return np.from_dlpack(out)
    raise InputError(f"out is {type(out).__name__} but must be an array or an object with DLPack")
