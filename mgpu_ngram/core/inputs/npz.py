"""Read the arrays of a .npz archive, piece by piece and without pickle."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.byte_ranges import STRIP_BYTES
from mgpu_ngram.core.inputs.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.inputs.sources import Source

MAX_HEADER_BYTES = 4096  # bytes of the header of an array file in the archive; SciPy's headers have 128
MAX_RATIO = 1100  # most bytes of an array for each byte in the archive; deflate reaches 1032


class Npz:
    """An open .npz archive.

    files    {name of the array: its entry}
    way_out  end of the message about a damaged file
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, way_out: str):
        self._archive, self.name, self._way_out = archive, name, way_out
        self.files = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def array(self, what: str, dimensions: int = 1) -> np.ndarray:
        """Return an array with at most `dimensions` dimensions."""
        with self.opened(what, dimensions) as stored:
            values = stored.read(stored.size)
            return values.reshape(stored.shape[::-1]).T if stored.fortran else values.reshape(stored.shape)

    @contextmanager
    def opened(self, what: str, dimensions: int = 1) -> Iterator[StoredArray]:
        """Open an array, a .npy file (numpy.lib.format), with at most `dimensions` dimensions."""
        if what not in self.files:
            raise self.damaged(f"it lacks the array {what!r}")
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        info = self.files[what]
        with self._archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            if version not in read_header:
                raise self.damaged(f"array {what!r} has version {version} of the .npy format")
            try:
                shape, fortran, dtype = read_header[version](file, max_header_size=MAX_HEADER_BYTES)
            except (SyntaxError, tokenize.TokenError, MemoryError):  # NumPy parses the header as Python
                raise self.damaged(f"the header of array {what!r} cannot be parsed") from None
            if dtype.hasobject:
                raise InputError(
                    f"array {what!r} of {self.name!r} is a pickle, which could run code; write it as numbers"
                )
            if len(shape) > dimensions:
                raise InputError(
                    f"array {what!r} of {self.name!r} has shape {shape} but must have at most {dimensions} "
                    f"{'axis' if dimensions == 1 else 'axes'}; {self._way_out}"
                )
            size_bytes = dtype.itemsize * math.prod(shape)
            if not 0 <= size_bytes <= min(info.file_size, MAX_RATIO * info.compress_size):
                raise self.damaged(f"array {what!r} of {dtype} has shape {shape} but {info.file_size:,} bytes")
            yield StoredArray(file, shape, dtype, fortran, lambda ends: self.damaged(f"array {what!r} {ends}"))

    def damaged(self, what: str) -> InputError:
        """Return the error for a damaged archive."""
        return InputError(f"{self.name!r} is a damaged .npz file: {what}; {self._way_out}")


class StoredArray:
    """An array of an archive that is read piece by piece. Its numbers are column by column if `fortran`."""

    def __init__(
        self, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype, fortran: bool,
        damaged: Callable[[str], InputError],
    ):  # fmt: skip
        self._file, self.shape, self._dtype, self.fortran, self._damaged = file, shape, dtype, fortran, damaged
        self.size = math.prod(shape)
        self._left = self.size

    def read(self, size: int) -> np.ndarray:
        """Return the next `size` numbers. Raises InputError if the file holds fewer."""
        array = np.empty(size * self._dtype.itemsize, np.uint8)
        at = 0
        while at < len(array):
            piece = self._file.read(min(STRIP_BYTES, len(array) - at))
            if not piece:
                raise self._damaged(f"ends before its {self.size:,} numbers")
            array[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        self._left -= size
        if not self._left:
            self._file.read(1)  # at its end the archive checks the CRC-32
        values = array.view(self._dtype)
        return values if self._dtype.isnative else values.astype(self._dtype.newbyteorder("="))


@contextmanager
def open_npz(source: Source, way_out: str) -> Iterator[Npz]:
    """Open an archive; any failure inside becomes an InputError that names it and ends with `way_out`."""

    def damaged(what: str) -> InputError:
        return InputError(f"{source.name!r} is a damaged .npz file: {what}; {way_out}")

    try:
        file: IO[bytes]
        if source.is_local:
            file = open(source.location, "rb")  # noqa: SIM115 - closed below
        else:
            with remote_errors(source.name):
                fs, path = filesystem(source.location)
                file = fs.open(path, "rb")
        with file, zipfile.ZipFile(file) as archive:
            yield Npz(archive, source.name, way_out)
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, KeyError) as error:
        raise damaged(" ".join(str(error).split()) or type(error).__name__) from None
    except OSError as error:
        if error.filename is None:
            raise damaged(str(error)) from None
        raise unreadable(error) from None
