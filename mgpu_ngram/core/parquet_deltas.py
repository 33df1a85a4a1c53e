"""Write integers and texts to a Parquet file as differences from the row before, in compiled code.

Integers are packed differences (DELTA_BINARY_PACKED); a text is what follows the words that it shares with the text
before (DELTA_BYTE_ARRAY). The format is described at https://github.com/apache/parquet-format by Encodings.md and, in
Thrift's compact protocol, by parquet.thrift. pyarrow writes such pages, too, but takes four times as long. A column of
a row group is one page without compression.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy import int64, uint8, uint64

from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.output import Sink
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.kernels.compile import njit, read_only
from mgpu_ngram.kernels.intrinsics import leading_zeros, store_u64

MAGIC = b"PAR1"
BLOCK, PART = 128, 32  # values of a block, and of one of its parts, a miniblock: each has its own width
WIDTHS = BLOCK // PART
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12  # types of Thrift
DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, RLE = 5, 7, 3  # encodings
KINDS = {"int32": 1, "int64": 2, "string": 6, "binary": 6}  # of columns: types of Parquet
ITEM_BYTES = {"int32": 4, "int64": 8}
MAX_PAGE_BYTES = 2**31 - 1
Field = tuple[int, int, bytes]  # number, type, value
Range = tuple[int, int]  # the least and the greatest integer


class Numbers(NamedTuple):
    """R integers of 64 bits, or of some bits of one or two words of 64 bits.

    high_R, low_R  uint64, contiguous
    shift          the integer is high >> shift; if negative, its lower -shift bits are the upper ones of low
    mask           of its bits
    less           to subtract from it
    """

    high_R: np.ndarray
    low_R: np.ndarray
    shift: int = 0
    mask: int = (1 << 64) - 1
    less: int = 0


class Texts(NamedTuple):
    """R texts, each a prefix of the text before and a suffix.

    prefix_R, suffix_R  int64, contiguous: bytes of both; the first prefix has none
    data                uint8, the suffixes
    """

    prefix_R: np.ndarray
    suffix_R: np.ndarray
    data: np.ndarray


class DeltaWriter:
    """A Parquet file without nulls. As a context manager it ends the file, not the sink.

    columns  (name, kind): "int32", "int64", "string" for UTF-8, or "binary"
    """

    def __init__(self, sink: Sink, columns: Sequence[tuple[str, str]]):
        self._sink, self._columns = sink, columns
        self._groups: list[bytes] = []
        self._rows = 0
        self._buffer = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        self._sink.write(MAGIC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            footer = self._footer()
            self._sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def write(self, columns: Sequence[Numbers | Texts]) -> list[Range | None]:
        """Append a row group of at least one row; return the least and the greatest integer of each column.

        All columns have as many rows. Integers and the differences of neighbours must fit the bytes of their column.
        """
        rows, chunks, ranges = len(columns[0][0]), [], []
        begin = self._sink.size_bytes
        for (name, kind), values in zip(self._columns, columns, strict=True):
            page, found = self._page(values)
            size, crc, start = sum(map(len, page)), 0, self._sink.size_bytes
            if size > MAX_PAGE_BYTES:
                raise RunError(
                    f"{rows:,} rows of {name} take {size:,} bytes but a page holds {MAX_PAGE_BYTES:,} at most; "
                    "count lower orders"
                )
            for piece in page:
                crc = zlib.crc32(piece, crc)
            encoding = DELTA_BYTE_ARRAY if isinstance(values, Texts) else DELTA_BINARY_PACKED
            self._sink.write(_page_header(rows, size, crc, encoding))
            for piece in page:
                self._sink.write(piece)
            size = self._sink.size_bytes - start
            chunks.append(_chunk((name, kind), encoding, rows, start, size, found))
            ranges.append(found)
        size = self._sink.size_bytes - begin
        self._groups.append(_struct((1, LIST, _list(STRUCT, chunks)), (2, I64, _int(size)), (3, I64, _int(rows))))
        self._rows += rows
        return ranges

    def _page(self, values: Numbers | Texts) -> tuple[list[memoryview], Range | None]:
        """Return the parts of a page, until the next call; and the range of integers."""
        of_lengths = [_lengths(n_R) for n_R in values[:2]] if isinstance(values, Texts) else [values]
        bounds = [_most_bytes(len(numbers.high_R)) for numbers in of_lengths]
        if len(self._buffer) < sum(bounds):
            self._buffer = np.empty(sum(bounds), np.uint8)
        page, begin = [], 0
        for numbers, bound in zip(of_lengths, bounds, strict=True):
            part = self._buffer[begin : begin + bound]
            size, least, most = _pack(*map(read_only, numbers[:2]), *_scalars(numbers), part)
            page.append(part[:size].data)
            begin += bound
        if isinstance(values, Texts):
            return [*page, values.data.data], None
        return page, (least, most)

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


def _lengths(bytes_R: np.ndarray) -> Numbers:
    return Numbers(bytes_R.view(np.uint64), bytes_R.view(np.uint64))


def _most_bytes(rows: int) -> int:
    """Return the room that packed integers need at most; the last 8 bytes may be overwritten."""
    return 32 + (rows // BLOCK + 1) * (10 + WIDTHS + 8 * BLOCK) + 8


def _page_header(rows: int, size: int, crc: int, encoding: int) -> bytes:
    about = _struct((1, I32, _int(rows)), (2, I32, _int(encoding)), (3, I32, _int(RLE)), (4, I32, _int(RLE)))
    signed = crc - (1 << 32) if crc >> 31 else crc
    sizes = ((2, I32, _int(size)), (3, I32, _int(size)))  # before and after compression
    return _struct((1, I32, _int(0)), *sizes, (4, I32, _int(signed)), (5, STRUCT, about))


def _chunk(column: tuple[str, str], encoding: int, rows: int, start: int, size: int, found: Range | None) -> bytes:
    """Return the description of a column of a row group, whose page header is at `start`."""
    name, kind = column
    statistics: list[Field] = [(3, I64, _int(0))]  # nulls
    if found:
        least, most = (_bytes(value.to_bytes(ITEM_BYTES[kind], "little", signed=True)) for value in found)
        statistics += [(5, BINARY, most), (6, BINARY, least)]
    about = _struct(
        (1, I32, _int(KINDS[kind])), (2, LIST, _list(I32, [_int(encoding)])), (3, LIST, _list(BINARY, [_text(name)])),
        (4, I32, _int(0)), (5, I64, _int(rows)), (6, I64, _int(size)), (7, I64, _int(size)), (9, I64, _int(start)),
        (12, STRUCT, _struct(*statistics)),
    )  # fmt: skip
    return _struct((2, I64, _int(start)), (3, STRUCT, about))


def _struct(*fields: Field) -> bytes:
    """Return fields, by rising number, and the end of a struct."""
    made, before = bytearray(), 0
    for number, kind, value in fields:
        made.append(number - before << 4 | kind)
        made += value
        before = number
    return bytes(made) + b"\0"


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
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _scalars(numbers: Numbers) -> tuple[Any, ...]:
    """Return the last fields with types of their own, for which alone Numba compiles."""
    return int64(numbers.shift), uint64(numbers.mask), int64(numbers.less)


@njit(nogil=True, cache=True)
def _pack(high_R, low_R, shift, mask, less, page_B):
    """Write a page; return (its bytes, the least integer, the greatest one)."""
    R = len(high_R)
    value_P, difference_P = np.empty(BLOCK, int64), np.empty(BLOCK, uint64)
    at = _put(page_B, _put(page_B, _put(page_B, 0, uint64(BLOCK)), uint64(WIDTHS)), uint64(R))
    _take(high_R, low_R, shift, mask, less, 0, 1, value_P)
    least = most = before = value_P[0]
    at = _put_signed(page_B, at, before)
    for first in range(1, R, BLOCK):
        size = min(BLOCK, R - first)
        _take(high_R, low_R, shift, mask, less, first, size, value_P)
        for i in range(size):
            least, most = min(least, value_P[i]), max(most, value_P[i])
        smallest = value_P[0] - before
        difference_P[0] = uint64(smallest)
        for i in range(1, size):
            difference = value_P[i] - value_P[i - 1]
            difference_P[i] = uint64(difference)
            smallest = min(smallest, difference)
        before = value_P[size - 1]
        difference_P[:size] -= uint64(smallest)
        difference_P[size:] = 0
        widths = _put_signed(page_B, at, smallest)
        at = widths + WIDTHS
        for part in range(WIDTHS):
            some = uint64(0)
            for i in range(part * PART, (part + 1) * PART):
                some |= difference_P[i]
            width = uint64(64) - uint64(leading_zeros(some)) if some else uint64(0)  # type: ignore[call-arg]
            page_B[widths + part] = uint8(width)
            at = _pack_part(difference_P, part * PART, width, page_B, at)
    return at, least, most


@njit(nogil=True, cache=True, inline="always")
def _take(high_R, low_R, shift, mask, less, first, size, value_P):
    """Set the integers of `size` rows from row `first` on."""
    if shift >= 0:
        right = uint64(shift)
        for i in range(size):
            value_P[i] = int64((high_R[first + i] >> right) & mask) - less
    else:
        left, right = uint64(-shift), uint64(64 + shift)
        for i in range(size):
            value_P[i] = int64(((high_R[first + i] << left) | (low_R[first + i] >> right)) & mask) - less


@njit(nogil=True, cache=True, inline="always")
def _pack_part(difference_P, first, width, page_B, at):
    """Write PART differences of `width` bits, the lowest first; return the place after them."""
    held, bits = uint64(0), uint64(0)
    if width:
        for i in range(first, first + PART):
            held |= difference_P[i] << bits
            bits += width
            if bits >= uint64(64):
                store_u64(page_B, at, held)  # type: ignore[call-arg]
                at += 8
                bits -= uint64(64)
                held = difference_P[i] >> (width - bits) if bits else uint64(0)
    if bits:  # 32
        store_u64(page_B, at, held)  # type: ignore[call-arg]
        at += 4
    return at


@njit(nogil=True, cache=True, inline="always")
def _put(page_B, at, value):
    """Write a number with 7 bits in each byte, the lowest first; return the place after it."""
    while value >= uint64(128):
        page_B[at] = uint8(value & uint64(127)) | uint8(128)
        value >>= uint64(7)
        at += 1
    page_B[at] = uint8(value)
    return at + 1


@njit(nogil=True, cache=True, inline="always")
def _put_signed(page_B, at, value):
    return _put(page_B, at, uint64(value << int64(1)) ^ uint64(value >> int64(63)))
