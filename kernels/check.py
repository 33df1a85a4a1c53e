"""Check and compute shapes, sizes and dtypes for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

INTEGER = {np.dtype(np.uint32): "u32", np.dtype(np.int64): "i64"}  # C names of dtypes of node numbers and counts


def dtype(array: Any, *wanted: Any) -> None:
    """Raise TypeError unless `array` has one of the `wanted` dtypes."""
    if array.dtype.type not in wanted and array.dtype not in wanted:  # scalars' types, which compare fast, or dtypes
        names = " or ".join(np.dtype(w).name for w in wanted)
        raise TypeError(f"expected {names} but got {array.dtype.name}; convert it with .astype()")


def length(array: Any, limit: int) -> None:
    """Raise ValueError unless `array` has fewer than `limit` elements."""
    if len(array) >= limit:
        raise ValueError(f"got {len(array)} elements but at most {limit - 1} fit one call; cut them into parts")


def contiguous(**arrays: Any) -> None:
    """Raise ValueError unless all arrays are C-contiguous."""
    for name, array in arrays.items():
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not C-contiguous; give a copy, such as numpy.ascontiguousarray({name})")


def code_bits(symbols: int) -> int:
    """Return the bits of one code: codes are 1 to `symbols`, and 0 ends a window."""
    return max(1, int(symbols).bit_length())


def num_columns(order: int, bits: int) -> int:
    """Return the number of 64-bit columns that hold an n-gram key of `order` codes of `bits` bits."""
    return -(-order * bits // 64)


def code_place(position: int, bits: int) -> tuple[int, int]:
    """Return (the column of the code at a position of a key, bits of that column below the code).

    A negative number -b means that b bits of the code lie in the next column.
    """
    column, used = divmod(position * bits, 64)
    return column, 64 - used - bits


def aligned(array: Any) -> Any:
    """Return `array` itself if its CuPy memory is contiguous and 16-byte aligned, else an aligned copy."""
    if array.data.ptr % 16 or not array.flags.c_contiguous:
        return array.copy()
    return array


def column_stride(columns: Any) -> tuple[Any, int]:
    """Return (columns, elements from one column to the next) of `columns` (C, R).

    Copies the columns only if the rows of a column are not adjacent; a slice of longer columns is not copied.
    """
    if columns.strides[1] != columns.itemsize:
        columns = columns.copy()
    return columns, columns.strides[0] // columns.itemsize
