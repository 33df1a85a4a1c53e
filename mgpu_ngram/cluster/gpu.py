"""The CUDA calls of the cluster: arrays lent to another process of this host, and whether the device still works.

Everything else of the cluster is without CUDA, so tests put stand-ins here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

LENT_BYTES = 448 << 20  # of one allocation: opening one of 512 MiB and more takes 9.5 ms, a smaller one 1 ms
ALIGNED = 256
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


@dataclass
class Loan:
    """Copies of arrays in memory of their own, which other processes of this host may read while it lives.

    records  of each array, what another process needs: shape, dtype, and segments (handle, offset, nbytes)
    """

    records: list[dict[str, Any]]
    memory: list[Any]


def lend(arrays: Sequence[Any]) -> Loan:
    """Copy complete arrays into as few allocations as there must be, and lend those."""
    import cupy
    from cupy.cuda import runtime

    loan = Loan([{"shape": a.shape, "dtype": a.dtype.str, "segments": []} for a in arrays], [])
    rows_of = [[a] if a.flags.c_contiguous or a.ndim < 2 else list(a) for a in arrays]
    left = sum(-(-row.nbytes // ALIGNED) * ALIGNED for rows in rows_of for row in rows)
    at, room, handle = 0, 0, b""  # in the last allocation
    with cupy.cuda.Stream.null as stream:
        for rows, record in zip(rows_of, loan.records, strict=True):
            for row in map(cupy.ascontiguousarray, rows):
                done = 0
                while done < row.nbytes:
                    if room == 0:
                        at, room = 0, min(left, LENT_BYTES)
                        loan.memory.append(_allocate(room))
                        handle = runtime.ipcGetMemHandle(loan.memory[-1].ptr)
                    size = min(room, row.nbytes - done)
                    runtime.memcpyAsync(
                        loan.memory[-1].ptr + at, row.data.ptr + done, size, runtime.memcpyDeviceToDevice, 0
                    )
                    record["segments"].append((handle, at, size))
                    taken = min(room, -(-size // ALIGNED) * ALIGNED)
                    done, at, room, left = done + size, at + taken, room - taken, left - taken
        stream.synchronize()
    return loan


def _allocate(nbytes: int) -> Any:
    """Memory that is not the pool's: blocks of the pool may be parts of huge ones, which take long to open."""
    import cupy

    try:
        return cupy.cuda.memory.Memory(nbytes)
    except cupy.cuda.runtime.CUDARuntimeError:
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.memory.Memory(nbytes)


def import_arrays(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Copies on our device of arrays that another process lends."""
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
                target = array.data.ptr
                for handle, offset, nbytes in record["segments"]:
                    if handle not in opened:  # while the copies before it run
                        opened[handle] = runtime.ipcOpenMemHandle(handle)
                    runtime.memcpyAsync(target, opened[handle] + offset, nbytes, runtime.memcpyDefault, 0)
                    target += nbytes
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
