"""CUDA calls of the cluster package: share arrays with other processes of this host, and check that the device works.

The rest of the cluster does not use CUDA, so tests replace this module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

LENT_BYTES = 448 << 20  # size of one allocation: opening 512 MiB or more takes 9.5 ms, less takes 1 ms
WHOLE_BYTES = 2 << 20  # 112 GiB in such units open in 20 ms, of any other size in 1 s
POOL_UNIT_BYTES = 256
MAX_PIECES = 64  # pieces in which an array is lent; an array of more pieces is copied first
_one_at_a_time = threading.Lock()  # a process may not open the same allocation twice


def is_array(value: Any) -> bool:
    """Return whether a value is a CuPy array, without the slow import of CuPy."""
    array_type = getattr(sys.modules.get("cupy"), "ndarray", None)
    return array_type is not None and isinstance(value, array_type)


def as_contiguous(array: Any) -> Any:
    """Return the array itself, or a complete C-contiguous copy."""
    if array.flags.c_contiguous:
        return array
    import cupy

    with cupy.cuda.Stream.null as stream:
        copy = cupy.ascontiguousarray(array)
        stream.synchronize()
    return copy


@dataclass
class _Slab:
    """Device memory that CuPy's pool obtained in one allocation and never frees."""

    base: int
    nbytes: int
    kept: Any  # its smallest block, held so that the pool cannot free the whole
    handle: bytes


_slab: _Slab | None = None


def reserve(nbytes: int) -> None:
    """Let CuPy's pool allocate up to `nbytes` at once, as a slab: peers open the slab once and read any array in it."""
    global _slab
    nbytes -= nbytes % WHOLE_BYTES
    if _slab is not None or nbytes <= 0:
        return
    import cupy

    with cupy.cuda.Stream.null:
        try:
            base = cupy.cuda.alloc(nbytes).ptr  # the pool gets it back
        except MemoryError:
            return  # other processes have it: arrays are lent as copies
        small: list[Any] = []  # the pool hands out its other blocks of this size before it cuts the slab
        while not small or not base <= small[-1].ptr < base + nbytes:
            small.append(cupy.cuda.alloc(1))
    _slab = _Slab(base, nbytes, small[-1], cupy.cuda.runtime.ipcGetMemHandle(base))


@dataclass
class Loan:
    """Arrays that other processes of this host may read during its lifetime.

    records  for each array: shape, dtype, segments (handle, offset, nbytes), and whether the handle is valid for the
             life of this process
    """

    records: list[dict[str, Any]]
    memory: list[Any]


def lend(arrays: Sequence[Any]) -> Loan:
    """Lend complete arrays: views of the slab if they are in it, else copies in few allocations."""
    import cupy
    from cupy.cuda import runtime

    loan = Loan([{"shape": a.shape, "dtype": a.dtype.str, "segments": [], "lasting": False} for a in arrays], [])
    outside = []
    with cupy.cuda.Stream.null as stream:
        for array, record in zip(arrays, loan.records, strict=True):
            array, pieces = _in_pieces(array)
            if _slab and _slab.base <= array.data.ptr < _slab.base + _slab.nbytes:
                record |= {"segments": [(_slab.handle, at - _slab.base, n) for at, n in pieces], "lasting": True}
                loan.memory.append(array)
            else:
                outside += [(array, at, n, record) for at, n in pieces]
        left = sum(-(-nbytes // POOL_UNIT_BYTES) * POOL_UNIT_BYTES for _, _, nbytes, _ in outside)
        at, room, handle = 0, 0, b""  # in the last allocation
        for _, source, nbytes, record in outside:
            done = 0
            while done < nbytes:
                if room == 0:
                    at, room = 0, min(left, LENT_BYTES)
                    loan.memory.append(_allocate(room))
                    handle = runtime.ipcGetMemHandle(loan.memory[-1].ptr)
                size = min(room, nbytes - done)
                runtime.memcpyAsync(loan.memory[-1].ptr + at, source + done, size, runtime.memcpyDeviceToDevice, 0)
                record["segments"].append((handle, at, size))
                taken = min(room, -(-size // POOL_UNIT_BYTES) * POOL_UNIT_BYTES)
                done, at, room, left = done + size, at + taken, room - taken, left - taken
        stream.synchronize()
    return loan


def _in_pieces(array: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Return (array, address and bytes of its contiguous pieces): the array itself, or its rows, or a copy."""
    if array.size == 0:
        return array, []
    if array.flags.c_contiguous:
        return array, [(array.data.ptr, array.nbytes)]
    if array.ndim == 2 and len(array) <= MAX_PIECES and array[0].flags.c_contiguous:
        return array, [(row.data.ptr, row.nbytes) for row in array]
    return _in_pieces(as_contiguous(array))


def _allocate(nbytes: int) -> Any:
    """Allocate outside the pool, whose blocks may be parts of huge allocations that take long to open."""
    import cupy

    try:
        return cupy.cuda.memory.Memory(nbytes)
    except cupy.cuda.runtime.CUDARuntimeError:
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.memory.Memory(nbytes)


def import_arrays(records: Sequence[dict[str, Any]], on_host: bool = False) -> list[Any]:
    """Return copies, on our device or in host memory, of arrays that another process lends."""
    import cupy
    from cupy.cuda import runtime

    arrays = []
    opened: dict[bytes, int] = {}
    with _one_at_a_time:
        copies = _copy_stream()
        try:
            for record in records:
                with cupy.cuda.Stream.null as null:
                    array = (np if on_host else cupy).empty(record["shape"], record["dtype"])
                    copies.wait_event(null.record())  # queued kernels may still use this memory
                arrays.append(array)
                target = array.ctypes.data if on_host else array.data.ptr
                bases = _lasting if record["lasting"] else opened
                for handle, offset, nbytes in record["segments"]:
                    if handle not in bases:  # opens while earlier copies run
                        bases[handle] = runtime.ipcOpenMemHandle(handle)
                    runtime.memcpyAsync(target, bases[handle] + offset, nbytes, runtime.memcpyDefault, copies.ptr)
                    target += nbytes
            copies.synchronize()
        finally:
            _close(opened)
    return arrays


_copies: Any = None


def _copy_stream() -> Any:
    """Return a stream separate from the one of kernels."""
    global _copies
    import cupy

    if _copies is None:
        _copies = cupy.cuda.Stream(non_blocking=True)
    return _copies


_lasting: dict[bytes, int] = {}  # slabs of peers that are open here


def close_lasting() -> None:
    """Close the slabs of peers; a dead peer's memory is freed only then."""
    with _one_at_a_time:
        _close(_lasting)


def _close(opened: dict[bytes, int]) -> None:
    if not opened:
        return
    from cupy.cuda import runtime

    while opened:
        with suppress(runtime.CUDARuntimeError):  # the peer died; the first error is the one to report
            runtime.ipcCloseMemHandle(opened.popitem()[1])


def copy_to_host(array: Any) -> np.ndarray:
    copy: np.ndarray = array.get()
    return copy


def copy_from_host(array: np.ndarray) -> Any:
    import cupy

    with cupy.cuda.Stream.null as stream:
        copy = cupy.asarray(array)
        stream.synchronize()
    return copy


def as_bytes(array: Any) -> Any:
    """Return the memory of a C-contiguous array, as bytes on the device."""
    return array.reshape(-1).view("u1")


def from_bytes(frame: Any, shape: Sequence[int], dtype: str) -> Any:
    """Invert `as_bytes`: return an array over the device memory of a frame."""
    import cupy

    return cupy.asarray(frame).view(dtype).reshape(shape)


def wait_for_device() -> None:
    if "cupy" in sys.modules:
        from cupy.cuda import runtime

        runtime.deviceSynchronize()


def why_lost() -> str:
    """Return the error of a device that no longer works in this process, such as after an illegal access; else ''."""
    try:
        wait_for_device()
    except Exception as error:
        return " ".join(str(error).split())
    return ""
