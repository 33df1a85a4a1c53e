"""How a chunk's text is read: blocks of whole lines, or of bytes or token ids with a halo, and CRCs."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .corpus import (
    CUTTABLE,
    Chunk,
    Piece,
    Source,
    arrow_lines,
    filesystem,
    import_zstandard,
    odd_size,
    parquet_file,
    remote_errors,
    unreadable,
)
from .errors import InputError

STRIP_BYTES = 4 << 20  # one read of one thread
PROBE_BYTES = 64 << 10  # first read when looking for a line's end; also what a decompressor is fed at once
ROW_GROUP_SHIFT = 40  # offset of a Parquet word = row group << 40 | offset in the text of its row group
UNKNOWN = 1 << 62

Read = Callable[[int, np.ndarray], None]  # read(offset, view) fills view with the stored bytes from offset on


@dataclass
class Block:
    """Text of one or several sources, in S segments.

    data       (B,) uint8
    starts_S   (S,) int64, where each segment begins in data, and
    lengths_S  (S,) int64, its bytes
    owned_S    (S,) int64, its first bytes, in which n-grams start; the rest is halo
    sources_S  (S,) int32, index of its source
    offsets_S  (S,) int64, offset of its first byte in the decompressed source. Parquet is the text
               of its values, each with a newline: for bytes of the whole file; for words of its row
               group, with the row group's number from bit 40 up
    """

    data: np.ndarray
    starts_S: np.ndarray
    lengths_S: np.ndarray
    owned_S: np.ndarray
    sources_S: np.ndarray
    offsets_S: np.ndarray


def read_blocks(
    chunk: Chunk,
    unit: str,
    block_bytes: int,
    halo: int = 0,
    allocate: Callable[[int], np.ndarray] | None = None,
    threads: int = 1,
    checksums: list[tuple[int, int, int, int]] | None = None,
) -> Iterator[Block]:
    """Yield the text of a chunk in blocks of about `block_bytes`.

    unit       "word": whole lines, each ended by a newline, all owned; a longer line makes its block
               longer. "byte", "id": any cut between tokens, up to `halo` following tokens of the
               same source after the owned bytes
    allocate   allocate(nbytes) gives a uint8 array of nbytes, in which a block's data lies; the
               caller may reuse it once it asks for the next block. It is called once a block, for
               equal sizes; again for a larger one when a line outgrows it. New memory when None
    threads    that read plain sources, in strips of 4 MiB
    checksums  gets (source_index, offset, length, crc32) of each piece when it has been read: CRC-32
               of the stored bytes; of a Parquet file only its footer's metadata, once a file.
               `combine_crc32` joins those of one source

    Raises InputError for missing, shrunken, truncated or corrupt sources.
    """
    if block_bytes < 1:
        raise InputError(f"block_bytes is {block_bytes}; the least is 1")
    pool = ThreadPoolExecutor(threads) if threads > 1 else nullcontext()
    filler = _Filler(_room(chunk, unit, block_bytes, halo), allocate or (lambda nbytes: np.empty(nbytes, np.uint8)))
    with pool as workers:
        for piece in chunk.pieces:
            with _open_streams(piece, unit, halo, workers, checksums) as streams:
                for stream in streams:
                    yield from filler.fill(piece, stream, unit, halo)
    yield from filler.flush()


def _room(chunk: Chunk, unit: str, block_bytes: int, halo: int) -> int:
    """Bytes of a block's buffer: no more than the chunk may need."""
    itemsize = max((piece.source.itemsize for piece in chunk.pieces), default=1)
    needed = sum(piece.end - piece.start if piece.source.format in CUTTABLE else UNKNOWN for piece in chunk.pieces)
    if unit == "word":
        return min(block_bytes, needed + PROBE_BYTES)  # its last line goes on past the chunk's end
    return max(min(block_bytes, needed) // itemsize, 1) * itemsize + halo * itemsize


class _Filler:
    """Puts the streams of a chunk into blocks."""

    def __init__(self, room: int, allocate: Callable[[int], np.ndarray]):
        self.room, self.allocate = room, allocate
        self.buffer: np.ndarray | None = None
        self.used = 0  # bytes of the buffer that segments fill
        self.segments: list[tuple[int, int, int, int, int]] = []  # start, length, owned, source, offset

    def flush(self) -> Iterator[Block]:
        """Yield the block, if there is one, and begin another."""
        if self.buffer is not None and self.segments:
            columns = (np.array(column, np.int64) for column in zip(*self.segments, strict=True))
            starts, lengths, owned, sources, offsets = columns
            yield Block(self.buffer[: self.used], starts, lengths, owned, sources.astype(np.int32), offsets)
        self.buffer, self.used, self.segments = None, 0, []

    def fill(self, piece: Piece, stream: _Range | _Arrays, unit: str, halo: int) -> Iterator[Block]:
        """Add the bytes of one stream, yielding every block that is full."""
        at = stream.start  # offset of the next byte that no segment owns
        carry = np.empty(0, np.uint8)  # the bytes from there on that were already read
        cut = _cut_lines if unit == "word" else _cut_tokens
        while at < stream.end and (len(carry) or not stream.ended()):
            if self.buffer is None:
                size = self.room if len(carry) < self.room else 2 * len(carry)  # a line outgrew it
                self.buffer = self.allocate(size)[:size]
            view = self.buffer[self.used :]
            n = len(carry)
            view[:n] = carry
            n += stream.readinto(view[n:])
            length, owned = cut(view, n, at, stream.end, halo, piece.source)
            if length:
                self.segments.append((self.used, length, owned, piece.source_index, at))
            self.used += length
            at += owned
            carry = view[owned:n].copy() if n == len(view) else carry[:0]
            if n == len(view) or self.used == len(self.buffer):
                yield from self.flush()


def _cut_lines(view: np.ndarray, n: int, at: int, end: int, halo: int, source: Source) -> tuple[int, int]:
    """(length, owned) of the segment that begins a view, into which n bytes from offset `at` on are read.

    n < len(view) only at the end of the stream. `end` is the end of what the stream owns.
    """
    if n < len(view):
        if n and view[n - 1] != 10:
            view[n] = 10
            n += 1
        return n, n
    stop, step = n, PROBE_BYTES
    while stop > 0:  # search the tail first: lines are short
        start = max(0, stop - step)
        found = view[start:stop].tobytes().rfind(b"\n")
        if found >= 0:
            return start + found + 1, start + found + 1
        stop, step = start, min(4 * step, STRIP_BYTES)
    return 0, 0


def _cut_tokens(view: np.ndarray, n: int, at: int, end: int, halo: int, source: Source) -> tuple[int, int]:
    """As `_cut_lines`, with up to `halo` tokens after the owned ones."""
    if n < len(view):
        if n % source.itemsize:  # of a compressed source; others were checked when they were opened
            raise InputError(odd_size(source.name, at + n, source.itemsize))
        return n, min(n, end - at)
    owned = max(0, n - halo * source.itemsize) // source.itemsize * source.itemsize
    return (n, owned) if owned else (0, 0)


class _Range:
    """Stored bytes [start, stop) of a plain source, of which those before `end` are owned."""

    def __init__(self, read: Read, start: int, stop: int, end: int, crc: _Crc | None, pool: Any):
        self.read, self.start, self.stop, self.end, self.crc, self.pool = read, start, stop, end, crc, pool
        self.at = start

    def ended(self) -> bool:
        return self.at >= self.stop

    def readinto(self, view: np.ndarray) -> int:
        """Fill the view, or what is left of the stream."""
        n = min(len(view), self.stop - self.at)
        strips = [(self.at + i, view[i : min(i + STRIP_BYTES, n)]) for i in range(0, n, STRIP_BYTES)]
        run = self.pool.map if self.pool and len(strips) > 1 else map
        for crc, length in run(self._strip, strips):
            if self.crc:
                self.crc.add(crc, length)
        self.at += n
        return n

    def _strip(self, strip: tuple[int, np.ndarray]) -> tuple[int, int]:
        offset, view = strip
        self.read(offset, view)
        owned = view[: max(0, self.crc.stop - offset)] if self.crc else view[:0]
        return zlib.crc32(owned.data), len(owned)


class _Arrays:
    """Decompressed text that comes in arrays, from offset `start` on; all of it is owned."""

    end = UNKNOWN

    def __init__(self, arrays: Iterator[np.ndarray], start: int = 0):
        self.arrays, self.start, self.pending = arrays, start, np.empty(0, np.uint8)

    def ended(self) -> bool:
        while not len(self.pending):
            array = next(self.arrays, None)
            if array is None:
                return True
            self.pending = array
        return False

    def readinto(self, view: np.ndarray) -> int:
        """Fill the view, or what is left of the stream."""
        n = 0
        while n < len(view) and not self.ended():
            size = min(len(view) - n, len(self.pending))
            view[n : n + size] = self.pending[:size]
            self.pending = self.pending[size:]
            n += size
        return n


@contextmanager
def _open_streams(piece: Piece, unit: str, halo: int, pool: Any, checksums: list | None) -> Iterator[Iterable[Any]]:
    """The streams of a piece, one after the other; their checksum is complete when they have been read."""
    source = piece.source
    if source.format == "parquet":
        with parquet_file(source) as file:
            yield _row_groups(file, piece, unit)
        if checksums is not None and piece.start == 0:
            checksums.append((piece.source_index, 0, *_footer_crc(source)))
        return
    with _reader(source) as read:
        crc = _Crc(piece.end) if checksums is not None else None
        if source.format in CUTTABLE:
            yield [_lines(piece, read, crc, pool) if unit == "word" else _tokens(piece, read, crc, pool, halo)]
        else:
            yield [_Arrays(_decompressed(source, read, crc))]
    if checksums is not None and crc:
        checksums.append((piece.source_index, piece.start, crc.length, crc.value))


def _lines(piece: Piece, read: Read, crc: _Crc | None, pool: Any) -> _Range:
    """The lines that start in the piece."""
    stop = _readable_end(piece.source)
    start = _line_start(read, piece.start, piece.end)
    end = _line_start(read, piece.end, stop) if start < piece.end < stop else piece.end
    if crc:  # the end of a line that an earlier piece owns
        head = _Range(read, piece.start, start, start, crc, pool)
        while not head.ended():
            head.readinto(np.empty(STRIP_BYTES, np.uint8))
    return _Range(read, start, end, end, crc, pool)


def _line_start(read: Read, at: int, limit: int) -> int:
    """The first start of a line in [at, limit), or else limit."""
    if at == 0:
        return 0
    at, step = at - 1, PROBE_BYTES
    while at < limit:
        view = np.empty(min(step, limit - at), np.uint8)
        read(at, view)
        found = view.tobytes().find(b"\n")
        if found >= 0:
            return at + found + 1
        at, step = at + len(view), min(4 * step, STRIP_BYTES)
    return limit


def _tokens(piece: Piece, read: Read, crc: _Crc | None, pool: Any, halo: int) -> _Range:
    source = piece.source
    stop = min(piece.end + halo * source.itemsize, source.size_bytes)
    if stop > _readable_end(source):
        limit = (_readable_end(source) - piece.end) // source.itemsize
        raise InputError(f"a halo of {halo} tokens is over the {limit} that chunks of {source.name} carry; use a file")
    return _Range(read, piece.start, stop, piece.end, crc, pool)


def _readable_end(source: Source) -> int:
    return source.data_start + len(source.data) if source.format == "memory" else source.size_bytes


@contextmanager
def _reader(source: Source) -> Iterator[Read]:
    """Yield read(offset, view) over the stored bytes of a source; it may be called from several threads."""
    if source.format == "memory":
        data = np.frombuffer(source.data, np.uint8)

        def read_memory(offset: int, view: np.ndarray) -> None:
            view[:] = data[offset - source.data_start : offset - source.data_start + len(view)]

        yield read_memory
    elif source.is_local:
        try:
            file = os.open(source.location, os.O_RDONLY)
        except OSError as error:
            raise unreadable(error) from None

        def read_local(offset: int, view: np.ndarray) -> None:
            done = 0
            while done < len(view):
                try:
                    n = os.preadv(file, [view[done:].data], offset + done)
                except OSError as error:
                    what = f"cannot read {source.name!r} at byte {offset + done}: {error.strerror}"
                    raise InputError(f"{what}; check the disk") from None
                if n == 0:
                    raise InputError(_shrunk(source, offset + done))
                done += n

        try:
            yield read_local
        finally:
            os.close(file)
    else:
        with remote_errors(source.name):
            fs, path = filesystem(source.location)

        def read_remote(offset: int, view: np.ndarray) -> None:
            with remote_errors(source.name, f" at byte {offset}"):
                data = fs.cat_file(path, start=offset, end=offset + len(view))
            if len(data) != len(view):
                raise InputError(_shrunk(source, offset + len(data)))
            view[:] = np.frombuffer(data, np.uint8)

        yield read_remote


def _shrunk(source: Source, offset: int) -> str:
    change = f"ends at byte {offset} but had {source.size_bytes} bytes when it was opened"
    return f"{source.name!r} {change}; leave it as it is during a run"


def _decompressed(source: Source, read: Read, crc: _Crc | None) -> Iterator[np.ndarray]:
    """The text of a compressed source, whose members or frames follow one another."""
    make, errors = _codec(source)
    text_bytes = fed = 0
    decoder = None

    def damaged(why: str) -> InputError:
        where = f"at byte {fed} of {source.size_bytes}, after {text_bytes} bytes of text"
        return InputError(f"{source.name!r} is {why} {where}; compress it again or leave it out")

    for offset in range(0, source.size_bytes, STRIP_BYTES):
        strip = np.empty(min(STRIP_BYTES, source.size_bytes - offset), np.uint8)
        read(offset, strip)
        if crc:
            crc.add(zlib.crc32(strip.data), len(strip))
        for start in range(0, len(strip), PROBE_BYTES):  # little at once, for it may grow a thousandfold
            stored = strip[start : start + PROBE_BYTES].tobytes()
            fed = offset + start
            while stored:
                if decoder is None:
                    stored = stored.lstrip(b"\0")  # padding between members
                    if not stored:
                        break
                    decoder = make()
                try:
                    text = decoder.decompress(stored)
                except errors as error:
                    raise damaged(f"damaged {source.format} data ({error})") from None
                stored = decoder.unused_data if decoder.eof else b""
                if decoder.eof:
                    decoder = None
                if text:
                    yield np.frombuffer(text, np.uint8)
                    text_bytes += len(text)
    if decoder is not None:
        fed = source.size_bytes
        raise damaged(f"truncated {source.format} data")


def _codec(source: Source) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """What makes a decoder, and what it raises."""
    if source.format == "gzip":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if source.format == "bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if source.format == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), (lzma.LZMAError,)
    zstandard = import_zstandard(source.name)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # zstd --long=31
    return decompressor.decompressobj, (zstandard.ZstdError,)


def _row_groups(file: Any, piece: Piece, unit: str) -> Iterator[_Arrays]:
    groups = range(piece.start, piece.end)
    if unit == "word":
        for g in groups:
            yield _Arrays(_row_group_text(file, piece.source, [g]), g << ROW_GROUP_SHIFT)
    elif groups:
        yield _Arrays(_row_group_text(file, piece.source, groups))


def _row_group_text(file: Any, source: Source, groups: Iterable[int]) -> Iterator[np.ndarray]:
    """The lines of some row groups."""
    import pyarrow as pa

    for g in groups:
        metadata = file.metadata.row_group(g)
        row_bytes = metadata.total_byte_size // max(metadata.num_rows, 1) + 1
        rows = max(1, min(STRIP_BYTES // row_bytes, 1 << 16))
        text_bytes = 0
        try:
            for batch in file.iter_batches(rows, row_groups=[g], columns=[source.column], use_threads=False):
                lines = arrow_lines(batch.column(0))
                yield lines
                text_bytes += len(lines)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            where = f"in row group {g} after {text_bytes} bytes of text"
            raise InputError(f"{source.name!r} is damaged Parquet {where}: {reason}; write it again") from None


def _footer_crc(source: Source) -> tuple[int, int]:
    """(length, CRC-32) of a Parquet file's metadata, which lies before its last 8 bytes."""
    with _reader(source) as read:
        tail = np.empty(8, np.uint8)
        read(source.size_bytes - 8, tail)
        footer = np.empty(int(tail[:4].view("<u4")[0]), np.uint8)
        read(source.size_bytes - 8 - len(footer), footer)
        return len(footer), zlib.crc32(footer.data)


class _Crc:
    """CRC-32 of bytes that come in order, up to the offset `stop`."""

    def __init__(self, stop: int):
        self.stop, self.value, self.length = stop, 0, 0

    def add(self, crc: int, length: int) -> None:
        self.value = _append_crc32(self.value, crc, length)
        self.length += length


def combine_crc32(parts: Iterable[tuple[int, int, int, int]]) -> int:
    """CRC-32 of one source from the (source_index, offset, length, crc32) of parts that tile it, in any order."""
    total = value = 0
    for _, offset, length, crc in sorted(parts):
        if offset != total:
            raise ValueError(f"the next part should start at byte {total} but starts at {offset}; give each part once")
        value = _append_crc32(value, crc, length)
        total += length
    return value


def _append_crc32(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of two texts in a row: first * x**(8 * second_bytes) + second, modulo the CRC's polynomial."""
    return (_multiply(first, _shift(second_bytes)) if first else 0) ^ second


def _multiply(a: int, b: int) -> int:
    """Product of polynomials over GF(2) modulo zlib's; bit 31 is x**0."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
    return product


@lru_cache(maxsize=256)  # most strips have one length
def _shift(num_bytes: int) -> int:
    """x**(8 * num_bytes) modulo zlib's polynomial."""
    power, square = 1 << 31, 1 << 23
    while num_bytes:
        if num_bytes & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        num_bytes >>= 1
    return power
