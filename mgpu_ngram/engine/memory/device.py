"""The device of an engine function: its memory, its work in flight, and small copies to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import free_host_bytes
from mgpu_ngram.engine.memory.torch_pool import cached_bytes
from mgpu_ngram.kernels.dispatch import on_gpu, pinned_buffer


def synchronize(device: str) -> None:
    """Wait until the GPU has finished all work; does nothing on a CPU."""
    if device == "gpu":
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def refuse_capture(what: str, device: str) -> None:
    """Raise InputError if a CUDA graph captures CuPy's current stream, because `what` is made now and kept."""
    if device == "gpu":
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            raise InputError(
                f"{what} are made at first use, which a CUDA graph cannot capture; "
                "call the function once before the capture"
            )


def check_gpu(name: str, array: Any, beside: Any = None) -> None:
    """Raise InputError unless an array is on the GPU of the array `beside`, or else on the current GPU."""
    if on_gpu(array):
        there, here = array.data.device_id, current_gpu() if beside is None else beside.data.device_id
        if there != here:
            raise InputError(f"the array of {name} is on GPU {there} but must be on GPU {here}; move it there")


def current_gpu() -> int:
    """Return the number of CuPy's current GPU."""
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def to_device(array: Any, device: str) -> Any:
    """Return `array` on the device: NumPy unchanged, or a CuPy copy."""
    if device == "cpu":
        return array
    import cupy

    return cupy.asarray(array)


def device_of(array: Any) -> str:
    """Return "gpu" for a CuPy array, "cpu" for others."""
    return "gpu" if on_gpu(array) else "cpu"


def host_flags(size: int, device: str) -> np.ndarray:
    """Return zeros in host memory which kernels of the device can set, (size,) int32."""
    flags = pinned_buffer(4 * size).view(np.int32) if device == "gpu" else np.empty(size, np.int32)
    flags[:] = 0
    return flags


def work_so_far(device: str) -> Callable[[], None]:
    """Return a function that waits until the device has done all work that its current stream has now."""
    if device == "cpu":
        return lambda: None
    import cupy

    wait: Callable[[], None] = cupy.cuda.get_current_stream().record().synchronize
    return wait


def return_unused_memory() -> None:
    """Give blocks that nothing uses back to the GPU: gaps between arrays that were freed since become whole again."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


def free_bytes(device: str) -> int:
    """Return the memory that a task may use now: free device memory plus cached blocks, or free host memory.

    A limit of the pool, as within `device_limited`, applies.
    """
    if device == "gpu":
        import cupy

        pool = cupy.get_default_memory_pool()
        free = int(cupy.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes()) + cached_bytes()
        limit = int(pool.get_limit())
        return min(free, max(0, limit - int(pool.used_bytes()))) if limit else free
    return free_host_bytes()
