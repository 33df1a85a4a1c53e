"""Let CuPy allocate its memory from PyTorch. This module never imports PyTorch itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


@functools.cache
def tensor_allocator(device: int) -> Callable[[int], Any]:
    """Return an allocator for CuPy: each allocation is a tensor of bytes, made for PyTorch's current stream.

    A CUDA graph that PyTorch captures keeps such memory. CuPy's current stream must be PyTorch's.
    """
    torch, cuda = _modules()
    place = torch.device("cuda", device)

    def allocate(size: int) -> Any:
        memory = torch.empty(size, dtype=torch.uint8, device=place)
        return cuda.MemoryPointer(cuda.UnownedMemory(memory.data_ptr(), size, memory, device), 0)

    return allocate


def tensor_behind(array: Any) -> Any:
    """Return the tensor of bytes that holds a CuPy array from `tensor_allocator`; None for another array."""
    torch, memory = sys.modules["torch"], getattr(array.data.mem, "_owner", None)
    return memory if isinstance(memory, torch.Tensor) and memory.dtype == torch.uint8 else None


@functools.cache
def block_allocator() -> Callable[[int], Any]:
    """Return an allocator for CuPy: blocks of PyTorch's caching allocator, for CuPy's current stream."""
    torch, cuda = _modules()

    def allocate(size: int, device: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(size, device, cuda.get_current_stream(device).ptr))

    def free(address: int, device: int, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            torch.cuda.caching_allocator_delete(address)

    return cuda.PythonFunctionAllocator(allocate, free).malloc


def cached_bytes() -> int:
    """Return the bytes that PyTorch's cache holds on the current GPU and CuPy may use; 0 if CuPy has its own pool."""
    if not block_allocator.cache_info().currsize:
        return 0
    torch, _ = _modules()
    return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _modules() -> tuple[Any, Any]:
    import cupy

    return sys.modules["torch"], cupy.cuda
