"""A corpus: its sources in a fixed order, cut into chunks."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.file_sources import file_source, open_files, refuse_column
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.inputs.in_memory import Lines, id_bytes, line_bytes
from mgpu_ngram.core.inputs.sources import CUTTABLE, Source

MEMORY_CHUNK_BYTES = 7 << 20  # with the end of a line or a look-ahead, a task stays below 8 MiB
LOOKAHEAD_BYTES = 64 << 10  # bytes that a piece of an in-memory corpus carries past its end, for halos
TEXT_PER_STORED_BYTE = 3  # an estimate for compressed text, used only to balance chunks


@dataclass(frozen=True)
class Piece:
    """A part of one source: stored bytes [start, end), or row groups [start, end) of a Parquet file.

    For words, a piece owns the lines that START in it. For bytes and ids, it owns its bytes.
    """

    source_index: int
    source: Source
    start: int
    end: int
    size_bytes: int  # bytes of text, estimated if the source is compressed


@dataclass(frozen=True)
class Chunk:
    """The work of one task: consecutive pieces."""

    index: int
    pieces: tuple[Piece, ...]
    size_bytes: int  # bytes of text, estimated if sources are compressed

    def __str__(self) -> str:
        """Return the name for messages, such as "chunk 3: books.txt, bytes 0 to 1,000 and 2 more"."""
        if not self.pieces:
            return f"chunk {self.index}: no text"
        piece = self.pieces[0]
        unit = "row groups" if piece.source.format == "parquet" else "bytes"
        more = f" and {len(self.pieces) - 1:,} more" if len(self.pieces) > 1 else ""
        return f"chunk {self.index}: {piece.source.name}, {unit} {piece.start:,} to {piece.end:,}{more}"


@dataclass(frozen=True)
class Corpus:
    """Sources in a fixed order; a source_index is an index into them."""

    sources: tuple[Source, ...]
    unit: str  # "word", "byte" or "id"

    @property
    def local_files(self) -> list[str]:
        """Return the names of the sources that are files of this host."""
        return [source.name for source in self.sources if source.location and source.is_local]

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all sources."""
        return sum(source.size_bytes for source in self.sources)

    @property
    def text_bytes(self) -> int:
        """Bytes of text, estimated if sources are compressed."""
        return sum(mass for source in self.sources for *_, mass in _parts(source, self.unit))

    @property
    def described(self) -> list[dict[str, Any]]:
        """Return the sources as manifests describe them."""
        return [{"name": s.name, "size_bytes": s.size_bytes} for s in self.sources]

    @property
    def states(self) -> list[dict[str, Any]]:
        """Return the sources as checkpoints describe them, with fields that change when a source changes."""
        return [
            named | {"modified": s.modified_ns, "crc32": zlib.crc32(s.data)}
            for named, s in zip(self.described, self.sources, strict=True)
        ]

    def chunks(self, chunk_bytes: int) -> list[Chunk]:
        """Cut the corpus into nearly equal chunks of at most about `chunk_bytes`; reads no text.

        Large plain sources are cut anywhere. Parquet files are cut between row groups, except for bytes,
        whose n-grams cross row groups. Compressed files are never cut. The result depends only on the corpus
        and chunk_bytes.
        """
        if chunk_bytes < 1:
            raise InputError(f"chunk_bytes is {chunk_bytes} but must be at least 1")
        if any(source.format == "memory" for source in self.sources):
            chunk_bytes = min(chunk_bytes, MEMORY_CHUNK_BYTES)
        parts = [(index, *part) for index, source in enumerate(self.sources) for part in _parts(source, self.unit)]
        total = sum(mass for *_, mass in parts)
        K = max(1, -(-total // chunk_bytes))
        pieces_K: dict[int, list[Piece]] = {}
        at = 0  # mass before the part, so that chunk k is [k, k + 1) * total / K
        for index, start, end, mass in parts:
            source = self.sources[index]
            points = [start, end]
            if source.format in CUTTABLE and 4 * mass * K > total:  # smaller ones stay whole
                bounds = (-(-k * total // K) - at for k in range(at * K // total + 1, -(-(at + mass) * K // total)))
                points = sorted({0, mass, *(_cut(source, self.unit, bound) for bound in bounds)})
            for a, b in itertools.pairwise(points):
                middle = at + ((a + b) // 2 if source.format in CUTTABLE else mass // 2)
                pieces = pieces_K.setdefault(min(middle * K // total, K - 1) if total else 0, [])
                _add(pieces, Piece(index, source, a, b, b - a if source.format in CUTTABLE else mass))
            at += mass
        chunks = [tuple(_with_its_bytes(piece, self.unit) for piece in pieces_K[k]) for k in sorted(pieces_K)]
        return [Chunk(i, pieces, sum(piece.size_bytes for piece in pieces)) for i, pieces in enumerate(chunks)]


def _parts(source: Source, unit: str) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, mass) of parts that may go to different chunks; plain sources are cut further."""
    if source.format in CUTTABLE:
        yield 0, source.size_bytes, source.size_bytes
    elif source.format == "parquet" and unit == "word" and source.row_groups:
        for g, mass in enumerate(source.row_groups):
            yield g, g + 1, mass
    elif source.format == "parquet":
        yield 0, len(source.row_groups), sum(source.row_groups)
    else:
        yield 0, source.size_bytes, TEXT_PER_STORED_BYTE * source.size_bytes


def _cut(source: Source, unit: str, at: int) -> int:
    if source.format == "memory" and unit == "word":  # at a line's end: pieces carry only their own bytes
        return source.data.find(b"\n", at - 1) + 1
    return at // source.itemsize * source.itemsize


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append the piece, or extend the last piece if it continues there."""
    last = pieces[-1] if pieces else None
    if last and last.source_index == piece.source_index and last.end == piece.start:
        pieces[-1] = replace(last, end=piece.end, size_bytes=last.size_bytes + piece.size_bytes)
    else:
        pieces.append(piece)


def _with_its_bytes(piece: Piece, unit: str) -> Piece:
    """Return the piece with only the bytes of its source that it needs, since it travels to a worker."""
    source = piece.source
    if source.format == "memory":
        first = max(0, piece.start - 1)  # the byte before shows whether a line starts here
        end = piece.end if unit == "word" else piece.end + LOOKAHEAD_BYTES
        return replace(piece, source=replace(source, data=source.data[first:end], data_start=first))
    return replace(piece, source=replace(source, row_groups=()))


def open_corpus(inputs: Any, unit: str = "word", dtype: str = "uint16", text_column: str | None = None) -> Corpus:
    """Return the corpus of `inputs`.

    inputs       a str or Path, or a list or tuple of them: files, globs (also **), directories (all
                 files below, except hidden ones), fsspec URLs. Or an in-memory corpus: `Lines`, a
                 list of bytes, any other iterable of str or bytes (one line each, with or without
                 "\\n"), an Arrow string array, or integers for unit "id". Or an open corpus.
    unit         "word", "byte" or "id"
    dtype        "uint16" or "uint32", little-endian: the token ids of unit "id"
    text_column  column of Parquet files, or key of JSON lines; None: "text", or the only column of text

    Globs and directories expand in sorted order; a file named twice is counted twice. The first bytes
    of a file determine its format; the names .json, .jsonl, .ndjson, .csv and .tsv say what it must be. Raises
    InputError if there is nothing to read, and for files that hold no text.
    """
    if isinstance(inputs, Corpus):
        return inputs
    if unit not in ("word", "byte", "id"):
        raise InputError(f'unit is {unit!r} but must be "word", "byte" or "id"')
    if unit == "id" and dtype not in ("uint16", "uint32"):
        raise InputError(f'dtype is {dtype!r} but token ids are "uint16" or "uint32"; convert them')
    itemsize = np.dtype(dtype).itemsize if unit == "id" else 1
    if isinstance(inputs, (bytes, bytearray)):
        raise InputError("the corpus is one bytes object; wrap lines in a list: [text], or give a path as str")
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in inputs):
        files = find_files([os.fspath(item) for item in inputs])
        sources = tuple(open_files(file_source, [(*file, unit, itemsize, text_column) for file in files]))
        refuse_column(text_column, sources, unit)
        return Corpus(sources, unit)
    if isinstance(inputs, (list, tuple)) and {str, bytes} <= set(map(type, inputs)):
        raise InputError("the corpus mixes str (paths) and bytes (lines); give paths alone, or ng.Lines([...])")
    lines = inputs.lines if isinstance(inputs, Lines) else inputs
    if hasattr(lines, "to_delayed") and getattr(lines, "ndim", 1) == 1:  # a Dask bag, series or array
        lines = (line for block in np.ravel(lines.to_delayed()) for line in block.compute())
    if isinstance(lines, Mapping) or hasattr(lines, "columns"):  # iterating them gives names, not lines
        kind = type(lines).__name__
        raise InputError(
            f"the corpus is of type {kind} but must be lines of text; give a column of it, such as table['text']"
        )
    data = id_bytes(lines, dtype) if unit == "id" else line_bytes(lines)
    name = "<ids in memory>" if unit == "id" else "<lines in memory>"
    return Corpus((Source(name, "memory", len(data), itemsize=itemsize, data=data),), unit)


def open_list(path: str | os.PathLike[str]) -> Corpus:
    """Return the corpus of a list, such as a vocabulary: a file of lines that is not running text, by any name.

    `read_text.read_list` reads it. Raises InputError as `open_corpus`.
    """
    [file] = find_files([os.fspath(path)])
    return Corpus((file_source(*file, "list", 1, None),), "word")
