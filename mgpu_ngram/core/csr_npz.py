"""Read the sparse matrices that `scipy.sparse.save_npz` writes, without SciPy and without pickle."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from mgpu_ngram.core.bags import Bags, check_starts, make_bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.sources import Source

FORMATS = ("csr", "csc", "coo")
MAX_HEADER_BYTES = 4096  # of the array files in the archive; SciPy's have 128
STRIP_BYTES = 4 << 20
BLOCK_PAIRS = 1 << 22  # pairs of a CSR matrix that are read at once; a longer row is read whole
MAX_EMPTY_ROWS = 1000  # more rows for each count show a damaged file, whose row starts would not fit in memory
MAX_RATIO = 1100  # of an array's bytes to its bytes in the archive: deflate reaches 1032


def read_csr_npz(source: Source) -> Iterator[Bags]:
    """Yield the documents (rows) of a sparse matrix: CSR in blocks of about BLOCK_PAIRS pairs, CSC and COO at once.

    Raises InputError if the file is damaged.
    """
    name = repr(source.name)
    with _archive(source) as archive:
        files = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        format, (rows, columns) = _format(archive, files, source.name), _shape(archive, files, source.name)
        if format == "csr":
            starts_D1 = _array(archive, files, "indptr", source.name)
            if len(starts_D1) != rows + 1:
                raise _damaged(source.name, f"it has {rows:,} rows but {len(starts_D1):,} row starts")
            yield from _read_rows(archive, files, starts_D1, columns, source.name)
            return
        names = ("indptr", "indices", "data") if format == "csc" else ("row", "col", "data")
        first, second, data = (_array(archive, files, what, source.name) for what in names)
        if rows > MAX_EMPTY_ROWS * (len(data) + 1000):
            raise _damaged(source.name, f"it has {rows:,} rows but {len(data):,} counts")
        yield (from_csc if format == "csc" else from_coo)((first, second, data), (rows, columns), name)


def csr_npz_words(source: Source) -> int:
    """Return the number of columns of a sparse matrix. Raises InputError if the file is damaged."""
    with _archive(source) as archive:
        files = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        _format(archive, files, source.name)
        return _shape(archive, files, source.name)[1]


def _read_rows(
    archive: zipfile.ZipFile, files: dict[str, Any], starts_D1: np.ndarray, columns: int, name: str
) -> Iterator[Bags]:
    """Yield the rows of a CSR matrix in blocks; holds the row starts and one block in memory."""
    with _opened(archive, files, "indices", name) as indices, _opened(archive, files, "data", name) as data:
        check_starts(starts_D1, indices.size, repr(name))
        if indices.size != data.size:
            raise _damaged(name, f"it has {indices.size:,} word ids but {data.size:,} counts")
        first, D = 0, len(starts_D1) - 1
        while True:
            room = np.searchsorted(starts_D1, int(starts_D1[first]) + BLOCK_PAIRS, "right") - 1
            last = min(max(int(room), first + 1), D)
            starts = starts_D1[first : last + 1].astype(np.int64)
            pairs = int(starts[-1] - starts[0])
            yield make_bags(starts - starts[0], indices.read(pairs), data.read(pairs), columns, repr(name), first)
            if last == D:
                return
            first = last


def from_csc(triple: tuple[Any, Any, Any], shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix of (column starts, rows, values); the rest is as for `make_bags`."""
    starts, rows_P, data_P = (np.asarray(array) for array in triple)
    sound = starts.dtype.kind in "iu" and starts.ndim == 1 and len(starts) == shape[1] + 1 and starts[0] == 0
    if not sound or (starts[1:] < starts[:-1]).any() or starts[-1] != len(rows_P):
        raise InputError(f"the column starts of {name} do not ascend from 0 to {len(rows_P):,}; make the matrix again")
    lengths: Any = np.diff(starts.astype(np.int64))
    columns_P = np.repeat(np.arange(shape[1], dtype=np.int64), lengths)
    return from_coo((rows_P, columns_P, data_P), shape, name)


def from_coo(triple: tuple[Any, Any, Any], shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix of (rows, columns, values); the rest is as for `make_bags`."""
    rows_P, columns_P, data_P = (np.asarray(array) for array in triple)
    if rows_P.dtype.kind not in "iu" or rows_P.ndim != 1 or not len(rows_P) == len(columns_P) == len(data_P):
        raise InputError(f"the rows, columns and values of {name} are not as many integers; make the matrix again")
    if len(rows_P) and not (0 <= rows_P.min() and rows_P.max() < shape[0]):
        wrong = rows_P.min() if rows_P.min() < 0 else rows_P.max()
        raise InputError(f"{name} has an entry in row {wrong:,} but {shape[0]:,} rows; make the matrix again")
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


@contextmanager
def _archive(source: Source) -> Iterator[zipfile.ZipFile]:
    """Open the archive; any failure inside becomes an InputError that names it."""
    try:
        file: IO[bytes]
        if source.is_local:
            file = open(source.location, "rb")  # noqa: SIM115 - closed below
        else:
            with remote_errors(source.name):
                fs, path = filesystem(source.location)
                file = fs.open(path, "rb")
        with file, zipfile.ZipFile(file) as archive:
            yield archive
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, KeyError) as error:
        raise _damaged(source.name, " ".join(str(error).split()) or type(error).__name__) from None
    except OSError as error:
        if error.filename is None:
            raise _damaged(source.name, str(error)) from None
        raise unreadable(error) from None


def _format(archive: zipfile.ZipFile, files: dict[str, Any], name: str) -> str:
    """Return the format of a sparse matrix that an archive holds."""
    if "format" not in files or "shape" not in files:
        held = ", ".join(sorted(files)[:5]) or "nothing"
        raise InputError(f"{name!r} holds {held}, no sparse matrix; write one with scipy.sparse.save_npz")
    value = _array(archive, files, "format", name)
    found = value.item() if value.ndim == 0 and value.dtype.kind in "SU" else repr(value.dtype)
    found = found.decode("ascii", "replace") if isinstance(found, bytes) else found
    if found not in FORMATS:
        raise InputError(f"{name!r} is a sparse matrix of format {found!r}; convert it with .tocsr()")
    return found


def _shape(archive: zipfile.ZipFile, files: dict[str, Any], name: str) -> tuple[int, int]:
    shape = _array(archive, files, "shape", name)
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise _damaged(name, f"its shape is {shape.tolist()}, not two sizes")
    return int(shape[0]), int(shape[1])


def _array(archive: zipfile.ZipFile, files: dict[str, Any], what: str, name: str) -> np.ndarray:
    """Return an array of the archive."""
    with _opened(archive, files, what, name) as stored:
        return stored.read(stored.size).reshape(stored.shape)


class _Stored:
    """An array of an archive that is read piece by piece."""

    def __init__(self, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype, where: str, name: str):
        self._file, self.shape, self._dtype, self._where, self._name = file, shape, dtype, where, name
        self.size = math.prod(shape)
        self._left = self.size

    def read(self, size: int) -> np.ndarray:
        """Return the next numbers. Raises InputError if the file ends before."""
        array = np.empty(size * self._dtype.itemsize, np.uint8)
        at = 0
        while at < len(array):
            piece = self._file.read(min(STRIP_BYTES, len(array) - at))
            if not piece:
                raise _damaged(self._name, f"{self._where} ends before its {self.size:,} numbers")
            array[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        self._left -= size
        if not self._left:
            self._file.read(1)  # at its end the archive checks the CRC-32
        values = array.view(self._dtype)
        return values if self._dtype.isnative else values.astype(self._dtype.newbyteorder("="))


@contextmanager
def _opened(archive: zipfile.ZipFile, files: dict[str, Any], what: str, name: str) -> Iterator[_Stored]:
    """Open an array of the archive, a .npy file (numpy.lib.format), of 0 or 1 dimensions."""
    if what not in files:
        raise _damaged(name, f"it lacks the array {what!r}")
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    info = files[what]
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in read_header:
            raise _damaged(name, f"array {what!r} has version {version} of the .npy format")
        shape, _, dtype = read_header[version](file, max_header_size=MAX_HEADER_BYTES)
        if dtype.hasobject:
            raise InputError(f"array {what!r} of {name!r} is a pickle, which could run code; write it as numbers")
        size_bytes = dtype.itemsize * math.prod(shape) if len(shape) < 2 else -1
        if not 0 <= size_bytes <= min(info.file_size, MAX_RATIO * info.compress_size):
            raise _damaged(name, f"array {what!r} of {dtype} has shape {shape} but {info.file_size:,} bytes")
        yield _Stored(file, shape, dtype, f"array {what!r}", name)


def _damaged(name: str, what: str) -> InputError:
    return InputError(f"{name!r} is a damaged .npz file: {what}; write it again with scipy.sparse.save_npz")
