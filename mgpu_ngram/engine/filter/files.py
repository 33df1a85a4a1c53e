"""Read shards of documents, and write them with new fields: JSON lines, Parquet, and WET files as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mgpu_ngram.core.documents.json_lines import KIND, NUMBER, ODD, TEXT_END, JsonLines, join_lines, scan_json
from mgpu_ngram.core.documents.json_records import RecordError, parse_record, with_fields
from mgpu_ngram.core.documents.new_fields import NewField, fields_of, json_fields
from mgpu_ngram.core.documents.text_column import TextColumn, are_utf8
from mgpu_ngram.core.documents.warc import TEXT_RECORD, DamagedRecord, check_wet, document_of, read_records
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.compress import compressing_in_threads
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, Piece
from mgpu_ngram.core.inputs.file_sources import head_text, stored_source
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.inputs.read_text import read_lines
from mgpu_ngram.core.inputs.sources import CUTTABLE, Source, parquet_file, parquet_source
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.file_heads import (
    JSON_LINES,
    WARC_MAGIC,
    json_keys,
    text_format,
)
from mgpu_ngram.core.storage.output import Sink

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

LINES_FIELD = "lines"  # field with the perplexity of each sentence


@dataclass
class Reject:
    """A record that could not be read, and the reason.

    at  its line number, from 1; in a WET file the offset of its first byte in the decompressed file
    """

    at: int
    reason: str
    record: bytes


@dataclass
class JsonDocuments:
    """The D documents of JSON lines.

    lines  the lines of the documents
    tag    the key whose values `lines` has
    odd    (line, object) of the documents that `lines` leaves to the parser, by number
    """

    lines: JsonLines
    tag: str
    odd: dict[int, tuple[bytes, dict[str, Any]]]

    def column(self, name: str) -> list[Any]:
        """Return the value of a field of each document, or None; a value of the tag counts only if it is a string."""
        if name != self.tag:
            texts = (self.odd[d][0] if d in self.odd else self.lines.line(d) for d in range(len(self.lines.table_DC)))
            return [parse_record(text, name)[0].get(name) for text in texts]
        values = self.lines.tags()
        for d, (_, record) in self.odd.items():
            values[d] = record.get(name)
        return values


@dataclass
class DocumentBlock:
    """D documents of a shard.

    texts    texts of the documents
    records  JSON lines, or (line, object) of each document; for Parquet the table of a row group
    lines    number of lines of the file, including lines that are not documents; 0 for other formats
    """

    texts: Sequence[str]
    records: Any
    rejects: list[Reject] = field(default_factory=list)
    lines: int = 0

    def column(self, name: str) -> Sequence[Any]:
        """Return the value of a field for each document; None if it is missing, or if `name` is empty."""
        if not name:
            return [None] * len(self.texts)
        if isinstance(self.records, JsonDocuments):
            return self.records.column(name)
        if isinstance(self.records, list):
            return [record.get(name) for _, record in self.records]
        return self.records[name].to_pylist() if name in self.records.column_names else [None] * len(self.texts)


class Writer(Protocol):
    """Writes the kept documents. Any thread may call `render`; its results are written in order."""

    def render(self, block: DocumentBlock, fields: Mapping[str, NewField], kept_D: np.ndarray) -> Any:
        """Return the kept documents of a block, with their new fields, in the form to write."""

    def write(self, rendered: Any) -> None:
        """Write a result of `render`."""


def open_shards(paths: list[str], text_column: str, language_column: str = "") -> Corpus:
    """Return the corpus of files of documents; each file is a shard, which `read_shard` reads.

    paths            files, globs, directories or URLs: JSON lines and WET files, plain or compressed, and Parquet
    text_column      key or column of the text
    language_column  column of the language; "": none. Records of JSON lines may lack it

    Raises InputError for files of another format, for a key that the first lines lack, and for Parquet without the
    column or with two columns of one name.
    """
    files = find_files(paths)
    return Corpus(tuple(_shard(name, location, text_column, language_column) for name, location in files), "word")


def _shard(name: str, location: str, text_column: str, language_column: str) -> Source:
    source = stored_source(name, location)
    if source.format == "parquet":
        _check_names(source, language_column)
        return parquet_source(source, None if text_column == "text" else text_column)
    head = head_text(source, of_damaged=True)
    if head.startswith(WARC_MAGIC):
        check_wet(name, head, text_column)
        return replace(source, column=text_column, warc=True)
    begins = (line.lstrip().startswith(b"{") for line in head.split(b"\n"))  # records, perhaps with errors
    if text_format(name, head, source.format) != JSON_LINES and head.strip() and not any(begins):
        raise InputError(f"{name!r} is text, not JSON lines; give one JSON object with the key {text_column!r} a line")
    keys = json_keys(head)
    if keys and text_column not in keys:
        raise InputError(f"{name!r} lacks the key {text_column!r}; name one with text_column: {', '.join(keys)}")
    return replace(source, column=text_column)


def _check_names(source: Source, language_column: str) -> None:
    """Raise InputError for a Parquet file without a column of the language, or with two columns of one name."""
    with parquet_file(source) as file:
        names = file.schema_arrow.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{source.name!r} has two columns {twice!r}; rename one of them or leave it out")
    if language_column and language_column not in names:
        known = ", ".join(names)
        raise InputError(
            f"{source.name!r} lacks the column {language_column!r}; name one with language_column: {known}"
        )


def read_shard(
    source: Source, block_bytes: int, tag: str = "", new_fields: Sequence[str] = ()
) -> Iterator[Callable[[], DocumentBlock]]:
    """Yield functions, each of which returns a block of the documents of a file, in order; any thread may call them.

    tag         field that `DocumentBlock.column` reads
    new_fields  fields that documents get

    Skips empty lines of JSON lines, and other records of WET files. Damaged records of a WET file are rejects, and so
    is the damage of compressed JSON lines, whose lines before it are read. Raises InputError for damaged Parquet.
    """
    if source.format == "parquet":
        with parquet_file(source) as file:
            for g in range(file.metadata.num_row_groups):
                yield partial(_parquet_block, file.read_row_group(g), source.column)
        return
    if source.warc:
        for block in _wet_blocks(source, block_bytes):
            yield partial(_known, block)
        return
    chunk = Chunk(0, (Piece(0, source, 0, source.size_bytes, source.size_bytes),), source.size_bytes)
    damage: list[str] = []
    for text in read_lines(chunk, block_bytes, damage.append):
        yield partial(_json_block, text.data, source.column, tag, new_fields)
    for reason in damage:
        rest = _json_block(np.empty(0, np.uint8), source.column, tag, new_fields)
        yield partial(_known, replace(rest, rejects=[Reject(1, reason, b"")]))


def _known(block: DocumentBlock) -> DocumentBlock:
    return block


def _parquet_block(table: Any, column: str) -> DocumentBlock:
    values = table[column].cast(pa.large_binary()).combine_chunks().fill_null(b"")
    if len(values):
        offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
        if len(values.buffers()) > 2 and values.buffers()[2]:
            data = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
            if are_utf8(data, offsets - offsets[0]):
                return DocumentBlock(TextColumn(data, offsets[1:] - offsets[0]), table)
    return DocumentBlock(TextColumn.of(text.decode("utf-8", "replace") for text in values.to_pylist()), table)


def _json_block(data: np.ndarray, text_key: str, tag: str, new_fields: Sequence[str]) -> DocumentBlock:
    """Return the documents of lines; the places of rejects count from the first line, which is 1."""
    lines = scan_json(data, text_key, tag, new_fields)
    odd: dict[int, tuple[bytes, dict[str, Any]]] = {}
    texts: dict[int, str] = {}
    rejects: list[Reject] = []
    kept_L = np.ones(len(lines.table_DC), bool)
    for row in np.flatnonzero(lines.table_DC[:, KIND] == ODD).tolist():
        line = lines.line(row)
        d = row - len(rejects)
        try:
            record, text = parse_record(line, text_key)
        except RecordError as error:
            rejects.append(Reject(int(lines.table_DC[row, NUMBER]) + 1, str(error), line))
            kept_L[row] = False
        else:
            odd[d], texts[d] = (line, record), text
    lines.table_DC = lines.table_DC[kept_L] if rejects else lines.table_DC
    column = TextColumn(lines.texts, np.ascontiguousarray(lines.table_DC[:, TEXT_END]), texts)
    return DocumentBlock(column, JsonDocuments(lines, tag, odd), rejects, lines.lines)


def _wet_blocks(source: Source, block_bytes: int) -> Iterator[DocumentBlock]:
    """Yield the texts of a WET file; a document has the line of JSON that is written for it."""
    texts: list[str] = []
    found, size = DocumentBlock(texts, []), 0
    for record in read_records(source):
        if isinstance(record, DamagedRecord):
            found.rejects.append(Reject(record.offset, record.reason, record.head))
            continue
        if record.headers.get("warc-type", "").lower() != TEXT_RECORD:
            continue
        try:
            fields, text = document_of(record, source.column)
        except UnicodeDecodeError as error:
            found.rejects.append(Reject(record.offset, f"no UTF-8 at byte {error.start} of the text", record.content))
            continue
        found.records.append((json.dumps(fields, ensure_ascii=False).encode(), fields))
        texts.append(text)
        size += len(record.content)
        if size >= block_bytes:
            yield found
            texts = []
            found, size = DocumentBlock(texts, []), 0
    yield found


def output_name(source: Source) -> str:
    """Return the name of the output file of a shard: the name of the shard, or for a WET file a name for JSON lines."""
    name = source.name.rpartition("/")[2]
    if not source.warc:
        return name
    stem, dot, suffix = name.rpartition(".") if source.format not in CUTTABLE else (name, "", "")
    return stem.removesuffix(".wet").removesuffix(".warc") + ".jsonl" + dot + suffix


def reject_line(source: Source, reject: Reject) -> bytes:
    """Return a line of the rejects file: a JSON object with file, line or (of a WET file) byte, reason and record."""
    record = reject.record.decode("utf-8", "backslashreplace")
    place = {"byte" if source.warc else "line": reject.at}
    values = {"file": source.name, **place, "reason": reject.reason, "record": record}
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def open_writer(sink: Sink, source: Source, fields: Sequence[str], threads: int) -> AbstractContextManager[Writer]:
    """Return a context that yields a writer in the format and compression of the source.

    fields   the new fields
    threads  threads that compress JSON lines
    """
    if source.format == "parquet":
        return _ParquetWriter.open(sink, source, fields)
    return _JsonWriter.open(sink, source, threads)


class _JsonWriter:
    def __init__(self, write: Callable[[Any], Any]):
        self.write = write

    @classmethod
    @contextmanager
    def open(cls, sink: Sink, source: Source, threads: int) -> Iterator[Writer]:
        with compressing_in_threads(sink, source.format, threads) as file:
            yield cls(sink.append if file is sink else file.write)

    def render(self, block: DocumentBlock, fields: Mapping[str, NewField], kept_D: np.ndarray) -> Any:
        records = block.records
        if isinstance(records, JsonDocuments):
            D = len(block.texts)
            kept = {d: records.odd[d] for d in records.odd if kept_D[d]}
            changed = {d: with_fields(*pair, fields_of(fields, d), fields) for d, pair in kept.items()}
            ends = np.zeros(D + 1, np.int64)
            for d, line in changed.items():
                ends[d + 1] = len(line)
            odd = np.frombuffer(b"".join(changed.values()), np.uint8)
            return join_lines(records.lines, kept_D, json_fields(fields, D), (np.cumsum(ends), odd))
        pairs = ((d, *records[d]) for d in np.flatnonzero(kept_D).tolist())
        return b"".join(with_fields(line, record, fields_of(fields, d), fields) + b"\n" for d, line, record in pairs)


class _ParquetWriter:
    def __init__(self, file: Any, schema: Any, kinds: Mapping[str, Any]):
        self._file, self._schema, self._kinds = file, schema, kinds

    @classmethod
    @contextmanager
    def open(cls, sink: Sink, source: Source, fields: Sequence[str]) -> Iterator[Writer]:
        others = {"words": pa.int64(), "oovs": pa.int64(), "bucket": pa.string(), LINES_FIELD: pa.list_(pa.float64())}
        kinds = {name: others.get(name, pa.float64()) for name in fields}
        with parquet_file(source) as file:
            schema, metadata = file.schema_arrow, file.metadata
            groups = metadata.num_row_groups and metadata.num_columns
            codec = metadata.row_group(0).column(0).compression if groups else "SNAPPY"
        for name in fields:
            new, at = pa.field(name, kinds[name]), schema.get_field_index(name)
            schema = schema.append(new) if at < 0 else schema.set(at, new)
        written = [field if _is_view(field.type) else field.with_type(_without_views(field.type)) for field in schema]
        schema = pa.schema(written, schema.metadata)
        compression = "none" if codec == "UNCOMPRESSED" else codec.lower()
        with pq.ParquetWriter(sink, schema, compression=compression) as file:
            yield cls(file, schema, kinds)

    def render(self, block: DocumentBlock, fields: Mapping[str, NewField], kept_D: np.ndarray) -> Any:
        table, kinds = block.records, self._kinds
        arrays = [fields[name].arrow(kinds[name]) if name in fields else table[name] for name in self._schema.names]
        plain = [_cast(array, _without_views(array.type)) for array in arrays]
        kept = pa.Table.from_arrays(plain, self._schema.names).filter(pa.array(kept_D, pa.bool_()))
        return pa.Table.from_arrays(list(map(_cast, kept.columns, self._schema.types)), schema=self._schema)

    def write(self, rendered: Any) -> None:
        if len(rendered):
            self._file.write_table(rendered, row_group_size=len(rendered))


def _is_view(kind: Any) -> bool:
    return kind in (pa.string_view(), pa.binary_view())


def _cast(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)


def _without_views(kind: Any) -> Any:
    """Return the type with plain strings in place of views of strings, which Arrow neither filters nor cuts."""
    if _is_view(kind):
        return pa.large_string() if kind == pa.string_view() else pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(_plain_field(kind.value_field))
    return kind


def _plain_field(field: Any) -> Any:
    return field.with_type(_without_views(field.type))
