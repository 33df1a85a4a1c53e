"""Keep intermediate results on the device; spill to host memory, then to disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, Self, TypeVar

from mgpu_ngram.core.arrays import load_arrays
from mgpu_ngram.core.checkpoint import save_entry
from mgpu_ngram.engine.budget import Budget, hold
from mgpu_ngram.engine.device import to_device_together, to_host_fast
from mgpu_ngram.kernels.dispatch import on_gpu

SPILLED = "waiting"  # kind of checkpoint entry of a spilled result


class HasArrays(Protocol):
    """A result whose memory is in named arrays."""

    def arrays(self) -> dict[str, Any]: ...

    def with_arrays(self, named: dict[str, Any]) -> Self: ...


A = TypeVar("A", bound=HasArrays)


class _InHostMemory:
    """Arrays of a result, counted as held in host memory while the result lives."""

    def __init__(self, host_bytes: int):
        self.host_bytes = host_bytes


def spill(result: A, budget: Budget, folder: str, store: Callable[[A, str], A] | None = None) -> A:
    """Return the result, moved to where the budget has room: its device, else host memory, else a file.

    folder  where the file is written
    store   store(result, folder) writes the file and returns the result without its arrays; the default unlinks the
            file and returns memory-mapped views of it, so that the last view frees the disk space
    """
    arrays = result.arrays()
    nbytes = sum(array.nbytes for array in arrays.values())
    if budget.device == "gpu" and all(map(on_gpu, arrays.values())) and budget.place(nbytes) == "device":
        return result
    if not budget.fits_host(nbytes):
        return (store or _store_unlinked)(result, folder)
    on_host = result_to_device(result, "cpu")
    on_host.__dict__["_held"] = hold(_InHostMemory(nbytes))
    return on_host


def _store_unlinked(result: A, folder: str) -> A:
    arrays = result_to_device(result, "cpu").arrays()
    path = save_entry(folder, SPILLED, [], arrays, {}, durable=False)
    views = load_arrays(path, verify=False)[0]
    os.unlink(path)
    return result.with_arrays({name: views[name] for name in arrays})


def result_to_device(result: A, device: str) -> A:
    """Return a result with all its arrays on the device, or in host memory for "cpu"."""
    arrays = result.arrays()
    if device == "cpu":
        return result.with_arrays({name: to_host_fast(array) for name, array in arrays.items()})
    return result.with_arrays(dict(zip(arrays, to_device_together(list(arrays.values()), device), strict=True)))
