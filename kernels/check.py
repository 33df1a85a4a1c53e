"""Shape, size and dtype arithmetic that kernels share, with errors that say the way out."""

from __future__ import annotations

from typing import Any

import numpy as np

INTEGER = {np.dtype(np.uint32): "u32", np.dtype(np.int64): "i64"}  # names in kernels of node numbers and counts


def dtype(array: Any, *wanted: Any) -> None:
    """Raise TypeError unless `array` has one of the `wanted` dtypes."""
    if array.dtype not in [np.dtype(w) for w in wanted]:
        names = " or ".join(np.dtype(w).name for w in wanted)
        raise TypeError(f"expected {names} but got {array.dtype.name}; convert it with .astype()")


def length(array: Any, limit: int) -> None:
    """Raise ValueError unless `array` has fewer than `limit` elements."""
    if len(array) >= limit:
        raise ValueError(f"got {len(array)} elements but at most {limit - 1} can be taken at once; cut them into parts")


def code_bits(symbols: int) -> int:
    """Bits of one code: codes run from 1 to `symbols`, and 0 marks the end of a window."""
    return max(1, int(symbols).bit_length())


def num_columns(order: int, bits: int) -> int:
    """64-bit columns that hold an n-gram key of `order` codes of `bits` bits."""
    return -(-order * bits // 64)


def aligned(array: Any) -> Any:
    """`array` itself when its CuPy memory is contiguous and 16-byte aligned, else a copy that is."""
    if array.data.ptr % 16 or not array.flags.c_contiguous:
        return array.copy()
    return array


def column_stride(columns: Any) -> tuple[Any, int]:
    """(`columns` (C, R), the elements from one column to the next): itself when the rows of each column lie one after
    the other, as in a slice of longer columns, else a copy.
    """
    if columns.strides[1] != columns.itemsize:
        columns = columns.copy()
    return columns, columns.strides[0] // columns.itemsize
