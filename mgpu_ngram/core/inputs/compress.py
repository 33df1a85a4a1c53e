"""Write compressed files. The same data always give the same bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.core.inputs.sources import import_zstandard
from mgpu_ngram.core.storage.output import Sink

GZIP_LEVEL, ZSTD_LEVEL = 6, 3  # the defaults of the programs gzip and zstd
MEMBER_BYTES = 8 << 20  # bytes of text that a thread compresses at once
SUFFIX_FORMATS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}  # formats by the suffix of a file name


def compression_of(path: str | Path) -> str:
    """Return the compression that the suffix of an output name selects, such as "gzip"; "" for none."""
    return SUFFIX_FORMATS.get(Path(path).suffix.lower(), "")


def without_compression(path: str | Path) -> Path:
    """Return a path without the suffix of a compressed file, if it has one."""
    return Path(path).with_suffix("") if compression_of(path) else Path(path)


class _Members:
    """A file for writing that compresses pieces of MEMBER_BYTES in threads, and joins the results in order."""

    def __init__(self, sink: Sink, compress: Callable[[bytes], bytes], pool: ThreadPoolExecutor, threads: int):
        self._sink, self._compress, self._pool, self._ahead = sink, compress, pool, threads
        self._buffer = bytearray()
        self._under_way: deque[Future[bytes]] = deque()

    def write(self, data: Any) -> None:
        self._buffer += memoryview(data)  # an array would be added
        while len(self._buffer) >= MEMBER_BYTES:
            self._submit(MEMBER_BYTES)

    def finish(self) -> None:
        """Write what is left; of no data, an empty member."""
        if self._buffer or not self._sink.size_bytes + len(self._under_way):
            self._submit(len(self._buffer))
        while self._under_way:
            self._sink.append(self._under_way.popleft().result())

    def _submit(self, size: int) -> None:
        self._under_way.append(self._pool.submit(self._compress, bytes(self._buffer[:size])))
        del self._buffer[:size]
        if len(self._under_way) > self._ahead:
            self._sink.append(self._under_way.popleft().result())


@contextmanager
def compressing_in_threads(sink: Sink, format: str, threads: int) -> Iterator[Any]:
    """Yield a file as `compressing` does; this number of threads compresses the data.

    All formats except zstd get a member for each MEMBER_BYTES of data, so the bytes do not depend on the threads.
    Readers of these formats read members that follow one another. Many readers of zstd end at the first frame, so it
    gets one.
    """
    if format == "zstd":
        zstandard = import_zstandard("an output")
        compressor = zstandard.ZstdCompressor(ZSTD_LEVEL, threads=max(threads, 2))  # two or more give the same bytes
        with compressor.stream_writer(sink, closefd=False) as file:
            yield file
        return
    gzipped = partial(gzip.compress, compresslevel=GZIP_LEVEL, mtime=0)
    makers: dict[str, Callable[[bytes], bytes]] = {"gzip": gzipped, "bz2": bz2.compress, "xz": lzma.compress}
    if format not in makers:
        yield sink
        return
    with ThreadPoolExecutor(threads) as pool:
        members = _Members(sink, makers[format], pool, threads)
        yield members
        members.finish()


@contextmanager
def compressing(sink: Sink, format: str) -> Iterator[Any]:
    """Yield a file for writing whose data go to the sink in a format of `Source`, such as "gzip"."""
    if format == "gzip":
        with gzip.GzipFile("", "wb", GZIP_LEVEL, sink, mtime=0) as file:
            yield file
    elif format == "bz2":
        with bz2.BZ2File(sink, "wb") as file:
            yield file
    elif format == "xz":
        with lzma.LZMAFile(sink, "wb") as file:  # type: ignore[arg-type]  # it has what lzma calls
            yield file
    elif format == "zstd":
        zstandard = import_zstandard("an output")
        with zstandard.ZstdCompressor(ZSTD_LEVEL).stream_writer(sink, closefd=False) as file:
            yield file
    else:
        yield sink
