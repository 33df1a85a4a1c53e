"""A source: one input, its format by its first bytes, and the data that a worker needs to reopen it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.inputs.files import filesystem, remote_errors, unreadable
from mgpu_ngram.core.inputs.in_memory import is_text
from mgpu_ngram.core.storage.file_heads import HEAD_BYTES

CUTTABLE = ("plain", "memory")  # can be read from any offset


@dataclass(frozen=True)
class Source:
    """One input and the data to reopen it. Small, except for an in-memory source, which carries its bytes."""

    name: str  # as the user gave it
    format: str  # "plain", "gzip", "bz2", "xz", "zstd", "parquet" or "memory"
    size_bytes: int  # as stored
    location: str = ""  # absolute path or fsspec URL
    itemsize: int = 1  # bytes per token id; 1 for words and bytes
    column: str = ""  # text column of a Parquet file, or key of JSON lines, which are read as stored
    json_key: str = ""  # key of JSON lines that are read as text: the lines of their values
    mark_bytes: int = 0  # bytes of the byte order mark before text, which is no part of its first word
    warc: bool = False  # a WARC file with texts, perhaps compressed
    row_groups: tuple[int, ...] = ()  # bytes of that column in each row group, uncompressed
    data: bytes = field(default=b"", repr=False)  # of an in-memory corpus: bytes from data_start on
    data_start: int = 0
    damage: str = ""  # why none of it can be read; such a source is empty

    @property
    def is_stored_text(self) -> bool:
        """Return whether the text is the stored bytes."""
        return self.format in CUTTABLE and not self.json_key

    @property
    def is_local(self) -> bool:
        return "://" not in self.location

    @property
    def modified_ns(self) -> int:
        """Return the modification time of a local file; 0 for other sources."""
        return os.stat(self.location).st_mtime_ns if self.is_local and self.location else 0


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


def parquet_source(source: Source, text_column: str | None, fits: Callable[[Any], bool] = is_text) -> Source:
    """Return the source with its column and row groups. Raises InputError if the file lacks such a column.

    text_column  None: the column "text", or the only column that fits
    fits         function of the Arrow type of a column: whether it can be the text column
    """
    wanted = text_column or "text"
    with parquet_file(source) as file:
        schema, metadata = file.schema_arrow, file.metadata
        texts = [column.name for column in schema if fits(column.type)]
        only = texts[0] if len(texts) == 1 and text_column is None else None  # a named column is used, never guessed
        column = wanted if wanted in schema.names else only
        has_nulls = column == wanted and str(schema.field(column).type) == "null"  # of a column without text
        if column is None or not (column in texts or has_nulls):
            columns = ", ".join(f"{column.name} ({column.type})" for column in schema)
            what = f"the column {wanted!r}" if column is None else f"text in the column {wanted!r}"
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
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: names of columns
        reason = str(error).splitlines()[0]
        raise DamagedInput(f"{source.name!r} is damaged Parquet: {reason}; write it again or leave it out") from None


def import_zstandard(name: str) -> Any:
    """Return the module that reads .zst files; imported only if there are any."""
    try:
        import zstandard
    except ImportError:
        raise InputError(f"{name!r} is compressed with zstd; to read it, pip install zstandard") from None
    return zstandard
