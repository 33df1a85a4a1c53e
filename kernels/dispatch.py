"""The device follows the data: NumPy arrays run on the CPU, CuPy arrays on their GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def on_gpu(array: Any) -> bool:
    """Return whether `array` is a CuPy array (an object with device memory that is not NumPy's)."""
    if isinstance(array, np.ndarray):
        return False
    if isinstance(array, getattr(sys.modules.get("cupy"), "ndarray", ())):
        return True  # CuPy takes a microsecond to make the interface
    return hasattr(array, "__cuda_array_interface__")


def pick(cpu: Callable[..., Any], cuda: Callable[..., Any], **arrays: Any) -> Callable[..., Any]:
    """Return `cpu` or `cuda`, depending on the place of `arrays` (None is skipped).

    Raises TypeError, which names the place of each array, unless all arrays are in one place.
    """
    where = {name: on_gpu(a) for name, a in arrays.items() if a is not None}
    if len(set(where.values())) > 1:
        listing = ", ".join(f"{n} on the {'GPU' if g else 'host'}" for n, g in where.items())
        raise TypeError(f"arrays must all be on the host or all on one GPU: {listing}; move them together first")
    return cuda if any(where.values()) else cpu


def array_module(array: Any) -> Any:
    """Return the module of `array`, NumPy or CuPy, for code that runs with both."""
    if on_gpu(array):
        import cupy

        return cupy
    return np


def to_host(array: Any) -> np.ndarray:
    """Return `array` as a NumPy array; copies it only from a GPU."""
    return array.get() if on_gpu(array) else array


def pinned_buffer(nbytes: int) -> np.ndarray:
    """Return a pinned buffer of host memory, (nbytes,) uint8.

    `cupyx.empty_pinned` returns the same, but importing cupyx imports SciPy, which takes 0.15 s.
    """
    import cupy

    return np.ndarray(nbytes, np.uint8, cupy.cuda.alloc_pinned_memory(nbytes))


def slice_to_host(piece: Any) -> np.ndarray:
    """Return a small slice of an array as NumPy.

    The memory is pinned if the array is of a GPU: one thread copies to it several times as fast as `to_host`.
    """
    if not on_gpu(piece) or not piece.flags.c_contiguous:
        return to_host(piece)
    host = pinned_buffer(piece.nbytes).view(piece.dtype).reshape(piece.shape)  # CuPy reuses it
    piece.get(out=host)
    return host
