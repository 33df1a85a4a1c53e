"""Write integers and texts to a Parquet file as differences from the row before, in compiled code.

Integers are packed differences (DELTA_BINARY_PACKED); a text is stored without the words that it shares with the
text before (DELTA_BYTE_ARRAY). The format is described at https://github.com/apache/parquet-format by Encodings.md and,
in Thrift's compact protocol, by parquet.thrift. pyarrow also writes pages of these encodings, but takes four times as
long. A column of a row group is one page without compression.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.storage.crc import append_crc32
from mgpu_ngram.core.storage.output import Sink
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.kernels.compile_cpu import read_only
from mgpu_ngram.kernels.count.pack_deltas import Numbers, most_bytes, pack_page, scalars, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import Texts

MAGIC = b"PAR1"
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12  # types of Thrift
DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, RLE = 5, 7, 3  # encodings
KINDS = {"int32": 1, "int64": 2, "string": 6, "binary": 6}  # types of Parquet, by kind of column
ITEM_BYTES = {"int32": 4, "int64": 8}
MAX_PAGE_BYTES = 2**31 - 1
WRITTEN_BYTES = 16 << 20  # bytes of pages that are copied and written together
BYTES = [bytes([value]) for value in range(256)]
Field = tuple[int, int, bytes]  # number, type, value
Range = tuple[int, int]  # the least and the greatest integer; or begin and end


class Page(NamedTuple):
    """A column of a row group.

    parts      its bytes, as buffers; for a page on a device, as (begin, end) in an array there
    nbytes     bytes of all parts
    crc32      CRC-32 of all parts
    encoding   DELTA_BINARY_PACKED or DELTA_BYTE_ARRAY
    found      the range of its integers; None for texts
    """

    parts: Sequence[Any]
    nbytes: int
    crc32: int
    encoding: int
    found: Range | None


RowGroup = tuple[int, Sequence[Page]]  # rows, and a page for each column
Copied = Callable[[Sequence[Range]], AbstractContextManager[Sequence[memoryview]]]  # ranges of bytes -> in host memory


class _Piece(NamedTuple):
    """Buffers to append to a file, with their number of bytes and their CRC-32."""

    parts: Sequence[Any]
    nbytes: int
    crc32: int


class DeltaWriter:
    """A Parquet file without nulls. As a context manager it completes the file, but does not close the sink.

    columns  (name, kind): "int32", "int64", "string" for UTF-8, or "binary"
    """

    def __init__(self, sink: Sink, columns: Sequence[tuple[str, str]]):
        self._sink, self._columns = sink, columns
        self._groups: list[bytes] = []
        self._rows = self._end = 0  # rows, and bytes of the file, so far
        self._buffer = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        self._sink.write(MAGIC)
        self._end = self._sink.size_bytes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            footer = self._footer()
            self._sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def pages(self, columns: Iterable[Numbers | Texts]) -> Iterator[Page]:
        """Return the pages of a row group of at least one row. A page is valid until the next one is requested.

        All columns have as many rows. Integers and the differences of neighbours must fit the bytes of their column.
        """
        return map(self._page, columns)

    def write(self, rows: int, pages: Iterable[Page]) -> None:
        """Append a row group. Each page is written before the next one is requested."""
        for piece in self._group(rows, pages):
            self._sink.write_with_crc(piece.parts, piece.crc32)

    def write_copied(self, groups: Iterable[RowGroup], copied: Copied) -> None:
        """Append row groups whose pages are on a device; `copied` copies some of their parts to the host."""
        parts: list[Any] = []
        crc, start = 0, self._end
        for piece in (piece for rows, pages in groups for piece in self._group(rows, pages)):
            parts += piece.parts
            crc = append_crc32(crc, piece.crc32, piece.nbytes)
        for some in _batches(parts, WRITTEN_BYTES):
            with copied([part for part in some if isinstance(part, tuple)]) as views:
                view = iter(views)
                self._sink.append_together([next(view) if isinstance(part, tuple) else part for part in some])
        self._sink.add_crc(crc, self._end - start)

    def _group(self, rows: int, pages: Iterable[Page]) -> Iterator[_Piece]:
        """Yield the pages of a row group with their headers; describe the group for the footer."""
        chunks, group_start = [], self._end
        for (name, kind), page in zip(self._columns, pages, strict=True):
            start = self._end
            if page.nbytes > MAX_PAGE_BYTES:
                raise RunError(
                    f"{rows:,} rows of {name} take {page.nbytes:,} bytes but a page holds {MAX_PAGE_BYTES:,} at most; "
                    "count lower orders"
                )
            header = _page_header(rows, page)
            crc = append_crc32(zlib.crc32(header), page.crc32, page.nbytes)
            self._end += len(header) + page.nbytes
            yield _Piece([header, *page.parts], self._end - start, crc)
            chunks.append(_chunk((name, kind), page, rows, start, self._end - start))
        group_bytes = self._end - group_start
        fields: list[Field] = [(1, LIST, _list(STRUCT, chunks)), (2, I64, _int(group_bytes)), (3, I64, _int(rows))]
        self._groups.append(_struct(*fields))
        self._rows += rows

    def _page(self, values: Numbers | Texts) -> Page:
        of_lengths = [*map(whole_numbers, values[:2])] if isinstance(values, Texts) else [values]
        bounds = [most_bytes(len(numbers.high_R)) for numbers in of_lengths]
        if len(self._buffer) < sum(bounds):
            self._buffer = np.empty(sum(bounds), np.uint8)
        parts, begin = [], 0
        for numbers, bound in zip(of_lengths, bounds, strict=True):
            part = self._buffer[begin : begin + bound]
            size, least, most = pack_page(*map(read_only, numbers[:2]), *scalars(numbers), part)
            parts.append(part[:size].data)
            begin += bound
        if isinstance(values, Texts):
            return page_of([*parts, values.data.data], DELTA_BYTE_ARRAY, None)
        return page_of(parts, DELTA_BINARY_PACKED, (least, most))

    def _footer(self) -> bytes:
        schema = [_struct((4, BINARY, _text("schema")), (5, I32, _int(len(self._columns))))]
        for name, kind in self._columns:
            fields: list[Field] = [(1, I32, _int(KINDS[kind])), (3, I32, _int(0)), (4, BINARY, _text(name))]  # required
            if kind == "string":  # UTF8, in old and in new files
                fields += [(6, I32, _int(0)), (10, STRUCT, _struct((1, STRUCT, _struct())))]
            schema.append(_struct(*fields))
        ordered = _struct((1, STRUCT, _struct()))  # least and greatest are compared as signed integers
        return _struct(
            (1, I32, _int(2)), (2, LIST, _list(STRUCT, schema)), (3, I64, _int(self._rows)),
            (4, LIST, _list(STRUCT, self._groups)), (6, BINARY, _text(f"mgpu_ngram version {VERSION}")),
            (7, LIST, _list(STRUCT, [ordered] * len(self._columns))),
        )  # fmt: skip


def _batches(parts: Iterable[Any], nbytes: int) -> Iterator[list[Any]]:
    """Yield batches of parts in order, each with ranges of at most `nbytes` bytes; divides ranges if necessary."""
    some: list[Any] = []
    room = nbytes
    for part in parts:
        while isinstance(part, tuple) and part[1] - part[0] > room:
            cut = part[0] + room
            yield [*some, (part[0], cut)]
            some, room, part = [], nbytes, (cut, part[1])
        some.append(part)
        room -= part[1] - part[0] if isinstance(part, tuple) else 0
    if some:
        yield some


def page_of(parts: Sequence[Any], encoding: int, found: Range | None) -> Page:
    """Return the page of buffers in host memory."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return Page(parts, sum(map(len, parts)), crc, encoding, found)


def _page_header(rows: int, page: Page) -> bytes:
    signed = page.crc32 - (1 << 32) if page.crc32 >> 31 else page.crc32
    sizes = ((2, I32, _int(page.nbytes)), (3, I32, _int(page.nbytes)))  # before and after compression
    return _struct((1, I32, _int(0)), *sizes, (4, I32, _int(signed)), (5, STRUCT, _about(rows, page.encoding)))


@functools.lru_cache
def _about(rows: int, encoding: int) -> bytes:
    return _struct((1, I32, _int(rows)), (2, I32, _int(encoding)), (3, I32, _int(RLE)), (4, I32, _int(RLE)))


def _chunk(column: tuple[str, str], page: Page, rows: int, start: int, size: int) -> bytes:
    """Return the description of a column of a row group, whose page header is at `start`."""
    statistics: list[Field] = [(3, I64, _int(0))]  # nulls
    if page.found:
        item_bytes = ITEM_BYTES[column[1]]
        least, most = (_bytes(value.to_bytes(item_bytes, "little", signed=True)) for value in page.found)
        statistics += [(5, BINARY, most), (6, BINARY, least)]
    about = _struct(
        *_column_fields(column, page.encoding), (5, I64, _int(rows)), (6, I64, _int(size)), (7, I64, _int(size)),
        (9, I64, _int(start)), (12, STRUCT, _struct(*statistics)),
    )  # fmt: skip
    return _struct((2, I64, _int(start)), (3, STRUCT, about))


@functools.cache
def _column_fields(column: tuple[str, str], encoding: int) -> list[Field]:
    """Return the fields that all row groups have in common: type, encodings, path, no compression."""
    name, kind = column
    return [
        (1, I32, _int(KINDS[kind])), (2, LIST, _list(I32, [_int(encoding)])), (3, LIST, _list(BINARY, [_text(name)])),
        (4, I32, _int(0)),
    ]  # fmt: skip


def _struct(*fields: Field) -> bytes:
    """Return fields, by rising number, and the end of a struct."""
    made, before = [], 0
    for number, kind, value in fields:
        made.append(BYTES[number - before << 4 | kind] + value)
        before = number
    return b"".join(made) + b"\0"


def _list(kind: int, values: Sequence[bytes]) -> bytes:
    size = len(values)
    return (bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _natural(size)) + b"".join(values)


def _int(value: int) -> bytes:
    return _natural(value << 1 if value >= 0 else -value * 2 - 1)


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    return _natural(len(value)) + value


def _natural(value: int) -> bytes:
    """Return a number with 7 bits in each byte, the lowest first."""
    if value < 128:
        return BYTES[value]
    made = []
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
