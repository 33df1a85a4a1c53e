"""Dask arrays that read files piece by piece, on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np


def rows_on_demand(read: Callable[[int, int], np.ndarray], shape: tuple[int, ...], dtype: Any, rows: int) -> da.Array:
    """Return a Dask array in pieces of `rows` rows; read(begin, end) returns rows, in the process that needs them."""
    sizes = [min(rows, shape[0] - i) for i in range(0, shape[0], rows)] or [0]

    def piece(block_info: Any = None) -> np.ndarray:
        (begin, end), *_ = block_info[None]["array-location"]
        return read(begin, end)

    chunks = tuple(sizes), *((n,) for n in shape[1:])
    array: da.Array = da.map_blocks(piece, chunks=chunks, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))
    return array
