"""Read the sparse matrices that `scipy.sparse.save_npz` writes, without SciPy and without pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from mgpu_ngram.core.bags import Bags, make_bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.sources import Source

FORMATS = ("csr", "csc", "coo")
MAX_HEADER_BYTES = 4096  # of the array files in the archive; SciPy's have 128
STRIP_BYTES = 4 << 20
MAX_RATIO = 1100  # of an array's bytes to its bytes in the archive: deflate reaches 1032


def read_csr_npz(source: Source) -> Bags:
    """Return the documents (rows) of a sparse matrix, CSR, CSC or COO. Raises InputError if the file is damaged."""
    name = repr(source.name)
    with _archive(source) as archive:
        files = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        format = _format(archive, files, source.name)
        shape = _array(archive, files, "shape", source.name)
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
            raise _damaged(source.name, f"its shape is {shape.tolist()}, not two sizes")
        rows, columns = (int(n) for n in shape)
        data = _array(archive, files, "data", source.name)
        if format == "coo":
            return from_coo(
                (_array(archive, files, "row", source.name), _array(archive, files, "col", source.name), data),
                (rows, columns),
                name,
            )
        starts, indices = (_array(archive, files, what, source.name) for what in ("indptr", "indices"))
    if format == "csr":
        if len(starts) != rows + 1:
            raise _damaged(source.name, f"it has {rows:,} rows but {len(starts):,} row starts")
        return make_bags(starts, indices, data, columns, name)
    return from_csc(starts, indices, data, (rows, columns), name)


def from_csc(starts: Any, rows_P: Any, data_P: Any, shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix that is stored by columns; the rest is as for `make_bags`."""
    starts = np.asarray(starts)
    sound = starts.dtype.kind in "iu" and starts.ndim == 1 and len(starts) == shape[1] + 1 and starts[0] == 0
    if not sound or (starts[1:] < starts[:-1]).any() or starts[-1] != len(rows_P):
        raise InputError(f"the column starts of {name} do not ascend from 0 to {len(rows_P):,}; make the matrix again")
    columns_P = np.repeat(np.arange(shape[1], dtype=np.int64), np.diff(starts.astype(np.int64)))
    return from_coo((rows_P, columns_P, data_P), shape, name)


def from_coo(triples: tuple[Any, Any, Any], shape: tuple[int, int], name: str) -> Bags:
    """Return the bags of a matrix of (rows, columns, values); the rest is as for `make_bags`."""
    rows_P, columns_P, data_P = (np.asarray(array) for array in triples)
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


def _array(archive: zipfile.ZipFile, files: dict[str, Any], what: str, name: str) -> np.ndarray:
    """Return an array of the archive, a .npy file (https://numpy.org/doc/stable/reference/generated/numpy.lib.format)."""
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
        size_bytes = dtype.itemsize * int(np.prod(shape, dtype=object)) if len(shape) < 2 else -1
        if not 0 <= size_bytes <= min(info.file_size, MAX_RATIO * info.compress_size):
            raise _damaged(name, f"array {what!r} of {dtype} has shape {shape} but {info.file_size:,} bytes")
        array = np.empty(size_bytes, np.uint8)
        at = 0
        while at < size_bytes:
            piece = file.read(min(STRIP_BYTES, size_bytes - at))
            if not piece:
                raise _damaged(name, f"array {what!r} ends after {at:,} of {size_bytes:,} bytes")
            array[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        file.read(1)  # at its end the archive checks the CRC-32
    values = array.view(dtype).reshape(shape)
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


def _damaged(name: str, what: str) -> InputError:
    return InputError(f"{name!r} is a damaged .npz file: {what}; write it again with scipy.sparse.save_npz")
