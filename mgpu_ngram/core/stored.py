"""Read the stored bytes of a source at any offset: of a local file, a URL or memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.sources import Source

STRIP_BYTES = 4 << 20  # bytes of one read of one thread
PROBE_BYTES = 64 << 10  # first read in search of a line's end, and input of a decompressor

Read = Callable[[int, np.ndarray], None]  # read(offset, view) fills view with the stored bytes from offset on


@contextmanager
def reader(source: Source) -> Iterator[Read]:
    """Yield read(offset, view) over the stored bytes of a source; several threads may call it."""
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

        def read_local(offset: int, view: np.ndarray) -> None:
            done = 0
            while done < len(view):
                try:
                    n = os.preadv(file, [view[done:].data], offset + done)
                except OSError as error:
                    what = f"cannot read {source.name!r} at byte {offset + done}: {error.strerror}"
                    raise InputError(f"{what}; check the disk") from None
                if n == 0:
                    raise InputError(_shrunk(source, offset + done))
                done += n

        try:
            yield read_local
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
