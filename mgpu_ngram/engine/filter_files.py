"""Read shards of documents, and write them with new fields: JSON lines, Parquet, and WET files as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mgpu_ngram.core.compress import compressing
from mgpu_ngram.core.corpus import Chunk, Corpus, Piece
from mgpu_ngram.core.documents import first_text, stored_source
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.file_heads import HEAD_BYTES, json_keys, what_begins
from mgpu_ngram.core.files import find_files
from mgpu_ngram.core.json_records import BOM, RecordError, parse_record, with_fields
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.output import Sink
from mgpu_ngram.core.read_text import read_blocks
from mgpu_ngram.core.sources import CUTTABLE, Source, parquet_file, parquet_source
from mgpu_ngram.core.warc import MAGIC, TEXT, DamagedRecord, check_wet, document_of, read_records

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

LINES = "lines"  # field with the perplexity of each sentence


@dataclass
class Reject:
    """A record that could not be read, and the reason.

    at  its line, from 1; in a WET file the offset of its first byte in the decompressed text
    """

    at: int
    reason: str
    record: bytes


@dataclass
class Block:
    """Some documents of a shard, D of them.

    texts    of the documents
    records  JSON lines as (line, object); for Parquet the table of a row group
    """

    texts: list[str]
    records: Any
    rejects: list[Reject] = field(default_factory=list)

    def column(self, name: str) -> Sequence[Any]:
        """Return the value of a field for each document; None where it is missing, and for no name."""
        if isinstance(self.records, list):
            return [record.get(name) for _, record in self.records]
        return self.records[name].to_pylist() if name in self.records.column_names else [None] * len(self.texts)


Write = Callable[[Block, Mapping[str, Sequence[Any]], Sequence[bool]], None]


def open_shards(paths: list[str], text_column: str) -> Corpus:
    """Return the corpus of some files of documents, a shard each; `read_shard` reads them.

    paths        files, globs, directories or URLs: JSON lines and WET files, plain or compressed, and Parquet
    text_column  key or column of the text

    Raises InputError for files of another format. A key that the first line lacks is an error, too.
    """
    return Corpus(tuple(_shard(name, location, text_column) for name, location in find_files(paths)), "word")


def _shard(name: str, location: str, text_column: str) -> Source:
    source = stored_source(name, location)
    if source.format == "parquet":
        return parquet_source(source, text_column)
    head = first_text(source)
    if head.startswith(MAGIC):
        check_wet(name, head, text_column)
        return replace(source, column=text_column, warc=True)
    lines = head.removeprefix(BOM).split(b"\n")
    if head.strip() and not any(line.lstrip().startswith(b"{") for line in lines):
        what = what_begins(head[:HEAD_BYTES]) or "text"
        raise InputError(f"{name!r} is {what}, no JSON lines; give a JSON object with the key {text_column!r} a line")
    keys = json_keys(head.removeprefix(BOM))
    if keys and text_column not in keys:
        raise InputError(f"{name!r} lacks the key {text_column!r}; name one with text_column: {', '.join(keys)}")
    return replace(source, column=text_column)


def read_shard(source: Source, block_bytes: int) -> Iterator[Block]:
    """Yield the documents of a file in order.

    Empty lines of JSON lines, and other records of WET files, are passed over. Raises InputError for a damaged file,
    but damaged records of a WET file are rejects.
    """
    if source.format == "parquet":
        with parquet_file(source) as file:
            for g in range(file.metadata.num_row_groups):
                table = file.read_row_group(g)
                texts = table[source.column].cast(pa.large_binary()).to_pylist()
                yield Block([(text or b"").decode("utf-8", "replace") for text in texts], table)
        return
    if source.warc:
        yield from _wet_blocks(source, block_bytes)
        return
    chunk = Chunk(0, (Piece(0, source, 0, source.size_bytes, source.size_bytes),), source.size_bytes)
    number = 0
    for block in read_blocks(chunk, "word", block_bytes):
        found = Block([], [])
        for line in block.data.tobytes().split(b"\n")[:-1]:
            number += 1
            if not line.strip():
                continue
            try:
                record, text = parse_record(line, source.column)
            except RecordError as error:
                found.rejects.append(Reject(number, str(error), line))
            else:
                found.records.append((line, record))
                found.texts.append(text)
        yield found


def _wet_blocks(source: Source, block_bytes: int) -> Iterator[Block]:
    """Yield the texts of a WET file; a document has the line of JSON that is written for it."""
    found, size = Block([], []), 0
    for record in read_records(source):
        if isinstance(record, DamagedRecord):
            found.rejects.append(Reject(record.offset, record.reason, record.head))
            continue
        if record.headers.get("warc-type", "").lower() != TEXT:
            continue
        try:
            fields, text = document_of(record, source.column)
        except UnicodeDecodeError as error:
            found.rejects.append(Reject(record.offset, f"no UTF-8 at byte {error.start} of the text", record.content))
            continue
        found.records.append((json.dumps(fields, ensure_ascii=False).encode(), fields))
        found.texts.append(text)
        size += len(record.content)
        if size >= block_bytes:
            yield found
            found, size = Block([], []), 0
    yield found


def output_name(source: Source) -> str:
    """Return the name of the file that replaces a shard: its own; that of a WET file tells that it is JSON lines."""
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


def open_writer(sink: Sink, source: Source, fields: Sequence[str]) -> AbstractContextManager[Write]:
    """Return a context that yields write(block, columns, kept), in the format and compression of the source.

    fields   the new fields
    columns  values of each new field for all documents of the block; None: the document has none
    kept     whether each document is written
    """
    return _parquet_writer(sink, source, fields) if source.format == "parquet" else _json_writer(sink, source)


@contextmanager
def _json_writer(sink: Sink, source: Source) -> Iterator[Write]:
    def write(block: Block, columns: Mapping[str, Sequence[Any]], kept: Sequence[bool]) -> None:
        lines = []
        for d, (line, record) in enumerate(block.records):
            if kept[d]:
                fields = {name: values[d] for name, values in columns.items() if values[d] is not None}
                lines.append(with_fields(line, record, fields))
        if lines:
            file.write(b"\n".join([*lines, b""]))

    with compressing(sink, source.format) as file:
        yield write


@contextmanager
def _parquet_writer(sink: Sink, source: Source, fields: Sequence[str]) -> Iterator[Write]:
    others = {"words": pa.int64(), "oovs": pa.int64(), "bucket": pa.string(), LINES: pa.list_(pa.float64())}
    kinds = {name: others.get(name, pa.float64()) for name in fields}
    with parquet_file(source) as file:
        schema, metadata = file.schema_arrow, file.metadata
        groups = metadata.num_row_groups and metadata.num_columns
        codec = metadata.row_group(0).column(0).compression if groups else "SNAPPY"
    for name in fields:
        new, at = pa.field(name, kinds[name]), schema.get_field_index(name)
        schema = schema.append(new) if at < 0 else schema.set(at, new)

    def write(block: Block, columns: Mapping[str, Sequence[Any]], kept: Sequence[bool]) -> None:
        table = block.records
        arrays = [pa.array(columns[name], kinds[name]) if name in columns else table[name] for name in schema.names]
        table = pa.Table.from_arrays(arrays, schema=schema).filter(pa.array(kept, pa.bool_()))
        if len(table):
            file.write_table(table, row_group_size=len(table))

    compression = "none" if codec == "UNCOMPRESSED" else codec.lower()
    with pq.ParquetWriter(sink, schema, compression=compression) as file:
        yield write
