"""The streams of a piece: ranges of stored bytes, decompressed text, or the text of Parquet row groups."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import DamagedInput, InputError
from mgpu_ngram.core.inputs.byte_ranges import PROBE_BYTES, STRIP_BYTES, LocalFile, Read, reader
from mgpu_ngram.core.inputs.corpus import Piece
from mgpu_ngram.core.inputs.decompress import decompressed
from mgpu_ngram.core.inputs.in_memory import arrow_lines
from mgpu_ngram.core.inputs.json_column import json_column
from mgpu_ngram.core.inputs.sources import CUTTABLE, Source, parquet_file
from mgpu_ngram.core.storage.crc import Crc, PartCrc
from mgpu_ngram.core.utf8 import BOM

ROW_GROUP_SHIFT = 40  # offset of a Parquet word = row group << 40 | offset in the text of its row group
UNKNOWN_END = 1 << 62
MAX_STEP_BYTES = 1 << 28  # bytes of a long line that are read at once
MAX_JSON_LINE_BYTES = (1 << 31) - 2  # Arrow reads blocks of fewer than 2 GiB


def place_in(source: Source, offset: int) -> str:
    """Return the place of the byte at an offset of a block for messages: 'books.txt' at byte 1,000."""
    if source.format == "parquet":
        row_group, offset = divmod(offset, 1 << ROW_GROUP_SHIFT)
        return f"{source.name!r} at byte {offset:,} of the text of row group {row_group:,}"
    text = " of its text" if source.format not in CUTTABLE else ""
    about = "after" if source.json_key else "at"  # its text is shorter than its lines
    return f"{source.name!r} {about} byte {offset:,}{text}"


class Range:
    """Stored bytes [start, stop) of a plain source; it owns those before `end`."""

    def __init__(self, read: Read, start: int, stop: int, end: int, pool: Any):
        self.read, self.start, self.stop, self.end, self.pool = read, start, stop, end, pool
        self.crc: Crc | None = None  # if set, extended by all owned bytes that are read
        self.at = start

    def ended(self) -> bool:
        return self.at >= self.stop

    def readinto(self, view: np.ndarray) -> int:
        """Fill the view, or read the rest of the stream; return the number of bytes."""
        n = min(len(view), self.stop - self.at)
        filled = self.crc is None and isinstance(self.read, LocalFile) and self.read.fill(self.at, view[:n])
        if not filled:
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


class ArrayStream:
    """Decompressed text in arrays, from offset `start` on; the stream owns all of it."""

    end = UNKNOWN_END

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
        """Fill the view, or read the rest of the stream; return the number of bytes."""
        n = 0
        while n < len(view) and not self.ended():
            size = min(len(view) - n, len(self.pending))
            view[n : n + size] = self.pending[:size]
            self.pending = self.pending[size:]
            n += size
        return n


@dataclass
class Reading:
    """Options of `read_blocks` and `read_lines` for the streams of a piece.

    pool  as many threads of Python as `threads`, or None
    """

    unit: str
    halo: int = 0
    pool: Any = None
    threads: int = 1
    checksums: list[PartCrc] | None = None
    plain_crcs: bool = True
    report: Callable[[str], None] | None = None


@contextmanager
def open_streams(piece: Piece, reading: Reading) -> Iterator[Iterable[Any]]:
    """Yield the streams of a piece in turn; checksums are complete when the streams have been read."""
    source, unit, checksums = piece.source, reading.unit, reading.checksums
    if source.format == "parquet":
        with parquet_file(source) as file:
            yield _row_groups(file, piece, unit)
        if checksums is not None and piece.start == 0:
            checksums.append((piece.source_index, 0, *footer_crc(source)))
        return
    offset, crc = piece.start, None
    with reader(source, reading.threads) as read:
        stream: Range | ArrayStream
        if source.format not in CUTTABLE:
            crc = None if checksums is None else Crc(piece.end)
            arrays = decompressed(source, read, crc)
            arrays = arrays if reading.report is None else _until_damage(arrays, reading.report)
            stream = ArrayStream(arrays)
            if unit == "word":
                stream.start += stream.readinto(np.empty(source.mark_bytes, np.uint8))
        else:
            pool = reading.pool
            stream = _lines(piece, read, pool) if unit == "word" else _tokens(piece, read, pool, reading.halo)
            if checksums is not None and unit == "word" and source.mark_bytes and piece.start == 0:
                checksums.append((piece.source_index, 0, source.mark_bytes, zlib.crc32(BOM)))
            if checksums is not None and (reading.plain_crcs or source.json_key):
                offset, crc = stream.start, Crc(stream.end)
                stream.crc = crc
        yield [ArrayStream(_json_texts(stream, source), stream.start) if source.json_key else stream]
    if checksums is not None and crc and (crc.length or source.format not in CUTTABLE):
        checksums.append((piece.source_index, offset, crc.length, crc.value))


def _until_damage(arrays: Iterator[np.ndarray], report: Callable[[str], None]) -> Iterator[np.ndarray]:
    """Yield the arrays; at damage, yield the whole lines before it, and report it."""
    line: list[np.ndarray] = []  # the line that has not ended
    while True:
        try:
            array = next(arrays, None)
        except DamagedInput as error:
            report(str(error))
            return
        if array is None:
            yield from line
            return
        end = array.tobytes().rfind(b"\n") + 1
        if end:
            yield from line
            yield array[:end]
            line = []
        line.append(array[end:])


def _json_texts(stream: Range | ArrayStream, source: Source) -> Iterator[np.ndarray]:
    """Yield the texts of JSON lines, each followed by a newline. They are never longer than the lines."""
    stored = replace(source, column=source.json_key, json_key="")
    parts, start, step = [b""], stream.start, STRIP_BYTES  # `parts` of a line, which begins at byte `start`
    while not stream.ended():
        view = np.empty(step, np.uint8)
        given = view[: stream.readinto(view)].tobytes()
        end = given.rfind(b"\n") + 1
        parts.append(given[:end] if end else given)
        if sum(map(len, parts)) > MAX_JSON_LINE_BYTES:
            raise InputError(
                f"{place_in(stored, start)}: the line is longer than {MAX_JSON_LINE_BYTES:,} bytes; cut it into "
                "several objects"
            )
        if not end:
            step = min(2 * step, MAX_STEP_BYTES)  # a long line
            continue
        lines = b"".join(parts)
        yield _texts_of(lines, stored, start)
        parts, start, step = [given[end:]], start + len(lines), STRIP_BYTES
    if carry := b"".join(parts):
        yield _texts_of(carry + b"\n", stored, start)


def _texts_of(lines: bytes, source: Source, start: int) -> np.ndarray:
    return arrow_lines(json_column(lines, source.column, lambda offset: place_in(source, start + offset)))


def _lines(piece: Piece, read: Read, pool: Any) -> Range:
    """Return the lines that start in the piece."""
    stop = _readable_end(piece.source)
    start = _line_start(read, piece.start, piece.end)
    end = _line_start(read, piece.end, stop) if start < piece.end < stop else piece.end
    return Range(read, max(start, piece.source.mark_bytes), end, end, pool)


def _line_start(read: Read, at: int, limit: int) -> int:
    """Return the first start of a line in [at, limit), or else limit."""
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


def _tokens(piece: Piece, read: Read, pool: Any, halo: int) -> Range:
    source = piece.source
    stop = min(piece.end + halo * source.itemsize, source.size_bytes)
    if stop > _readable_end(source):
        limit = (_readable_end(source) - piece.end) // source.itemsize
        raise InputError(f"a halo of {halo} tokens is over the {limit} that chunks of {source.name} carry; use a file")
    return Range(read, piece.start, stop, piece.end, pool)


def _readable_end(source: Source) -> int:
    return source.data_start + len(source.data) if source.format == "memory" else source.size_bytes


def _row_groups(file: Any, piece: Piece, unit: str) -> Iterator[ArrayStream]:
    groups = range(piece.start, piece.end)
    if unit == "word":
        for g in groups:
            yield ArrayStream(_row_group_text(file, piece.source, [g]), g << ROW_GROUP_SHIFT)
    elif groups:
        yield ArrayStream(_row_group_text(file, piece.source, groups))


def _row_group_text(file: Any, source: Source, groups: Iterable[int]) -> Iterator[np.ndarray]:
    """Yield the lines of some row groups."""
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


def footer_crc(source: Source) -> tuple[int, int]:
    """Return (length, CRC-32) of a Parquet file's metadata, which lies before its last 8 bytes."""
    with reader(source) as read:
        tail = np.empty(8, np.uint8)
        read(source.size_bytes - 8, tail)
        footer = np.empty(int(tail[:4].view("<u4")[0]), np.uint8)
        read(source.size_bytes - 8 - len(footer), footer)
        return len(footer), zlib.crc32(footer.data)
