"""Write count tables and vocabularies to Parquet files, and read vocabularies back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mgpu_ngram.core.counts.arrow_numbers import numbers_of_column, numbers_to_arrow
from mgpu_ngram.core.counts.parquet_deltas import Copied, DeltaWriter, Page, RowGroup
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary, words_from_arrow
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.output import Sink, new_file
from mgpu_ngram.kernels.count.pack_deltas import numbers_of_word, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import STRING_BYTES, join_texts, unpack_ids

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

GROUP_ROWS = 1 << 18  # rows of a row group of text; a writing thread of a CPU holds one group, 15 to 40 MB
IDS_GROUP_ROWS = 1 << 20  # rows of a row group of ids; a writing thread of a CPU holds 25 to 40 MB
GROUP_BYTES = 1 << 28  # bytes of a row group's strings; a longer row gets its own group
BUFFER_BYTES = 4 << 20  # buffer of a file being written


def strings(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    """Return the words data[offsets[i]:offsets[i + 1]] as strings; invalid UTF-8 becomes U+FFFD."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    words = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    try:
        return words.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([word.decode("utf-8", "replace") for word in words.to_pylist()], pa.large_string())


def count_columns(order: int, columns: str) -> list[str]:
    """Return the names of the columns of a file of n-grams, `columns` "text" or "ids"."""
    return [*([f"id{n}" for n in range(1, order + 1)] if columns == "ids" else ["ngram"]), "count"]


def group_rows(columns: str) -> int:
    """Return the rows of a row group of n-grams; the last one of a file has fewer."""
    return IDS_GROUP_ROWS if columns == "ids" else GROUP_ROWS


class PartWriter:
    """Write consecutive tables to a Parquet file of n-grams and their counts.

    path        appears when the block ends and the file is complete; an older file is replaced
    order       of the tables
    vocabulary  symbol v has code v + 1
    as_text     words as strings; else as binary. Bytes are always binary, ids always lists of uint32
    columns     "text": a column `ngram`. "ids": an int32 column of vocabulary ids for each word, `id1`, `id2`, ...

    As a context manager it leaves no file after an exception. Afterwards `written` holds rows, bytes and
    crc32 of the file. The file's bytes depend only on the rows, not on their division into tables. Holds one
    row group in memory, and a buffer of BUFFER_BYTES if pyarrow writes the file. Several writers may run in several
    threads. Raises RunError when the disk is full.
    """

    written: dict[str, int]

    def __init__(self, path: str | Path, order: int, vocabulary: Vocabulary, as_text: bool, columns: str = "text"):
        self.path, self.order, self.vocabulary, self._columns = path, order, vocabulary, columns
        self._kind = ngram_type(vocabulary.unit, as_text)
        self._group_rows = group_rows(columns)
        self._rest: list[Table] = []  # rows that wait for their group to fill
        self._rows = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._sink, names = stack.enter_context(new_file(self.path)), count_columns(self.order, self._columns)
            self._writer: Any
            if self._columns == "text" and self.vocabulary.unit != "word":
                schema = pa.schema([pa.field(names[0], self._kind, False), pa.field("count", pa.int64(), False)])
                self._writer = stack.enter_context(_writer(self._sink, schema, ["count"]))
            else:
                kind = "int32" if self._columns == "ids" else str(self._kind)
                columns = [*((name, kind) for name in names[:-1]), ("count", "int64")]
                self._writer = stack.enter_context(DeltaWriter(self._sink, columns))
            stack.push(self._write_rest)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
        if kind is None:
            self.written = {"rows": self._rows, "bytes": self._sink.size_bytes, "crc32": self._sink.crc32}

    def add(self, table: Table, is_ours: bool = False) -> None:
        """Append a table in host memory; its rows follow all rows added before. It may be freed afterwards.

        is_ours  nothing else needs the table: its rows that wait for others are not copied
        """
        if table.order != self.order:
            raise ValueError(f"a table of order {table.order} does not belong to {self.path}, of order {self.order}")
        while (waiting := sum(map(len, self._rest))) + len(table) >= self._group_rows:
            group = _joined([*self._rest, _rows(table, 0, self._group_rows - waiting)])
            table, is_ours = _rows(table, self._group_rows - waiting, len(table)), False  # a view would keep all rows
            written = self._write_group(group)
            self._rest = [_copy(_rows(group, written, len(group)))] if written < len(group) else []
        if len(table):
            self._rest.append(table if is_ours else _copy(table))

    def add_groups(self, groups: Sequence[RowGroup], copied: Copied) -> None:
        """Append row groups that were encoded on a device. `add` must not be called for the same file.

        copied  ranges of the device's bytes -> a context with these in host memory
        """
        self._writer.write_copied(((rows, self._checked(pages)) for rows, pages in groups), copied)
        self._rows += sum(rows for rows, _ in groups)

    def _write_rest(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Write the waiting rows, unless an exception ended the block."""
        if kind is None and self._rest:
            table, row = _joined(self._rest), 0
            while row < len(table):
                row += self._write_group(_rows(table, row, len(table)))

    def _write_group(self, table: Table) -> int:
        """Write the first rows of a table as a row group, at most as many as fill a group; return their number."""
        if self._columns == "ids":
            self._write_ids(table)
            rows = len(table)
        elif self.vocabulary.unit == "word":
            rows = self._write_texts(table)
        else:
            ngrams = join_ngrams(_checked_ids(table, self.vocabulary), self.vocabulary, self._kind)
            rows = len(ngrams)
            batch = pa.record_batch([ngrams, numbers_to_arrow(table.counts[:rows])], self._writer.schema)
            self._writer.write_batch(batch, row_group_size=rows)
        self._rows += rows
        return rows

    def _write_ids(self, table: Table) -> None:
        columns = [numbers_of_word(table.keys, table.bits, n) for n in range(table.order)]
        columns.append(whole_numbers(np.ascontiguousarray(table.counts)))
        self._writer.write(len(table), self._checked(self._writer.pages(columns)))

    def _checked(self, pages: Iterable[Page]) -> Iterator[Page]:
        """Yield the pages of a row group. Raises ValueError if an id is outside the vocabulary."""
        ids = self.order if self._columns == "ids" else 0
        for n, page in enumerate(pages):
            if n < ids and page.found and not 0 <= page.found[0] <= page.found[1] < len(self.vocabulary):
                raise _codes_outside(self.order, self.vocabulary)
            yield page

    def _write_texts(self, table: Table) -> int:
        texts = join_texts(_checked_ids(table, self.vocabulary), self.vocabulary.texts, GROUP_BYTES)
        if not (rows := len(texts.prefix_R)):
            raise _long_ngram(table.order)
        columns = [texts, whole_numbers(np.ascontiguousarray(table.counts[:rows]))]
        self._writer.write(rows, self._writer.pages(columns))
        return rows


def _rows(table: Table, first: int, last: int) -> Table:
    """Return rows first to last - 1, a view."""
    return replace(table, keys=table.keys[:, first:last], counts=table.counts[first:last])


def _copy(table: Table) -> Table:
    return replace(table, keys=table.keys.copy(), counts=table.counts.copy())


def _joined(tables: Sequence[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    keys = np.concatenate([table.keys for table in tables], axis=1)
    return replace(tables[0], keys=keys, counts=np.concatenate([table.counts for table in tables]))


def ngram_type(unit: str, as_text: bool) -> pa.DataType:
    if unit == "id":
        return pa.list_(pa.field("element", pa.uint32(), False))
    return pa.string() if unit == "word" and as_text else pa.binary()


@contextmanager
def _writer(sink: Sink, schema: pa.Schema, dictionary: list[str]) -> Iterator[pq.ParquetWriter]:
    """Open a file for record batches."""
    with (
        # Without a buffer every small write waits for the GIL, which other writing threads hold.
        pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), BUFFER_BYTES) as stream,
        pq.ParquetWriter(
            stream,
            schema,
            compression="SNAPPY",  # 10 % faster than zstd 1 on 5-grams of real text, files 38 % larger
            use_dictionary=dictionary,
            write_page_checksum=True,
            store_schema=False,
        ) as writer,
    ):
        yield writer


def _checked_ids(table: Table, vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of a table's n-grams, (order, rows) uint32."""
    ids_NR = np.empty((table.order, len(table)), np.uint32)
    if unpack_ids(table.keys, table.bits, ids_NR) >= len(vocabulary):
        raise _codes_outside(table.order, vocabulary)
    return ids_NR


def _long_ngram(order: int) -> RunError:
    return RunError(f"an n-gram of order {order} has over {STRING_BYTES:,} bytes of text; count lower orders")


def _codes_outside(order: int, vocabulary: Vocabulary) -> ValueError:
    codes = f"1..{len(vocabulary)}, the codes of its vocabulary"
    return ValueError(f"a table of order {order} has codes outside {codes}")


def join_ngrams(ids_NR: np.ndarray, vocabulary: Vocabulary, kind: pa.DataType) -> pa.Array:
    """Return the n-grams of ids (order, rows) uint32 as text, or as lists of token ids; as many as fill a row group.

    kind  the type of the array, by `ngram_type`
    """
    N, R = ids_NR.shape
    if vocabulary.unit == "word":
        texts = join_texts(ids_NR, vocabulary.texts, GROUP_BYTES, share=False)
        if not (R := len(texts.suffix_R)):
            raise _long_ngram(N)
        offsets_R = np.zeros(R + 1, np.int32)
        np.cumsum(texts.suffix_R, out=offsets_R[1:])
        return pa.Array.from_buffers(kind, R, [None, pa.py_buffer(offsets_R), pa.py_buffer(texts.data)])
    offsets_R = np.arange(R + 1, dtype=np.int32) * np.int32(N)
    symbols = vocabulary.data.view(np.uint8 if vocabulary.unit == "byte" else "<u4")
    values = symbols[ids_NR.T.ravel()]
    if vocabulary.unit == "byte":
        return pa.Array.from_buffers(kind, R, [None, pa.py_buffer(offsets_R), pa.py_buffer(values)])
    return pa.Array.from_buffers(kind, R, [None, pa.py_buffer(offsets_R)], children=[numbers_to_arrow(values)])


def write_vocabulary(vocabulary: Vocabulary, path: str | Path, as_text: bool) -> dict[str, int]:
    """Write a vocabulary: columns id, symbol, count, first_source and first_offset, one row per symbol.

    The symbol of a word is a string (binary unless `as_text`), of a byte binary, of an id uint32.
    Returns rows, bytes and crc32, as `PartWriter.written`, and raises its errors.
    """
    kind = pa.uint32() if vocabulary.unit == "id" else ngram_type(vocabulary.unit, as_text)
    names = {"id": pa.int64(), "symbol": kind, "count": pa.int64()}
    names |= {"first_source": pa.int32(), "first_offset": pa.int64()}
    schema = pa.schema([pa.field(name, t, False) for name, t in names.items()])
    with new_file(path) as sink, _writer(sink, schema, dictionary=["count", "first_source"]) as writer:
        row = 0
        while row < len(vocabulary):
            symbols = _symbols(vocabulary, row, kind)
            rows = slice(row, row + len(symbols))
            columns = [vocabulary.counts_V, vocabulary.first_source_V, vocabulary.first_offset_V]
            counts, sources, offsets = (numbers_to_arrow(column[rows]) for column in columns)
            ids = numbers_to_arrow(np.arange(row, row + len(symbols)))
            batch = pa.record_batch([ids, symbols, counts, sources, offsets], schema)
            writer.write_batch(batch, row_group_size=len(symbols))
            row += len(symbols)
    return {"rows": len(vocabulary), "bytes": sink.size_bytes, "crc32": sink.crc32}


def _symbols(vocabulary: Vocabulary, row: int, kind: pa.DataType) -> pa.Array:
    """Return the symbols from `row` on that fill one row group."""
    if vocabulary.unit == "id":
        return numbers_to_arrow(vocabulary.data.view("<u4")[row : row + GROUP_ROWS])
    ends_V = vocabulary.offsets_V[row : row + GROUP_ROWS + 1]
    R = max(1, int(np.searchsorted(ends_V, ends_V[0] + GROUP_BYTES, "right")) - 1)
    if ends_V[R] - ends_V[0] > STRING_BYTES:
        raise RunError(
            f"word {row} has {ends_V[R] - ends_V[0]:,} bytes; a word can have {STRING_BYTES:,} at most: break it up"
        )
    offsets_R = (ends_V[: R + 1] - ends_V[0]).astype(np.int32)
    data = vocabulary.data[ends_V[0] : ends_V[R]]
    return pa.Array.from_buffers(kind, R, [None, pa.py_buffer(offsets_R), pa.py_buffer(data)])


def read_vocabulary(path: str | Path, unit: str) -> Vocabulary:
    """Return the vocabulary of a file from `write_vocabulary`. Raises InputError if the file cannot be used."""
    with reading(path):
        table = open_parquet(path, ["id", "symbol", "count", "first_source", "first_offset"]).read()
        symbols = table["symbol"] if unit == "id" else table["symbol"].cast(pa.large_binary())
    counts_V, sources_V, offsets_V = (
        numbers_of_column(table[n]).copy() for n in ("count", "first_source", "first_offset")
    )
    if unit == "id":
        data = numbers_of_column(table["symbol"]).copy().view(np.uint8)
        return Vocabulary(unit, np.arange(len(table) + 1) * 4, data, counts_V, sources_V, offsets_V)
    chunks = [words_from_arrow(chunk) for chunk in symbols.chunks]
    ends_V = np.cumsum(np.concatenate([[0], *(np.diff(ends) for ends, _ in chunks)]), dtype=np.int64)
    data = np.concatenate([np.empty(0, np.uint8), *(d for _, d in chunks)])
    return Vocabulary(unit, ends_V, data, counts_V, sources_V, offsets_V)


def open_parquet(path: str | Path, columns: Sequence[str]) -> pq.ParquetFile:
    """Open a Parquet file of ours. Raises InputError if the file is missing, damaged or has other columns."""
    with reading(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    if file.schema_arrow.names != list(columns):
        raise InputError(
            f"{path} has columns {', '.join(file.schema_arrow.names)}, not {', '.join(columns)}; count again"
        )
    return file


@contextmanager
def reading(path: str | Path) -> Iterator[Any]:
    """Turn exceptions while `path` is read into an InputError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} is missing, so the output of count is incomplete; count again") from None
    except MemoryError:  # also Arrow's
        raise
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is not UTF-8, as paths of Parquet files must be; rename it") from None
    except (OSError, pa.ArrowException) as error:
        line = " ".join(str(error).split())
        raise InputError(f"{path} is damaged or cannot be read: {line}; count again") from error
