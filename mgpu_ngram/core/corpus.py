"""What a corpus is: its sources in a fixed order, and how they are cut into chunks."""

from __future__ import annotations

import glob
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .errors import InputError

MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([b]) + b"\x2a\x4d\x18": "zstd" for b in range(0x50, 0x60)},  # a skippable frame, as pzstd writes first
    b"PAR1": "parquet",
}
CUTTABLE = ("plain", "memory")  # bytes at any offset can be read
MEMORY_CHUNK_BYTES = 7 << 20  # with a line's end or a look-ahead a task stays below 8 MiB
LOOKAHEAD_BYTES = 64 << 10  # what a piece of an in-memory corpus carries past its end, for halos
TEXT_PER_STORED_BYTE = 3  # guess for compressed text; only balances chunks


class Lines:
    """Marks a list as lines of text: `Lines(["of the", "in the"])`. A bare list of str means paths."""

    def __init__(self, lines: Iterable[str | bytes]):
        if isinstance(lines, (str, bytes, bytearray)):
            raise InputError("Lines takes an iterable of lines, not one text; write Lines([text])")
        self.lines = lines


@dataclass(frozen=True)
class Source:
    """One input and what a worker needs to reopen it. Small, except that an in-memory one carries its bytes."""

    name: str  # as the user knows it
    format: str  # "plain", "gzip", "bz2", "xz", "zstd", "parquet" or "memory"
    size_bytes: int  # as stored
    location: str = ""  # absolute path or fsspec URL
    itemsize: int = 1  # bytes per token id; 1 for words and bytes
    column: str = ""  # text column of a Parquet file
    row_groups: tuple[int, ...] = ()  # bytes of that column in each row group, uncompressed
    data: bytes = field(default=b"", repr=False)  # of an in-memory corpus: bytes [data_start, data_start + len(data))
    data_start: int = 0

    @property
    def is_local(self) -> bool:
        return "://" not in self.location


@dataclass(frozen=True)
class Piece:
    """A part of one source: stored bytes [start, end), or row groups [start, end) of a Parquet file.

    Words: it owns the lines that START in it. Bytes and ids: it owns these bytes.
    """

    source_index: int
    source: Source
    start: int
    end: int
    size_bytes: int  # of text, a guess where the source is compressed


@dataclass(frozen=True)
class Chunk:
    """The work of one task: consecutive pieces."""

    index: int
    pieces: tuple[Piece, ...]
    size_bytes: int  # of text, a guess where sources are compressed


@dataclass(frozen=True)
class Corpus:
    """Sources in a fixed order; source_index counts them from 0."""

    sources: tuple[Source, ...]
    unit: str  # "word", "byte" or "id"

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all sources."""
        return sum(source.size_bytes for source in self.sources)

    def chunks(self, chunk_bytes: int) -> list[Chunk]:
        """Cut the corpus into about equal chunks of at most about `chunk_bytes`; reads nothing.

        Large plain sources are cut anywhere, Parquet between row groups (not for bytes, whose
        n-grams cross them), compressed files never. Depends on the corpus and chunk_bytes alone.
        """
        if chunk_bytes < 1:
            raise InputError(f"chunk_bytes is {chunk_bytes}; the least is 1")
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
    """(start, end, mass) of what may go to different chunks; plain sources are cut further."""
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
    if source.format == "memory" and unit == "word":  # at a line's end, for a piece carries nothing past its own bytes
        return source.data.find(b"\n", at - 1) + 1
    return at // source.itemsize * source.itemsize


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append, or lengthen the last piece if it goes on in this one."""
    last = pieces[-1] if pieces else None
    if last and last.source_index == piece.source_index and last.end == piece.start:
        pieces[-1] = replace(last, end=piece.end, size_bytes=last.size_bytes + piece.size_bytes)
    else:
        pieces.append(piece)


def _with_its_bytes(piece: Piece, unit: str) -> Piece:
    """Leave in the piece's source only what the piece needs, since it travels to a worker."""
    source = piece.source
    if source.format == "memory":
        first = max(0, piece.start - 1)  # the byte before tells that a line starts here
        end = piece.end if unit == "word" else piece.end + LOOKAHEAD_BYTES
        return replace(piece, source=replace(source, data=source.data[first:end], data_start=first))
    return replace(piece, source=replace(source, row_groups=()))


def open_corpus(inputs: Any, unit: str = "word", dtype: str = "uint16", text_column: str = "text") -> Corpus:
    """Return the corpus behind `inputs`.

    inputs       a str or Path, or a list or tuple of them: files, globs (** too), directories (all
                 files below, except hidden ones), fsspec URLs. Or an in-memory corpus: `Lines`, a
                 list of bytes, any other iterable of str or bytes (one line each, with or without
                 "\\n"), an Arrow string array, or for unit "id" integers. Or a corpus already open.
    unit         "word", "byte" or "id"
    dtype        "uint16" or "uint32", little-endian: the token ids of unit "id"
    text_column  of Parquet files

    Globs and directories expand sorted; a file named twice is counted twice. Formats are told by
    the first bytes of a file, not by its name. Raises InputError where there is nothing to read.
    """
    if isinstance(inputs, Corpus):
        return inputs
    if unit not in ("word", "byte", "id"):
        raise InputError(f'unit is {unit!r}; it must be "word", "byte" or "id"')
    if unit == "id" and dtype not in ("uint16", "uint32"):
        raise InputError(f'dtype is {dtype!r}; token ids are "uint16" or "uint32"')
    itemsize = np.dtype(dtype).itemsize if unit == "id" else 1
    if isinstance(inputs, (bytes, bytearray)):
        raise InputError("the corpus is one bytes object; wrap lines in a list: [text], or give a path as str")
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in inputs):
        files = _find_files([os.fspath(item) for item in inputs])
        return Corpus(tuple(_file_source(*file, unit, itemsize, text_column) for file in files), unit)
    lines = inputs.lines if isinstance(inputs, Lines) else inputs
    data = _id_bytes(lines, dtype) if unit == "id" else _line_bytes(lines)
    name = "<ids in memory>" if unit == "id" else "<lines in memory>"
    return Corpus((Source(name, "memory", len(data), itemsize=itemsize, data=data),), unit)


def _line_bytes(lines: Any) -> bytes:
    arrow = sys.modules.get("pyarrow")  # without it no array of its can be here
    if arrow and isinstance(lines, (arrow.Array, arrow.ChunkedArray)):
        if not is_text(lines.type):
            raise InputError(f"the corpus is an Arrow array of {lines.type}; lines are string or binary")
        chunks = lines.chunks if isinstance(lines, arrow.ChunkedArray) else [lines]
        return b"".join(arrow_lines(chunk).tobytes() for chunk in chunks)
    if not isinstance(lines, Iterable):
        raise InputError(f"the corpus is a {type(lines).__name__}; give paths, or an iterable of str or bytes lines")
    return b"".join(_line(i, line) for i, line in enumerate(lines))


def _line(i: int, line: Any) -> bytes:
    if isinstance(line, str):
        try:
            line = line.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InputError(f"line {i} of the corpus cannot be written as UTF-8: {error.reason}; give bytes") from None
    if not isinstance(line, bytes):
        raise InputError(f"line {i} of the corpus is a {type(line).__name__}; lines are str or bytes")
    return line if line.endswith(b"\n") else line + b"\n"


def _id_bytes(ids: Any, dtype: str) -> bytes:
    try:
        ids = np.asarray(ids if hasattr(ids, "__array__") else list(ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the corpus is no array of token ids: {error}; give paths, or integers") from None
    if ids.size == 0:
        return b""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"token ids are {ids.dtype} with shape {ids.shape}; give integers in one dimension")
    limit = np.iinfo(dtype).max
    for at in (int(ids.argmin()), int(ids.argmax())):
        if not 0 <= ids[at] <= limit:
            way_out = "give dtype uint32" if limit < ids[at] < 2**32 else "map the ids to this range"
            raise InputError(f"token {at} of the corpus is {ids[at]}; ids of {dtype} go from 0 to {limit}; {way_out}")
    return ids.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def is_text(arrow_type: Any) -> bool:
    """Whether an Arrow column of this type holds lines."""
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    texts = pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()
    return arrow_type in texts


def arrow_lines(values: Any) -> np.ndarray:
    """The values of an Arrow text array, each followed by a newline, as one uint8 array. A null is an empty line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = pa.large_binary()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type in (pa.string_view(), pa.binary_view()):
        values = values.cast(pa.binary())
    values = values.cast(binary).fill_null(pa.scalar(b"", binary))
    lines = pc.binary_join_element_wise(values, pa.scalar(b"", binary), pa.scalar(b"\n", binary))
    if len(lines) == 0:
        return np.empty(0, np.uint8)
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _find_files(paths: list[str]) -> list[tuple[str, str]]:
    """(name, location) of every file behind the paths."""
    found = [_expand(path) for path in paths]
    if not paths:
        raise InputError("the corpus names no input; give files, globs, directories or URLs")
    for path, files in zip(paths, found, strict=True):
        if not files:
            hint = "; lines of text, if these are some, are given as ng.Lines([...])" if not any(found) else ""
            raise InputError(f"input {path!r} {_why_nothing(path)}{hint}")
    return [file for files in found for file in files]


def _why_nothing(path: str) -> str:
    if os.path.isdir(os.path.expanduser(path)):
        return "is a directory without files (hidden ones are passed over); name the files"
    if glob.has_magic(path):
        return "matches no file; correct the pattern"
    return "does not exist or holds no file; correct the path"


def _expand(path: str) -> list[tuple[str, str]]:
    if "://" in path:
        with remote_errors(path):
            fs, root = filesystem(path)
            if "file" not in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
                if fs.isfile(root):
                    return [(path, path)]
                if fs.isdir(root):
                    found = [p for p in fs.find(root) if not _is_hidden(p, root)]
                else:
                    found = [p for p in fs.glob(root) if fs.isfile(p)] if glob.has_magic(root) else []
                return [(fs.unstrip_protocol(p), fs.unstrip_protocol(p)) for p in sorted(found)]
        path = root
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        folders = os.walk(path, onerror=_raise_unreadable)
        found = [os.path.join(folder, name) for folder, _, names in folders for name in names]
        found = [p for p in found if not _is_hidden(p, path) and os.path.isfile(p)]
    elif os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(f"input {path!r} is no regular file and cannot be read twice; pipe it to standard input")
        found = [path]
    else:
        found = [p for p in glob.glob(path, recursive=True) if os.path.isfile(p)]
    return [(p, os.path.abspath(p)) for p in sorted(found)]  # absolute: workers may stand elsewhere


def unreadable(error: OSError) -> InputError:
    """What to say of a local file or directory that cannot be opened."""
    return InputError(f"cannot read {error.filename!r}: {error.strerror}; check the path and its permissions")


def _raise_unreadable(error: OSError) -> None:
    raise unreadable(error)


def _is_hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path[len(root) :].split("/"))


def _file_source(name: str, location: str, unit: str, itemsize: int, text_column: str) -> Source:
    source = Source(name, "plain", 0, location, itemsize)
    if source.is_local:
        try:
            with open(location, "rb") as file:
                head, size_bytes = file.read(10), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise unreadable(error) from None
    else:
        with remote_errors(name):
            fs, path = filesystem(location)
            size_bytes = fs.info(path)["size"]
            head = fs.cat_file(path, start=0, end=min(10, size_bytes)) if size_bytes else b""
        if size_bytes is None:
            raise InputError(f"the server does not tell the size of {name!r}; download it first")
    format = next((format for magic, format in MAGIC.items() if head.startswith(magic)), "plain")
    if format == "bz2" and head[4:] not in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):  # text that starts with BZh
        format = "plain"
    source = replace(source, format=format, size_bytes=size_bytes)
    if format == "zstd":
        import_zstandard(name)
    if format == "parquet":
        if unit == "id":
            raise InputError(f"{name!r} is a Parquet file; token ids are read from raw binary files: export the column")
        return _parquet_source(source, text_column)
    if format == "plain" and size_bytes % itemsize:
        raise InputError(odd_size(name, size_bytes, itemsize))
    return source


def odd_size(name: str, size_bytes: int, itemsize: int) -> str:
    """The message for a file of ids that ends inside one."""
    return (f"{name!r} holds {size_bytes} bytes, no multiple of the {itemsize} bytes of one token id; "
            f"the file is cut short or its dtype is not uint{8 * itemsize}")  # fmt: skip


def _parquet_source(source: Source, text_column: str) -> Source:
    with parquet_file(source) as file:
        schema, metadata = file.schema_arrow, file.metadata
        texts = [column.name for column in schema if is_text(column.type)]
        column = text_column if text_column in schema.names else texts[0] if len(texts) == 1 else None
        if column is None or column not in texts:
            columns = ", ".join(f"{column.name} ({column.type})" for column in schema)
            what = f"the column {text_column!r}" if column is None else f"text in the column {text_column!r}"
            raise InputError(f"{source.name!r} lacks {what}; name one of its text columns; its columns: {columns}")
        leaf = [schema_column.path for schema_column in metadata.schema].index(column)
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
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{source.name!r} is damaged Parquet: {reason}; write it again or leave it out") from None


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    return url_to_fs(url)


@contextmanager
def remote_errors(name: str, where: str = "") -> Iterator[None]:
    """Turn whatever a file system raises into an InputError; drivers have error classes of their own."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise InputError(
            f"cannot read {name!r}{where}: {type(error).__name__}: {reason}; check the URL, its driver and your access"
        ) from None


def import_zstandard(name: str) -> Any:
    """The module that reads .zst files, needed only where there are some."""
    try:
        import zstandard
    except ImportError:
        raise InputError(f"{name!r} is compressed with zstd; to read it, pip install zstandard") from None
    return zstandard
