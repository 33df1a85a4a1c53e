"""A Parquet file that grows chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.counts.arrow_numbers import numbers_to_arrow
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.output import new_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")


class ParquetTable:
    """A Parquet file with columns of given types; it appears when it is complete."""

    def __init__(self, path: str | Path, columns: dict[str, str]):
        self.path, self.schema = path, pa.schema([(name, getattr(pa, kind)()) for name, kind in columns.items()])

    def __enter__(self) -> ParquetTable:
        self.stack = ExitStack()
        sink = self.stack.enter_context(new_file(self.path))
        self.file = self.stack.enter_context(pq.ParquetWriter(sink, self.schema))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def write(self, columns: Sequence[Any]) -> None:
        """Append rows, NumPy or Arrow arrays in the order of the columns."""
        arrays = [numbers_to_arrow(array) if isinstance(array, np.ndarray) else array for array in columns]
        self.file.write_table(pa.Table.from_arrays(arrays, schema=self.schema))
