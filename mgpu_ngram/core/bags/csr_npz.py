"""Read the sparse matrices that `scipy.sparse.save_npz` writes, without SciPy and without pickle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, check_starts, make_bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.npz import Npz, open_npz
from mgpu_ngram.core.inputs.sources import Source

MATRIX_FORMATS = ("csr", "csc", "coo")
WAY_OUT = "write it again with scipy.sparse.save_npz"  # advice in messages about damaged files
BLOCK_PAIRS = 1 << 22  # pairs of a CSR matrix that are read at once; a longer row is read whole
MAX_EMPTY_ROWS = 1000  # more rows for each count show a damaged file, whose row starts would not fit in memory


def read_csr_npz(source: Source) -> Iterator[Bags]:
    """Yield the documents (rows) of a sparse matrix: CSR in blocks of about BLOCK_PAIRS pairs, else one block.

    Raises InputError if the file is damaged.
    """
    name = repr(source.name)
    with open_npz(source, WAY_OUT) as archive:
        format, (rows, columns) = _format(archive), _shape(archive)
        if format == "csr":
            starts_D1 = archive.array("indptr")
            if len(starts_D1) != rows + 1:
                raise archive.damaged(f"it has {rows:,} rows but {len(starts_D1):,} row starts")
            yield from _read_rows(archive, starts_D1, columns)
            return
        names = ("indptr", "indices", "data") if format == "csc" else ("row", "col", "data")
        first, second, data = (archive.array(what) for what in names)
        if rows > MAX_EMPTY_ROWS * (len(data) + 1000):
            raise archive.damaged(f"it has {rows:,} rows but {len(data):,} counts")
        yield (from_csc if format == "csc" else from_coo)((first, second, data), (rows, columns), name)


def csr_npz_words(source: Source) -> int:
    """Return the number of columns of a sparse matrix. Raises InputError if the file is damaged."""
    with open_npz(source, WAY_OUT) as archive:
        _format(archive)
        return _shape(archive)[1]


def _read_rows(archive: Npz, starts_D1: np.ndarray, columns: int) -> Iterator[Bags]:
    """Yield the rows of a CSR matrix in blocks; holds the row starts and one block in memory."""
    with archive.opened("indices") as indices, archive.opened("data") as data:
        check_starts(starts_D1, indices.size, repr(archive.name))
        if indices.size != data.size:
            raise archive.damaged(f"it has {indices.size:,} word ids but {data.size:,} counts")
        first, D = 0, len(starts_D1) - 1
        while True:
            room = np.searchsorted(starts_D1, int(starts_D1[first]) + BLOCK_PAIRS, "right") - 1
            last = min(max(int(room), first + 1), D)
            starts = starts_D1[first : last + 1].astype(np.int64)
            pairs = int(starts[-1] - starts[0])
            ids_P, data_P = indices.read(pairs), data.read(pairs)
            yield make_bags(starts - starts[0], ids_P, data_P, columns, repr(archive.name), first)
            if last == D:
                return
            first = last


def from_csc(triple: tuple[Any, Any, Any], shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix of (column starts, rows, values); other arguments and errors as for `make_bags`."""
    starts, rows_P, data_P = (np.asarray(array) for array in triple)
    sound = starts.dtype.kind in "iu" and starts.ndim == 1 and len(starts) == shape[1] + 1 and starts[0] == 0
    if not sound or (starts[1:] < starts[:-1]).any() or starts[-1] != len(rows_P):
        raise InputError(f"the column starts of {name} do not ascend from 0 to {len(rows_P):,}; make the matrix again")
    lengths: Any = np.diff(starts.astype(np.int64))
    columns_P = np.repeat(np.arange(shape[1], dtype=np.int64), lengths)
    return from_coo((rows_P, columns_P, data_P), shape, name)


def from_coo(triple: tuple[Any, Any, Any], shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix of (rows, columns, values); other arguments and errors as for `make_bags`."""
    rows_P, columns_P, data_P = (np.asarray(array) for array in triple)
    if rows_P.dtype.kind not in "iu" or rows_P.ndim != 1 or not len(rows_P) == len(columns_P) == len(data_P):
        raise InputError(
            f"the rows, columns and values of {name} differ in number or are not integers; make the matrix again"
        )
    if len(rows_P) and not (0 <= rows_P.min() and rows_P.max() < shape[0]):
        wrong = rows_P.min() if rows_P.min() < 0 else rows_P.max()
        raise InputError(f"{name} has an entry in row {wrong:,} but only {shape[0]:,} rows; make the matrix again")
    starts_D1 = np.zeros(shape[0] + 1, np.int64)
    np.cumsum(np.bincount(rows_P, minlength=shape[0]), out=starts_D1[1:])
    if (rows_P[1:] < rows_P[:-1]).any():
        order_P = np.argsort(rows_P, kind="stable")
        columns_P, data_P = columns_P[order_P], data_P[order_P]
    return make_bags(starts_D1, columns_P, data_P, shape[1], name)


def is_csr_npz(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of an archive of NumPy arrays."""
    size = int.from_bytes(head[26:28], "little")
    return head.startswith(b"PK\x03\x04") and head[30 : 30 + size].endswith(b".npy")


def _format(archive: Npz) -> str:
    """Return the format of a sparse matrix that an archive holds."""
    if "format" not in archive.files or "shape" not in archive.files:
        held = ", ".join(sorted(archive.files)[:5]) or "nothing"
        raise InputError(f"{archive.name!r} holds {held}, not a sparse matrix; write one with scipy.sparse.save_npz")
    value = archive.array("format")
    found = value.item() if value.ndim == 0 and value.dtype.kind in "SU" else repr(value.dtype)
    found = found.decode("ascii", "replace") if isinstance(found, bytes) else found
    if found not in MATRIX_FORMATS:
        raise InputError(f"{archive.name!r} is a sparse matrix of format {found!r}; convert it with .tocsr()")
    return found


def _shape(archive: Npz) -> tuple[int, int]:
    shape = archive.array("shape")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise archive.damaged(f"its shape is {shape.tolist()}, not two sizes")
    return int(shape[0]), int(shape[1])
