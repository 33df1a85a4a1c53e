"""Read small files that may be gzipped, such as vocabularies, and compute the CRC-32 of files of any size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import filesystem, find_files, remote_errors, unreadable
from mgpu_ngram.core.utf8 import without_mark

MAX_UNPACKED_BYTES = 1 << 30  # bytes of an unpacked file


def read_unpacked(path: str, what: str) -> tuple[str, bytes]:
    """Return (name, bytes) of a file, unpacked if it is gzipped, without a byte order mark. Errors call the file
    `what`.
    """
    name, _ = _found(path)
    with _opened(path) as file:
        data = file.read()
    if data[:2] != b"\x1f\x8b":
        return name, without_mark(data)
    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise InputError(f"{what} {name!r} is damaged gzip data ({error}); compress it again") from None
    if not decoder.eof:
        raise InputError(f"{what} {name!r} is truncated gzip data or unpacks to over 1 GiB; compress it again")
    return name, without_mark(text)


def read_lines(path: str, what: str) -> tuple[str, list[str]]:
    """Return (name, lines) of a UTF-8 file, unpacked if it is gzipped."""
    name, data = read_unpacked(path, what)
    try:
        return name, data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {name!r} is not UTF-8 at byte {error.start}; convert it") from None


def crc_of(path: str) -> str:
    """Return the CRC-32 of a file's bytes, which identifies the file."""
    from mgpu_ngram.core.inputs.byte_ranges import STRIP_BYTES  # imports NumPy, which `--help` does not need

    value = 0
    with _opened(path) as file:
        while data := file.read(STRIP_BYTES):
            value = zlib.crc32(data, value)
    return f"{value:08x}"


def _found(path: str) -> tuple[str, str]:
    return find_files([path])[0]


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    name, location = _found(path)
    if "://" in location:
        with remote_errors(name):
            fs, root = filesystem(location)
            with fs.open(root, "rb") as file:
                yield file
        return
    try:
        file = open(location, "rb")  # noqa: SIM115
    except OSError as error:
        raise unreadable(error) from None
    with file:
        yield file
