"""Read documents: texts or lists of tokens, from plain text, JSON lines and Parquet files."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import words_from_arrow
from mgpu_ngram.core.documents.warc import WARC_MAGIC
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.byte_ranges import reader
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, Piece
from mgpu_ngram.core.inputs.decompress import decompressed
from mgpu_ngram.core.inputs.in_memory import arrow_lines, is_text
from mgpu_ngram.core.inputs.read_text import read_blocks
from mgpu_ngram.core.inputs.sources import Source, import_zstandard, parquet_file, parquet_source, stored_head
from mgpu_ngram.core.inputs.streams import place_in
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.file_heads import (
    HEAD_BYTES,
    JSON_LINES,
    PARQUET,
    compression,
    json_keys,
    refuse_array,
    refuse_as_text,
    what_begins,
)

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

JSON_NAME = re.compile(r"\.(json|jsonl|ndjson)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
BATCH_ROWS = 1 << 14  # rows of a Parquet file that are read at once, at most


@dataclass(frozen=True)
class JoinedTexts:
    """The texts of documents: data (B,) uint8, each text followed by a newline; texts contain no newlines."""

    data: np.ndarray


@dataclass(frozen=True)
class TokenLists:
    """The tokens of D documents.

    starts_D1   (D + 1,) int64: document d has the tokens starts_D1[d] to starts_D1[d + 1]
    offsets_T1  (T + 1,) int64
    data        uint8: token t is data[offsets_T1[t]:offsets_T1[t + 1]]
    """

    starts_D1: np.ndarray
    offsets_T1: np.ndarray
    data: np.ndarray


TextDocuments = JoinedTexts | TokenLists | list[str]


def open_documents(files: Iterable[tuple[str, str]], text_column: str = "text") -> Corpus:
    """Return the corpus of files of documents; `read_documents` reads its chunks.

    files        (name, location) of each, as `find_files` returns them: plain text, a document a line; JSON lines;
                 Parquet. Text and JSON lines may be compressed
    text_column  column or key that holds a document: a text, or a list of tokens
    """
    return Corpus(tuple(_source(name, location, text_column) for name, location in files), "word")


def head_text(source: Source) -> bytes:
    """Return the first bytes of a file, decompressed: HEAD_BYTES or more unless the file is shorter.

    Raises InputError for damaged data; but of a WARC file, returns the bytes before the damage, which `read_records`
    skips.
    """
    found = b""
    with reader(source) as read:
        if source.format == "plain":
            head = np.empty(min(HEAD_BYTES, source.size_bytes), np.uint8)
            read(0, head)
            return head.tobytes()
        try:
            for text in decompressed(source, read, None):
                found += text.tobytes()
                if len(found) >= HEAD_BYTES:
                    break
        except InputError:
            if not found.startswith(WARC_MAGIC):
                raise
    return found


def stored_source(name: str, location: str) -> Source:
    """Return the source of a file as stored: its size and its format, without checking the contents."""
    head, size_bytes = stored_head(name, location)
    format = "parquet" if head.startswith(PARQUET) else compression(head) or "plain"
    if format == "zstd":
        import_zstandard(name)
    return Source(name, format, size_bytes, location)


def _source(name: str, location: str, text_column: str) -> Source:
    source = stored_source(name, location)
    if source.format == "parquet":
        return parquet_source(source, text_column, lambda kind: is_text(kind) or _is_text_list(kind))
    head = head_text(source)
    if what_begins(head) != JSON_LINES:
        suffix = JSON_NAME.search(name)
        if suffix:  # else a text that begins with a bracket
            refuse_array(name, head, source.format)
        refuse_as_text(name, head[:HEAD_BYTES], text_column)
        if suffix and suffix[1] != "json" and head.strip():
            raise InputError(
                f"{name!r} at byte 0 is not a JSON object; correct the line, or rename the file if it is plain text"
            )
        return source
    keys = json_keys(head)
    if keys and text_column not in keys:
        raise InputError(f"{name!r} lacks the key {text_column!r}; name one with text_column: {', '.join(keys)}")
    return replace(source, column=text_column)


def read_documents(chunk: Chunk, block_bytes: int, as_strings: bool = False) -> Iterator[TextDocuments]:
    """Yield the documents of a chunk in order, in blocks of about `block_bytes` of text.

    as_strings  yield texts as lists of str, which keep newlines; in `JoinedTexts`, newlines become spaces

    A null is an empty document. Raises InputError for damaged files, and for values that are neither texts nor lists
    of tokens.
    """
    for piece in chunk.pieces:
        if piece.source.format == "parquet":
            yield from _read_parquet(piece, block_bytes, as_strings)
            continue
        for block in read_blocks(Chunk(chunk.index, (piece,), piece.size_bytes), "word", block_bytes):
            if piece.source.column:
                values = _parse_json(block.data, piece.source, int(block.offsets_S[0]))
                yield _from_arrow(values, piece.source.name, as_strings)
            elif as_strings:
                yield block.data.tobytes().decode("utf-8", "surrogateescape").split("\n")[:-1]
            else:
                yield JoinedTexts(block.data)


def _read_parquet(piece: Piece, block_bytes: int, as_strings: bool) -> Iterator[TextDocuments]:
    source = piece.source
    with parquet_file(source) as file:
        for g in range(piece.start, piece.end):
            metadata = file.metadata.row_group(g)
            row_bytes = metadata.total_byte_size // max(metadata.num_rows, 1) + 1
            rows = max(1, min(block_bytes // row_bytes, BATCH_ROWS))
            for batch in file.iter_batches(rows, row_groups=[g], columns=[source.column], use_threads=False):
                yield _from_arrow(batch.column(0), source.name, as_strings)


def _is_text_list(kind: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and is_text(kind.value_type)


def _from_arrow(values: Any, name: str, as_strings: bool) -> TextDocuments:
    """Return the documents of an Arrow array of texts or of lists of tokens."""
    import pyarrow.compute as pc

    if is_text(values.type) and as_strings:
        return [text.decode("utf-8", "surrogateescape") for text in values.cast(pa.binary()).fill_null(b"").to_pylist()]
    if is_text(values.type):
        data = arrow_lines(values)
        if np.count_nonzero(data == 10) > len(values):
            binary = values.cast(pa.large_binary())
            data = arrow_lines(pc.replace_substring(binary, pattern=b"\n", replacement=b" "))
        return JoinedTexts(data)
    tokens = pc.list_flatten(values)
    if tokens.null_count:
        raise InputError(f"{name!r} has a null in a list of tokens; leave it out")
    lengths_D = pc.fill_null(pc.list_value_length(values), 0)
    starts_D1 = np.concatenate([[0], np.cumsum(lengths_D.to_numpy(zero_copy_only=False), dtype=np.int64)])
    if pa.types.is_dictionary(tokens.type):
        tokens = tokens.dictionary_decode()
    return TokenLists(starts_D1, *words_from_arrow(tokens.cast(pa.binary()).cast(pa.large_binary())))


def _parse_json(data: np.ndarray, source: Source, offset: int) -> Any:
    """Return the values of one key of JSON lines as an Arrow array of texts, or of lists of them."""
    from pyarrow import json as pj

    key, lines = source.column, data.tobytes()
    first = next((line for line in lines.split(b"\n", 64) if line.strip()), b"{}")
    try:
        is_list = isinstance(json.loads(first).get(key), list)
    except (ValueError, RecursionError, AttributeError):
        is_list = False
    kind = pa.list_(pa.string()) if is_list else pa.string()
    parse = pj.ParseOptions(pa.schema([(key, kind)]), unexpected_field_behavior="ignore")
    try:
        read = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        values = pj.read_json(pa.BufferReader(lines), read, parse).column(0).combine_chunks()
        if not values.null_count and len(values) == lines.count(b"\n"):
            return values
    except pa.ArrowException:
        pass  # json.loads finds the line that is wrong
    plain = list(_plain_json(lines, source, offset))
    is_list = any(isinstance(value, list) for value in plain)
    return pa.array(plain, pa.list_(pa.string()) if is_list else pa.string())


def _plain_json(lines: bytes, source: Source, offset: int) -> Iterator[Any]:
    """Yield the value of each line. Raises InputError for the first that is neither a text nor a list of tokens."""
    kinds = set()
    for line in lines.split(b"\n")[:-1]:
        where, key = place_in(source, offset), source.column
        offset += len(line) + 1
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deep")
            raise InputError(f"{where} is not a JSON object: {reason}; correct the line, or leave it out") from None
        if not isinstance(found, dict) or key not in found:
            what = f"lacks the key {key!r}" if isinstance(found, dict) else f"is {type(found).__name__}, not an object"
            raise InputError(f"{where} {what}; give each line an object with this key, null for an empty document")
        value = found[key]
        kinds |= {type(value)} - {type(None)}
        tokens = value if isinstance(value, list) else [value or ""]
        if len(kinds) > 1 or not all(isinstance(token, str) for token in tokens):
            raise InputError(
                f"{where} has {reprlib.repr(value)} in {key!r}; give a text, or a list of str, on every line"
            )
        yield [_encoded(token) for token in tokens] if isinstance(value, list) else value and _encoded(value)


def _encoded(text: str) -> str:
    """Return the text without halves of surrogate pairs, which UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()
