"""Results that wait for a later task: on their device, else in host memory, else in a file."""

from __future__ import annotations

import os
from typing import Any, Protocol, Self, TypeVar

from mgpu_ngram.core.arrays import load_arrays
from mgpu_ngram.core.checkpoint import save_entry
from mgpu_ngram.engine.budget import Budget, hold
from mgpu_ngram.engine.device import to_device_together, to_host_fast
from mgpu_ngram.kernels.dispatch import on_gpu

SPILLED = "waiting"  # kind of checkpoint entry


class HasArrays(Protocol):
    """What is made of named arrays."""

    def arrays(self) -> dict[str, Any]: ...

    def with_arrays(self, named: dict[str, Any]) -> Self: ...


A = TypeVar("A", bound=HasArrays)


class _InHostMemory:
    """The arrays of a result that count as held in host memory for as long as they live."""

    def __init__(self, host_bytes: int):
        self.host_bytes = host_bytes


def spill(result: A, budget: Budget, folder: str) -> A:
    """Leave a result on its device while there is room, else on the host, else in a file of `folder`.

    Of a file it is views; the file has lost its name, so it goes with the last of them.
    """
    arrays = result.arrays()
    nbytes = sum(array.nbytes for array in arrays.values())
    if budget.device == "gpu" and all(map(on_gpu, arrays.values())) and budget.place(nbytes) == "device":
        return result
    moved = {name: to_host_fast(array) for name, array in arrays.items()}
    if budget.fits_host(nbytes):
        kept = result.with_arrays(moved)
        kept.__dict__["_held"] = hold(_InHostMemory(nbytes))
        return kept
    path = save_entry(folder, SPILLED, [], moved, {}, durable=False)
    views = load_arrays(path, verify=False)[0]
    os.unlink(path)
    return result.with_arrays({name: views[name] for name in arrays})


def result_to_device(result: A, device: str) -> A:
    """A result with its arrays on the device, or with all of them in host memory for "cpu"."""
    arrays = result.arrays()
    if device == "cpu":
        return result.with_arrays({name: to_host_fast(array) for name, array in arrays.items()})
    return result.with_arrays(dict(zip(arrays, to_device_together(list(arrays.values()), device), strict=True)))
