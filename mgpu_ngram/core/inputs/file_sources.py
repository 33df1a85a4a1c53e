"""Open a file as a source: what it holds, by its first bytes and its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.inputs.byte_ranges import PROBE_BYTES, reader
from mgpu_ngram.core.inputs.decompress import decompressed
from mgpu_ngram.core.inputs.sources import Source, import_zstandard, odd_size, parquet_source, stored_head
from mgpu_ngram.core.storage.file_heads import (
    HEAD_BYTES,
    JSON_LINES,
    PARQUET,
    WARC_MAGIC,
    compression,
    json_keys,
    refuse_as_text,
    text_format,
)
from mgpu_ngram.core.utf8 import BOM

T = TypeVar("T")


FILES_AT_ONCE = 16  # files of which the first bytes are read at the same time


def open_files(fn: Callable[..., T], files: Sequence[tuple[Any, ...]]) -> list[T]:
    """Return fn(*file) of each file in order, from several threads: a read from a network waits much of its time."""
    if len(files) < 2:
        return [fn(*file) for file in files]
    with ThreadPoolExecutor(min(FILES_AT_ONCE, len(files))) as pool:
        return list(pool.map(lambda file: fn(*file), files))


def stored_source(name: str, location: str) -> Source:
    """Return the source of a file as stored: its size and its format, without checking the contents."""
    head, size_bytes = stored_head(name, location)
    format = "parquet" if head.startswith(PARQUET) else compression(head) or "plain"
    if format == "zstd":
        import_zstandard(name)
    return Source(name, format, size_bytes, location)


def head_text(source: Source, of_damaged: bool = False) -> bytes:
    """Return the first HEAD_BYTES of a file, decompressed, or all of a shorter file.

    Raises DamagedInput for damaged data; but if `of_damaged`, and of a WARC file, returns the bytes before the damage.
    Readers of these files report it.
    """
    found = b""
    with reader(source) as read:
        if source.format == "plain":
            head = np.empty(min(HEAD_BYTES, source.size_bytes), np.uint8)
            read(0, head)
            return head.tobytes()
        try:
            for text in decompressed(source, read, None, PROBE_BYTES):
                found += text.tobytes()
                if len(found) >= HEAD_BYTES:
                    break
        except DamagedInput:
            if not found.startswith(WARC_MAGIC) and not (of_damaged and found):
                raise
    return found[:HEAD_BYTES]


def key_and_mark(source: Source, text_column: str | None, of_damaged: bool = False) -> tuple[str, int]:
    """Return the key of the texts of a source, "" for lines of text, and the bytes of its byte order mark.

    of_damaged  as in `head_text`

    Raises InputError if the source holds neither text nor JSON lines, and for JSON lines without the key.
    """
    head, key = head_text(source, of_damaged), text_column or "text"
    mark_bytes = len(BOM) if head.startswith(BOM) else 0
    if text_format(source.name, head, source.format) != JSON_LINES:
        return "", mark_bytes
    keys = json_keys(head)
    if keys and key not in keys:
        raise InputError(f"{source.name!r} lacks the key {key!r}; name one with text_column: {', '.join(keys)}")
    return key, mark_bytes


def file_source(name: str, location: str, unit: str, itemsize: int, text_column: str | None) -> Source:
    """Return the source of a file: its size, and its format by its first bytes.

    name, location  the user's name of the file; its absolute path or URL
    unit            "word": the file must hold lines of text, JSON lines or a column of text; "list": lines; "byte": any
                    bytes; "id": token ids of itemsize bytes
    text_column     column of Parquet files, or key of JSON lines; None: "text", or the only column of text

    Raises InputError for a file that cannot be read or has another format.
    """
    source = replace(stored_source(name, location), itemsize=itemsize)
    if source.format == "parquet":
        if unit == "id":
            raise InputError(f"{name!r} is a Parquet file; token ids are read from raw binary files: export the column")
        return parquet_source(source, text_column)
    if unit == "list":
        refuse_as_text(name, head_text(source))
        return source
    if unit == "word":
        key, mark_bytes = key_and_mark(source, text_column)
        return replace(source, json_key=key, mark_bytes=mark_bytes)
    if source.format == "plain" and source.size_bytes % itemsize:
        raise InputError(odd_size(name, source.size_bytes, itemsize))
    return source


def refuse_column(text_column: str | None, sources: Iterable[Source], unit: str = "word") -> None:
    """Raise InputError if a text column is given, but no file has columns that this unit reads."""
    files = [source for source in sources if source.location and source.size_bytes]
    if text_column is None or not files or any(source.column or source.json_key for source in files):
        return
    if unit != "word":
        raise InputError(
            f"text_column is {text_column!r} but with unit {unit!r} only Parquet files have columns; leave it out, or "
            "count words"
        )
    raise InputError(
        f"text_column is {text_column!r} but {files[0].name!r} is plain text, without columns; leave text_column out, "
        "or give Parquet or JSON lines"
    )
