"""Keep intermediate results on the device; spill to host memory, then to disk."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from mgpu_ngram.core.storage.checkpoint_entries import ENTRY_SUFFIX, SPILLED, save_entry
from mgpu_ngram.core.storage.output import new_file
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.core.storage.shared_maps import file_place_of, map_file
from mgpu_ngram.engine.memory.budget import Budget, hold
from mgpu_ngram.engine.memory.copies import starts_together, to_device_together, to_host_fast, to_host_together
from mgpu_ngram.engine.memory.host_memory_pool import locked_memory
from mgpu_ngram.kernels.dispatch import on_gpu

FILE_ALIGNMENT_BYTES = 64  # bytes: where arrays of a new file begin


class HasArrays(Protocol):
    """A result that consists of named arrays."""

    def arrays(self) -> dict[str, Any]: ...

    def with_arrays(self, named: dict[str, Any]) -> Self: ...


A = TypeVar("A", bound=HasArrays)


class _InHostMemory:
    """Arrays of a result, counted as held in host memory while the result lives; in another process, there."""

    def __init__(self, host_bytes: int):
        self.host_bytes = host_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _counted, (self.host_bytes,)


def _counted(host_bytes: int) -> _InHostMemory:
    found: _InHostMemory = hold(_InHostMemory(host_bytes))
    return found


def spill(result: A, budget: Budget, folder: str, store: Callable[[A, str], A] | None = None) -> A:
    """Return the result, kept on its device or moved to host memory or a file, depending on the budget.

    folder  folder of the file
    store   store(result, folder) writes the file and returns the result without its arrays; the default is `to_file`
    """
    arrays = result.arrays()
    nbytes = sum(array.nbytes for array in arrays.values())
    if budget.device == "gpu" and all(map(on_gpu, arrays.values())) and budget.place(nbytes) == "device":
        return result
    return leave_device(result, budget, folder, store)


def leave_device(
    result: A, budget: Budget, folder: str, store: Callable[[A, str], A] | None = None
) -> A:  # fmt: skip
    """Return the result in host memory, or in a file if that has no room; parameters as for `spill`."""
    arrays = result.arrays()
    nbytes = sum(array.nbytes for array in arrays.values())
    if nbytes and all(in_file(array) for array in arrays.values() if array.nbytes):
        return result
    if hasattr(result, "_held") and not any(map(on_gpu, arrays.values())):  # it is counted already
        return result
    if not budget.fits_host(max(nbytes, locked_memory.unused_bytes())):
        locked_memory.free_unused()
    if not budget.fits_host(nbytes):
        return (store or to_file)(result, folder)
    return held(result_to_device(result, "cpu"))


def held(result: A) -> A:
    """Count a result's arrays in host memory as taken while it lives, without those in files. Return the result.

    Arrays that two results share are counted twice while both live.
    """
    arrays = [array for array in result.arrays().values() if not on_gpu(array) and not in_file(array)]
    result.__dict__["_held"] = _counted(sum(array.nbytes for array in arrays))
    return result


def to_file(result: A, folder: str) -> A:
    """Return the result as memory-mapped views of an unlinked file; the disk space is freed with the last view."""
    arrays = {name: to_host_fast(array) for name, array in result.arrays().items()}
    path = save_entry(folder, SPILLED, [], arrays, {}, durable=False)
    views = load_arrays(path, verify=False)[0]
    os.unlink(path)
    return result.with_arrays({name: views[name] for name in arrays})


def in_file(array: Any) -> bool:
    """Return whether an array is a view of a memory-mapped file."""
    return isinstance(array, np.ndarray) and file_place_of(array) is not None


def new_arrays(rows: Mapping[str, tuple[int, Any]], budget: Budget, folder: str) -> dict[str, np.ndarray]:
    """Return new arrays in host memory, or in an unlinked file if the budget has no room there.

    rows    number of elements and dtype of each array, by name
    folder  folder of the file

    Raises RunError when the disk is full.
    """
    sizes = {name: n * np.dtype(dtype).itemsize for name, (n, dtype) in rows.items()}
    rooms = [-(-size // FILE_ALIGNMENT_BYTES) * FILE_ALIGNMENT_BYTES for size in sizes.values()]
    nbytes = sum(rooms)
    if not nbytes or budget.fits_host(nbytes):
        return {name: np.empty(n, dtype) for name, (n, dtype) in rows.items()}
    path = f"{folder}/{SPILLED}-{secrets.token_hex(8)}{ENTRY_SUFFIX}"
    with new_file(path) as sink:
        _allocate(sink.file.fileno(), 0, nbytes)  # or a full disk would end this process when it writes to the map
    whole = map_file(os.open(path, os.O_RDWR | os.O_CLOEXEC), writable=True)
    os.unlink(path)
    starts = itertools.accumulate(rooms, initial=0)
    return {
        name: whole[start : start + sizes[name]].view(dtype)
        for (name, (_, dtype)), start in zip(rows.items(), starts, strict=False)
    }


def _allocate(descriptor: int, offset: int, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, nbytes)
    else:  # macOS
        os.truncate(descriptor, offset + nbytes)


def packed(result: A, names: Collection[str]) -> A:
    """Return a result with its arrays of a GPU in two pieces of memory: those named, and the others.

    Many small arrays that live long leave gaps in a pool of memory, which large arrays cannot use. A piece is free when
    none of its arrays is needed.
    """
    import cupy

    arrays = {name: array for name, array in result.arrays().items() if on_gpu(array)}
    copies = dict[str, Any]()
    for group in [name for name in arrays if name in names], [name for name in arrays if name not in names]:
        starts = starts_together([arrays[name] for name in group])
        whole = cupy.empty(starts[-1], np.uint8)
        for name, start in zip(group, starts, strict=False):
            array = arrays[name]
            copies[name] = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            copies[name][...] = array
    return result.with_arrays(result.arrays() | copies)


def result_to_device(result: A, device: str) -> A:
    """Return a result with all its arrays on the device, or in host memory for "cpu"."""
    arrays = result.arrays()
    if device == "cpu":
        return result.with_arrays(dict(zip(arrays, to_host_together(list(arrays.values())), strict=True)))
    return result.with_arrays(dict(zip(arrays, to_device_together(list(arrays.values()), device), strict=True)))
