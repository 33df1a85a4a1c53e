"""A source: one input, its format by its first bytes, and the data that a worker needs to reopen it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.inputs.in_memory import is_text
from mgpu_ngram.core.storage.file_heads import HEAD_BYTES, PARQUET, compression, refuse_as_text

CUTTABLE = ("plain", "memory")  # can be read from any offset


@dataclass(frozen=True)
class Source:
    """One input and the data to reopen it. Small, except for an in-memory source, which carries its bytes."""

    name: str  # as the user gave it
    format: str  # "plain", "gzip", "bz2", "xz", "zstd", "parquet" or "memory"
    size_bytes: int  # as stored
    location: str = ""  # absolute path or fsspec URL
    itemsize: int = 1  # bytes per token id; 1 for words and bytes
    column: str = ""  # text column of a Parquet file, or key of JSON lines
    warc: bool = False  # a WARC file with texts, perhaps compressed
    row_groups: tuple[int, ...] = ()  # bytes of that column in each row group, uncompressed
    data: bytes = field(default=b"", repr=False)  # of an in-memory corpus: bytes from data_start on
    data_start: int = 0

    @property
    def is_local(self) -> bool:
        return "://" not in self.location

    @property
    def modified_ns(self) -> int:
        """Return the modification time of a local file; 0 for other sources."""
        return os.stat(self.location).st_mtime_ns if self.is_local and self.location else 0


def file_source(name: str, location: str, unit: str, itemsize: int, text_column: str) -> Source:
    """Return the source of a file: its size, and its format by its first bytes.

    name, location  the user's name of the file; its absolute path or URL
    unit            "word": a plain file must hold lines of text; "byte": any bytes; "id": token ids of itemsize bytes
    text_column     of Parquet files

    Raises InputError for a file that cannot be read or has another format.
    """
    head, size_bytes = stored_head(name, location)
    format = "parquet" if head.startswith(PARQUET) else compression(head) or "plain"
    source = Source(name, format, size_bytes, location, itemsize)
    if format == "zstd":
        import_zstandard(name)
    if format == "parquet":
        if unit == "id":
            raise InputError(f"{name!r} is a Parquet file; token ids are read from raw binary files: export the column")
        return parquet_source(source, text_column)
    if format == "plain" and unit == "word":
        refuse_as_text(name, head, text_column)
    if format == "plain" and size_bytes % itemsize:
        raise InputError(odd_size(name, size_bytes, itemsize))
    return source


def stored_head(name: str, location: str, head_bytes: int = HEAD_BYTES) -> tuple[bytes, int]:
    """Return the first bytes of a file, as stored, and its size. Raises InputError when it cannot be read."""
    if "://" not in location:
        try:
            with open(location, "rb") as file:
                return file.read(head_bytes), os.fstat(file.fileno()).st_size
        except OSError as error:
            error.filename = location  # a read that fails names no file
            raise unreadable(error) from None
    with remote_errors(name):
        fs, path = filesystem(location)
        size_bytes = fs.info(path)["size"]
        head = fs.cat_file(path, start=0, end=min(head_bytes, size_bytes)) if size_bytes else b""
    if size_bytes is None:
        raise InputError(f"the server does not tell the size of {name!r}; download it first")
    return head, size_bytes


def odd_size(name: str, size_bytes: int, itemsize: int) -> str:
    """Return the message for a file of ids that ends inside an id."""
    return (f"{name!r} holds {size_bytes} bytes, no multiple of the {itemsize} bytes of one token id; "
            f"the file is cut short or its dtype is not uint{8 * itemsize}")  # fmt: skip


def parquet_source(source: Source, text_column: str, fits: Callable[[Any], bool] = is_text) -> Source:
    """Return the source with its column and row groups. Raises InputError if the file lacks such a column.

    fits  function of the Arrow type of a column: whether it can be the text column
    """
    with parquet_file(source) as file:
        schema, metadata = file.schema_arrow, file.metadata
        texts = [column.name for column in schema if fits(column.type)]
        only = texts[0] if len(texts) == 1 and text_column == "text" else None  # a named column is used, never guessed
        column = text_column if text_column in schema.names else only
        if column is None or column not in texts:
            columns = ", ".join(f"{column.name} ({column.type})" for column in schema)
            what = f"the column {text_column!r}" if column is None else f"text in the column {text_column!r}"
            way_out = f"name one with text_column: {', '.join(texts)}" if texts else "no column of it is text"
            raise InputError(f"{source.name!r} lacks {what}; {way_out}; its columns: {columns}")
        paths = [leaf.path for leaf in metadata.schema]  # of a list: COLUMN.list.element, or other names after COLUMN
        inside = (i for i, path in enumerate(paths) if path.startswith(f"{column}."))
        leaf = paths.index(column) if column in paths else next(inside)
        groups = (metadata.row_group(g) for g in range(metadata.num_row_groups))
        return replace(source, column=column, row_groups=tuple(g.column(leaf).total_uncompressed_size for g in groups))


@contextmanager
def parquet_file(source: Source) -> Iterator[Any]:
    """Open a Parquet source; any failure inside becomes an InputError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if source.is_local:
            with pq.ParquetFile(source.location, page_checksum_verification=True) as file:
                yield file
        else:
            with remote_errors(source.name):
                fs, path = filesystem(source.location)
                handle = fs.open(path, "rb")
            with handle, pq.ParquetFile(handle, page_checksum_verification=True) as file:
                yield file
    except UnicodeEncodeError:
        raise InputError(f"{source.name!r} is not UTF-8, as paths of Parquet files must be; rename it") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of names of columns, too
        reason = str(error).splitlines()[0]
        raise InputError(f"{source.name!r} is damaged Parquet: {reason}; write it again or leave it out") from None


def import_zstandard(name: str) -> Any:
    """Return the module that reads .zst files; imported only if there are any."""
    try:
        import zstandard
    except ImportError:
        raise InputError(f"{name!r} is compressed with zstd; to read it, pip install zstandard") from None
    return zstandard
