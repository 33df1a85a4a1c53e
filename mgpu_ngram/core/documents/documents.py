"""Read documents: texts or lists of tokens, from plain text, JSON lines and Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.counts.vocabulary import words_from_arrow
from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, Piece
from mgpu_ngram.core.inputs.file_sources import key_and_mark, open_files, stored_source
from mgpu_ngram.core.inputs.in_memory import arrow_lines, is_text
from mgpu_ngram.core.inputs.json_column import json_column
from mgpu_ngram.core.inputs.read_text import read_lines
from mgpu_ngram.core.inputs.sources import Source, parquet_file, parquet_source
from mgpu_ngram.core.inputs.streams import place_in
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.utf8 import to_text

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

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


def open_documents(files: Iterable[tuple[str, str]], text_column: str | None = None) -> Corpus:
    """Return the corpus of files of documents; `read_documents` reads its chunks.

    files        (name, location) of each, as `find_files` returns them: plain text, a document a line; JSON lines;
                 Parquet. Text and JSON lines may be compressed
    text_column  column or key that holds a document: a text, or a list of tokens; None: "text", or the only column

    A file that is damaged from its start becomes an empty source with the `damage`.
    """
    return Corpus(tuple(open_files(_source, [(*file, text_column) for file in files])), "word")


def _source(name: str, location: str, text_column: str | None) -> Source:
    source = stored_source(name, location)
    try:
        if source.format == "parquet":
            return parquet_source(source, text_column, lambda kind: is_text(kind) or _is_text_list(kind))
        key, mark_bytes = key_and_mark(source, text_column, of_damaged=True)
        return replace(source, column=key, mark_bytes=mark_bytes)
    except DamagedInput as error:
        return Source(name, "memory", 0, location, damage=str(error))


def read_documents(
    chunk: Chunk, block_bytes: int, as_strings: bool = False, report: Callable[[str], None] | None = None
) -> Iterator[TextDocuments]:
    """Yield the documents of a chunk in order, in blocks of about `block_bytes` of text.

    as_strings  yield texts as lists of str, which keep newlines; in `JoinedTexts`, newlines become spaces

    report  called with the damage of each line and of each file that is damaged. A damaged line of JSON is left out,
            and so are lines from the damage of compressed data on. Rows of Parquet are empty documents from the damage
            of their row group on. None: DamagedInput is raised

    A null is an empty document. Raises InputError for texts and lists of tokens among each other.
    """
    for piece in chunk.pieces:
        if piece.source.damage:
            if report is None:
                raise DamagedInput(piece.source.damage)
            report(piece.source.damage)
            continue
        if piece.source.format == "parquet":
            for values in parquet_batches(piece, piece.source.column, block_bytes, report):
                yield _from_arrow(values, piece.source.name, as_strings)
            continue
        alone = Chunk(chunk.index, (piece,), piece.size_bytes)
        for block in read_lines(alone, block_bytes, report):
            if piece.source.column:
                place = partial(_place, piece.source, int(block.offsets_S[0]))
                values = json_column(block.data.tobytes(), piece.source.column, place, lists=True, report=report)
                yield _from_arrow(values, piece.source.name, as_strings)
            elif as_strings:
                yield to_text(block.data.tobytes()).split("\n")[:-1]
            else:
                yield JoinedTexts(block.data)


def _place(source: Source, start: int, offset: int) -> str:
    return place_in(source, start + offset)


def parquet_batches(piece: Piece, column: str, block_bytes: int, report: Callable[[str], None] | None) -> Iterator[Any]:
    """Yield the values of a column of row groups, as Arrow arrays; nulls from the damage of a row group on."""
    source = piece.source
    for g in range(piece.start, piece.end):
        left = 0
        try:
            with parquet_file(source) as file:
                metadata = file.metadata.row_group(g)
                left = metadata.num_rows
                row_bytes = metadata.total_byte_size // max(left, 1) + 1
                rows = max(1, min(block_bytes // row_bytes, BATCH_ROWS))
                for batch in file.iter_batches(rows, row_groups=[g], columns=[column], use_threads=False):
                    left -= len(batch)
                    yield batch.column(0)
        except DamagedInput as error:
            if report is None:
                raise
            report(f"{error} (row group {g:,})")
            yield pa.nulls(left)


def _is_text_list(kind: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and is_text(kind.value_type)


def _from_arrow(values: Any, name: str, as_strings: bool) -> TextDocuments:
    """Return the documents of an Arrow array of texts or of lists of tokens."""
    import pyarrow.compute as pc

    if pa.types.is_null(values.type):
        values = values.cast(pa.binary())
    if is_text(values.type) and as_strings:
        return [to_text(text) for text in values.cast(pa.binary()).fill_null(b"").to_pylist()]
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
