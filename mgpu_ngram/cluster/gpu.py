"""The CUDA calls of the cluster: arrays lent to another process of this host, and whether the device still works.

Everything else of the cluster is without CUDA, so tests put stand-ins here.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

_one_at_a_time = threading.Lock()  # one process may not open the same allocation twice


def is_array(value: Any) -> bool:
    """Whether it is a CuPy array. Asks only when CuPy is loaded: loading it takes a while."""
    array_type = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array_type is not None and isinstance(value, array_type)


def contiguous(array: Any) -> Any:
    """The array itself, or a C-contiguous copy that is complete."""
    if array.flags.c_contiguous:
        return array
    import cupy

    with cupy.cuda.Stream.null as stream:
        copy = cupy.ascontiguousarray(array)
        stream.synchronize()
    return copy


def export_array(array: Any) -> dict[str, Any]:
    """What another process of this host needs to read a C-contiguous, complete array while we keep it."""
    record = {"shape": array.shape, "dtype": array.dtype.str}
    if not array.nbytes:
        return record
    from cupy.cuda import runtime

    with array.device:
        runtime.free(0)  # a thread's first CUDA call: makes the context current for the driver's
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(array.data.ptr)
        )
        if status:
            raise OSError(f"cuMemGetAddressRange failed with CUDA driver error {status}")
        return record | {"handle": runtime.ipcGetMemHandle(base.value), "offset": array.data.ptr - base.value}


def import_arrays(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Copies on our device of arrays that another process exported."""
    import cupy
    from cupy.cuda import runtime

    arrays = []
    opened: dict[bytes, int] = {}
    # CuPy's pool hands out memory that kernels queued on the null stream may still read, so copies go there too.
    with _one_at_a_time, cupy.cuda.Stream.null:
        try:
            for record in records:
                array = cupy.empty(record["shape"], record["dtype"])
                arrays.append(array)
                if not array.nbytes:
                    continue
                handle = record["handle"]
                if handle not in opened:
                    opened[handle] = runtime.ipcOpenMemHandle(handle)
                source = opened[handle] + record["offset"]
                runtime.memcpyAsync(array.data.ptr, source, array.nbytes, runtime.memcpyDefault, 0)
            runtime.streamSynchronize(0)
        finally:
            for base in opened.values():
                with suppress(runtime.CUDARuntimeError):  # of a peer that died; the first error is the one to tell
                    runtime.ipcCloseMemHandle(base)
    return arrays


def to_host(array: Any) -> np.ndarray:
    return array.get()


def from_host(array: np.ndarray) -> Any:
    import cupy

    with cupy.cuda.Stream.null as stream:
        there = cupy.asarray(array)
        stream.synchronize()
    return there


def as_bytes(array: Any) -> Any:
    """The memory of a C-contiguous array, as bytes on the device."""
    return array.reshape(-1).view("u1")


def from_bytes(frame: Any, shape: Sequence[int], dtype: str) -> Any:
    """The opposite of `as_bytes`, around whatever device memory holds the frame."""
    import cupy

    return cupy.asarray(frame).view(dtype).reshape(shape)


def synchronize() -> None:
    if "cupy" in sys.modules:
        from cupy.cuda import runtime

        runtime.deviceSynchronize()


def why_lost() -> str:
    """The error of a device that no longer works in this process, such as after an illegal access; else ''."""
    try:
        synchronize()
    except Exception as error:
        return " ".join(str(error).split())
    return ""
