"""Use PyTorch tensors as NumPy and CuPy arrays without a copy. This module never imports PyTorch itself."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.memory.torch_pool import tensor_allocator, tensor_behind
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

HOST, GPU = 1, 2  # kinds of devices of DLPack
F = TypeVar("F", bound=Callable[..., Any])


def torch_of(value: Any) -> Any:
    """Return the module torch if `value` is a tensor, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def check_dense(value: Any) -> None:
    """Raise InputError for a tensor that is sparse, nested or quantised or has no memory; accept all other values."""
    torch = torch_of(value)
    if torch is None:
        return
    if value.layout != torch.strided or value.is_meta:
        raise InputError(
            f"a tensor is {value.layout} on {value.device} but must be dense and in memory; give tensor.to_dense(), or "
            "one that has values"
        )
    if value.is_nested or value.is_quantized:
        kind, way_out = ("nested", "to_padded_tensor(0)") if value.is_nested else ("quantized", "dequantize()")
        raise InputError(f"a tensor is {kind} but must be dense; give tensor.{way_out}")


def as_array(value: Any) -> Any:
    """Return a tensor, or an array of another library with DLPack, as a NumPy or CuPy array that shares its memory;
    other values unchanged.

    A tensor of bfloat16, which NumPy and CuPy lack, becomes uint16: its bits. Raises InputError for a tensor that is
    not dense, has no memory, or is of another dtype that they lack.
    """
    torch = torch_of(value)
    if torch is None:
        return _from_dlpack(value)
    check_dense(value)
    tensor, halves = value.detach(), value.dtype == torch.bfloat16
    if halves:
        tensor = tensor.view(torch.int16)
    array = _cupy().from_dlpack(tensor) if tensor.is_cuda else to_numpy(tensor)
    return array.view(np.uint16) if halves else array


def _from_dlpack(value: Any) -> Any:
    """Return an array of another library as one of NumPy or CuPy; unchanged without DLPack, or of other dtypes."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__") or on_gpu(value):
        return value
    place = int(value.__dlpack_device__()[0])
    try:
        return np.from_dlpack(value) if place == HOST else _cupy().from_dlpack(value) if place == GPU else value
    except (BufferError, RuntimeError, TypeError):
        return value


def as_integers(name: str, values: Any) -> Any:
    """Return `as_array` of values that must be integers. Raises InputError for a tensor of other numbers."""
    if torch_of(values) is not None and (values.is_floating_point() or values.is_complex()):
        check_dense(values)  # others have no shape
        raise InputError(
            f"{name} are {values.dtype} of shape {tuple(values.shape)} but must be integers; give tensor.int()"
        )
    return as_array(values)


def tensors_like(given: Any, *arrays: Any) -> tuple[Any, ...]:
    """Return arrays as tensors if the given value is one; uint16, the bits of bfloat16, as that."""
    torch = torch_of(given)
    if torch is None:
        return arrays
    tensors = (as_tensor(array.view(np.int16) if array.dtype == np.uint16 else array, given) for array in arrays)
    return tuple(tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor for tensor in tensors)


def to_numpy(tensor: Any) -> Any:
    """Return a tensor as a NumPy array, which shares its memory if it is in host memory. Raises InputError for a dtype
    that NumPy lacks.
    """
    try:
        return tensor.cpu().resolve_conj().resolve_neg().numpy()
    except TypeError:
        raise InputError(
            f"a tensor is of dtype {tensor.dtype}, which NumPy lacks; convert it: tensor.float()"
        ) from None


def as_tensor(array: Any, like: Any) -> Any:
    """Return a NumPy or CuPy array as a tensor on the device of the tensor `like`; copies only between devices."""
    torch = torch_of(like)
    if isinstance(array, np.ndarray):
        forward = all(stride >= 0 for stride in array.strides)  # PyTorch has no others
        return torch.from_numpy(array if forward else array.copy()).to(like.device)
    if (memory := tensor_behind(array)) is None:
        return torch.from_dlpack(array).to(like.device)
    # PyTorch then knows the memory as its own, as `Tensor.record_stream` needs.
    storage, size = memory.untyped_storage(), array.itemsize
    made = torch.empty(0, dtype=getattr(torch, array.dtype.name), device=memory.device)
    strides = [stride // size for stride in array.strides]
    return made.set_(storage, (array.data.ptr - storage.data_ptr()) // size, array.shape, strides).to(like.device)


def on_stream_of(*values: Any) -> AbstractContextManager[Any]:
    """Return a context for CuPy. If a value is a tensor on a GPU, CuPy works on the device of the tensor,
    on PyTorch's current stream there, with memory from PyTorch. CUDA graphs may then capture the work.
    """
    tensor = next((value for value in values if torch_of(value) is not None and value.is_cuda), None)
    return nullcontext() if tensor is None else _work_as_torch(tensor.device)


def on_stream(stream: Any, device: str, *values: Any) -> AbstractContextManager[Any]:
    """Return a context for CuPy to work on a given stream; None: `on_stream_of` the values.

    stream  an object with the method __cuda_stream__, or the address of a CUDA stream

    Raises InputError for other values, for a model that is not on a GPU, and beside tensors, which have a stream.
    """
    if stream is None:
        return on_stream_of(*values)
    if device != "gpu":
        raise InputError("stream is given but the model is on the CPU, which has none; leave it out")
    if any(torch_of(value) is not None for value in values):
        raise InputError("stream is given beside a tensor; use `with torch.cuda.stream(...)`, and leave it out")
    if not hasattr(stream, "__cuda_stream__"):
        stream = getattr(stream, "ptr", stream)  # of CuPy before it had the method
        if isinstance(stream, bool) or not isinstance(stream, (int, np.integer)) or stream < 0:
            raise InputError(f"stream is {stream!r:.60} but must be a stream, or the address of one")
        stream = _StreamAddress(int(stream))
    made: AbstractContextManager[Any] = _cupy().cuda.Stream.from_external(stream)
    return made


def not_compiled(method: F) -> F:
    """Return a method that `torch.compile` does not trace, nor the functions that it calls."""
    untraced: list[Any] = []  # made when PyTorch is there

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return method(self, *args, **options)
        if not untraced:
            untraced.append(torch.compiler.disable(method))
        return untraced[0](self, *args, **options)

    return call  # type: ignore[return-value]  # has the signature of fn


def operator(tensors: int = 1, results: int = 1) -> Callable[[F], F]:
    """Return a decorator for a method of `Model` that has an operator in `torch_operators`.

    `torch.compile` calls the operator, which breaks no graph, if states, words, histories, ids and offsets are the only
    tensors, other arguments are strings or numbers, `orders` is a string, and `stream` is left out. It does not trace
    other calls.

    tensors  number of arguments that must be tensors
    results  number of results at least; those that the operator does not return are None
    """

    def decorate(method: F) -> F:
        untraced, name = not_compiled(method), f"model_{method.__name__}"
        names = tuple(inspect.signature(method).parameters)[1:]

        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is None or not torch.compiler.is_compiling():
                return method(self, *args, **options)
            given = dict(zip(names, args, strict=False)) | options
            given = {key: value for key, value in given.items() if value is not None}
            is_tensor = [isinstance(value, torch.Tensor) for value in given.values()]
            is_plain = [isinstance(value, (torch.Tensor, str, int, float)) for value in given.values()]
            is_long = [isinstance(value, int) and abs(value) >> 63 for value in given.values()]  # a seed of 64 bits
            fits = isinstance(given.get("orders", "all"), str) and "stream" not in given
            if sum(is_tensor) != tensors or not all(is_plain) or any(is_long) or not fits:
                return untraced(self, *args, **options)
            from mgpu_ngram.engine.torch import operators  # noqa: F401

            made = getattr(torch.ops.mgpu_ngram, name)(**given, model=self._number)
            found = (*made, *[None] * (results - len(made)))
            return found if len(found) > 1 else found[0]

        return call  # type: ignore[return-value]  # has the signature of fn

    return decorate


@contextmanager
def _work_as_torch(device: Any) -> Iterator[None]:
    torch, cuda = sys.modules["torch"], _cupy().cuda
    with torch.cuda.device(device):
        stream = cuda.Stream.from_external(_StreamAddress(torch.cuda.current_stream().cuda_stream))
        with stream, cuda.using_allocator(tensor_allocator(device.index)):
            yield


class _StreamAddress:
    """A stream by its address; PyTorch's own lack the method below before 2.10."""

    def __init__(self, address: int):
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def memory_module(value: Any) -> Any:
    """Return the module, NumPy or CuPy, of the memory of an array or a tensor."""
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
        raise InputError(
            "a tensor is on a GPU, which needs CuPy; install CuPy, or move the tensor to the CPU"
        ) from None
    return cupy
