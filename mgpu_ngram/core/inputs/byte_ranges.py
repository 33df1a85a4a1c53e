"""Read the stored bytes of a source at any offset: of a local file, a URL or memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from mgpu_ngram import native
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.inputs.sources import Source

STRIP_BYTES = 4 << 20  # bytes of one read of one thread
PROBE_BYTES = 64 << 10  # first read in search of a line's end, and input of a decompressor

Read = Callable[[int, np.ndarray], None]  # read(offset, view) fills view with the stored bytes from offset on


class LocalFile:
    """Reads the stored bytes of a local file. A call is a `Read`, in the caller's thread.

    file     descriptor of the open file
    threads  threads of `fill`
    """

    def __init__(self, source: Source, file: int, threads: int):
        self._source, self._file, self._threads = source, file, threads

    def __call__(self, offset: int, view: np.ndarray) -> None:
        done = 0
        while done < len(view):
            with self._named_errors(offset + done):
                n = os.preadv(self._file, [view[done:].data], offset + done)
            if n == 0:
                raise InputError(_shrunk(self._source, offset + done))
            done += n

    def fill(self, offset: int, view: np.ndarray) -> bool:
        """As a call, with several threads of compiled code. Returns False if that code is not installed.

        Threads of Python would compete for the interpreter lock with the thread that launches kernels.
        """
        read_into = native.read_into()
        if read_into is None:
            return False
        with self._named_errors(offset):
            n = read_into(self._file, offset, view.data, self._threads)
        if n < len(view):
            raise InputError(_shrunk(self._source, offset + n))
        return True

    @contextmanager
    def _named_errors(self, offset: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"cannot read {self._source.name!r} at byte {offset}: {error.strerror}"
            raise InputError(f"{what}; check the disk") from None


@contextmanager
def reader(source: Source, threads: int = 1) -> Iterator[Read]:
    """Yield read(offset, view) over the stored bytes of a source; several threads may call it.

    threads  threads of `LocalFile.fill`, if the source is a local file
    """
    if source.format == "memory":
        data = np.frombuffer(source.data, np.uint8)

        def read_memory(offset: int, view: np.ndarray) -> None:
            view[:] = data[offset - source.data_start : offset - source.data_start + len(view)]

        yield read_memory
    elif source.is_local:
        try:
            file = os.open(source.location, os.O_RDONLY)
        except OSError as error:
            raise unreadable(error) from None
        try:
            yield LocalFile(source, file, threads)
        finally:
            os.close(file)
    else:
        with remote_errors(source.name):
            fs, path = filesystem(source.location)

        def read_remote(offset: int, view: np.ndarray) -> None:
            with remote_errors(source.name, f" at byte {offset}"):
                data = fs.cat_file(path, start=offset, end=offset + len(view))
            if len(data) != len(view):
                raise InputError(_shrunk(source, offset + len(data)))
            view[:] = np.frombuffer(data, np.uint8)

        yield read_remote


def _shrunk(source: Source, offset: int) -> str:
    change = f"ends at byte {offset} but had {source.size_bytes} bytes when it was opened"
    return f"{source.name!r} {change}; leave it as it is during a run"
