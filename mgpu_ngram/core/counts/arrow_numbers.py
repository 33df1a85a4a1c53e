"""Numbers as Arrow arrays, and back.

`pyarrow.array` and `to_numpy` do this, too, but where pandas is installed they import it, which takes 0.3 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mgpu_ngram.core.lazy_import import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")


def numbers_to_arrow(numbers_N: np.ndarray) -> pa.Array:
    """Return (N,) numbers as an Arrow array of the same type, if possible without a copy; Booleans take a bit each."""
    kept = np.packbits(numbers_N, bitorder="little") if numbers_N.dtype == bool else np.ascontiguousarray(numbers_N)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers_N.dtype), len(numbers_N), [None, pa.py_buffer(kept)])


def numbers_from_arrow(array: pa.Array) -> np.ndarray:
    """Return the numbers of an Arrow array, not of Booleans and without nulls, as (N,) of the same type, not copied."""
    size = array.type.bit_width // 8
    dtype = np.dtype(f"{_kind(array.type)}{size}")
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * size)


def numbers_of_column(column: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of a column as `numbers_from_arrow` does; copied if the column has several chunks."""
    return numbers_from_arrow(column.combine_chunks())


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return "f"
    return "u" if pa.types.is_unsigned_integer(kind) else "i"
