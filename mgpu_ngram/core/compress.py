"""Write compressed files: the same data give the same bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mgpu_ngram.core.output import Sink
from mgpu_ngram.core.sources import import_zstandard

GZIP_LEVEL, ZSTD_LEVEL = 6, 3  # the defaults of the programs gzip and zstd
FORMATS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}  # by the suffix of a name


def compression_of(path: str | Path) -> str:
    """Return the compression that a name to write asks for, such as "gzip"; "" for none."""
    return FORMATS.get(Path(path).suffix.lower(), "")


def without_compression(path: str | Path) -> Path:
    """Return a path without the suffix of a compressed file, if it has one."""
    return Path(path).with_suffix("") if compression_of(path) else Path(path)


@contextmanager
def compressing(sink: Sink, format: str) -> Iterator[Any]:
    """Yield a file for writing whose data go to the sink in a format of `Source`, such as "gzip"."""
    if format == "gzip":
        with gzip.GzipFile("", "wb", GZIP_LEVEL, sink, mtime=0) as file:  # type: ignore[arg-type]
            yield file
    elif format == "bz2":
        with bz2.BZ2File(sink, "wb") as file:  # type: ignore[call-overload]
            yield file
    elif format == "xz":
        with lzma.LZMAFile(sink, "wb") as file:  # type: ignore[arg-type]
            yield file
    elif format == "zstd":
        zstandard = import_zstandard("an output")
        with zstandard.ZstdCompressor(ZSTD_LEVEL).stream_writer(sink, closefd=False) as file:
            yield file
    else:
        yield sink
