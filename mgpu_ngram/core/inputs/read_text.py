"""Read a chunk's text: blocks of whole lines, or of bytes or token ids with a halo."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.byte_ranges import PROBE_BYTES, STRIP_BYTES
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, Piece, open_list
from mgpu_ngram.core.inputs.sources import CUTTABLE, Source, odd_size
from mgpu_ngram.core.inputs.streams import UNKNOWN_END, ArrayStream, Range, Reading, open_streams
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.core.utf8 import without_mark
from mgpu_ngram.kernels.count.crc32 import crc32
from mgpu_ngram.kernels.dispatch import array_module, to_host

MAX_LINE_BYTES = (1 << 32) - 1  # positions in a block are uint32


@dataclass
class TextBlock:
    """Text of one or several sources, in S segments.

    data       (B,) uint8
    starts_S   (S,) int64, start of each segment in data
    lengths_S  (S,) int64, its bytes
    owned_S    (S,) int64, its leading bytes in which n-grams may start. The rest is a halo, or the newline
               that a last line lacks
    sources_S  (S,) int32, index of its source
    offsets_S  (S,) int64, offset of its first byte in the decompressed source. The text of a Parquet file is
               its values, each with a newline; that of JSON lines is their texts, from the offset of the
               first line of its piece. Offsets count from the start of the file for bytes. For words
               they count from the start of the row group, whose number is in the bits from 40 up
    """

    data: np.ndarray
    starts_S: np.ndarray
    lengths_S: np.ndarray
    owned_S: np.ndarray
    sources_S: np.ndarray
    offsets_S: np.ndarray

    def place(self, chunk: Chunk, at: int) -> tuple[Source, int]:
        """Return (source, offset in it as in offsets_S) of byte `at` of the block, which was read from `chunk`."""
        s = int(np.searchsorted(self.starts_S, at, "right")) - 1
        source = next(p.source for p in chunk.pieces if p.source_index == self.sources_S[s])
        return source, int(self.offsets_S[s]) + at - int(self.starts_S[s])


def whole_text(corpus: Corpus) -> bytes:
    """Return the text of a corpus of lines; each line ends with a newline."""
    blocks = (block for chunk in corpus.chunks(1 << 62) for block in read_blocks(chunk, "word", 4 << 20))
    return b"".join(block.data.tobytes() for block in blocks)


def read_blocks(
    chunk: Chunk,
    unit: str,
    block_bytes: int,
    halo: int = 0,
    allocate: Callable[[int], np.ndarray] | None = None,
    threads: int = 1,
    checksums: list[PartCrc] | None = None,
    plain_crcs: bool = True,
) -> Iterator[TextBlock]:
    """Yield the text of a chunk in blocks of about `block_bytes`.

    unit       "word": whole lines, each ended by a newline, all owned, except a newline that the last line
               lacks; a long line makes its block longer. "byte", "id": cuts between any tokens, with up to
               `halo` following tokens of the same source after the owned bytes
    allocate   allocate(nbytes) returns a uint8 array for a block's data. The caller may reuse it when it
               asks for the next block. It is called once per block with equal sizes, and again with a
               larger one if a line needs it. None: new memory
    threads    threads that read plain sources, in strips of 4 MiB
    checksums  receives (source_index, offset, length, crc32) of each piece when it has been read: CRC-32
               of the stored bytes; for a Parquet file, of its footer's metadata, once per file.
               `combine_crc32` joins the checksums of one source
    plain_crcs False: checksums receives nothing for plain sources; `BlockChecksums` has theirs for each block

    Raises InputError for missing, shrunken, truncated or corrupt sources.
    """
    if block_bytes < 1:
        raise InputError(f"block_bytes is {block_bytes} but must be at least 1")
    pool = ThreadPoolExecutor(threads) if threads > 1 else nullcontext()
    filler = _Filler(_room(chunk, unit, block_bytes, halo), allocate or (lambda nbytes: np.empty(nbytes, np.uint8)))
    with pool as workers:
        yield from _fill(filler, chunk, Reading(unit, halo, workers, threads, checksums, plain_crcs))


def read_lines(chunk: Chunk, block_bytes: int, report: Callable[[str], None] | None) -> Iterator[TextBlock]:
    """Yield the text of a chunk in blocks of whole lines, as `read_blocks` does.

    report  report(reason) is called for damaged compressed data, whose text ends with the last whole line before the
            damage; None: DamagedInput is raised
    """
    filler = _Filler(_room(chunk, "word", block_bytes, 0), lambda nbytes: np.empty(nbytes, np.uint8))
    yield from _fill(filler, chunk, Reading("word", report=report))


def _fill(filler: _Filler, chunk: Chunk, reading: Reading) -> Iterator[TextBlock]:
    for piece in chunk.pieces:
        with open_streams(piece, reading) as streams:
            for stream in streams:
                yield from filler.fill(piece, stream, reading.unit, reading.halo)
    yield from filler.flush()


def read_list(path: str | os.PathLike[str]) -> bytes:
    """Return the text of a list, such as a vocabulary, without a byte order mark; each line ends with a newline.

    Raises InputError for a file that cannot be read or holds no lines.
    """
    return without_mark(whole_text(open_list(path)))


@dataclass
class BlockChecksums:
    """The CRC-32 of the bytes of plain sources that a block owns, computed on the device of the block's bytes.

    crcs_S  (S,) uint32, on that device; a GPU may still be computing them
    """

    sources_S: np.ndarray
    offsets_S: np.ndarray
    lengths_S: np.ndarray
    crcs_S: Any

    @classmethod
    def of(cls, block: TextBlock, data: Any, chunk: Chunk) -> BlockChecksums:
        """Compute them on the current stream; data are the block's bytes, on the host or on a GPU."""
        stored = {p.source_index for p in chunk.pieces if p.source.is_stored_text}
        plain_S = np.array([source in stored for source in block.sources_S.tolist()], bool)
        starts_S, lengths_S = block.starts_S[plain_S], block.owned_S[plain_S]
        xp = array_module(data)
        crcs_S = crc32(data, xp.asarray(starts_S), xp.asarray(lengths_S))
        return cls(block.sources_S[plain_S], block.offsets_S[plain_S], lengths_S, crcs_S)

    def rows(self) -> list[PartCrc]:
        """Return (source_index, offset, length, crc32) of each segment.

        Together, the segments of all blocks cover every non-empty source, like the checksums of `read_blocks`.
        """
        columns = self.sources_S, self.offsets_S, self.lengths_S, to_host(self.crcs_S)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def _room(chunk: Chunk, unit: str, block_bytes: int, halo: int) -> int:
    """Return the size of a block's buffer in bytes, no more than the chunk may need."""
    itemsize = max((piece.source.itemsize for piece in chunk.pieces), default=1)
    needed = sum(piece.end - piece.start if piece.source.format in CUTTABLE else UNKNOWN_END for piece in chunk.pieces)
    if unit == "word":
        return min(block_bytes, needed + PROBE_BYTES)  # its last line continues past the chunk's end
    return max(min(block_bytes, needed) // itemsize, 1) * itemsize + halo * itemsize


class _Filler:
    """Fills blocks with the streams of a chunk."""

    def __init__(self, room: int, allocate: Callable[[int], np.ndarray]):
        self.room, self.allocate = room, allocate
        self.buffer: np.ndarray | None = None
        self.used = 0  # bytes of the buffer that segments fill
        self.segments: list[tuple[int, int, int, int, int]] = []  # start, length, owned, source, offset

    def flush(self) -> Iterator[TextBlock]:
        """Yield the block if it is not empty, and begin another."""
        if self.buffer is not None and self.segments:
            columns = (np.array(column, np.int64) for column in zip(*self.segments, strict=True))
            starts, lengths, owned, sources, offsets = columns
            yield TextBlock(self.buffer[: self.used], starts, lengths, owned, sources.astype(np.int32), offsets)
        self.buffer, self.used, self.segments = None, 0, []

    def fill(self, piece: Piece, stream: Range | ArrayStream, unit: str, halo: int) -> Iterator[TextBlock]:
        """Add the bytes of one stream; yield every full block."""
        at = stream.start  # offset of the next byte that no segment owns
        carry = np.empty(0, np.uint8)  # bytes from `at` on that have been read
        cut = _cut_lines if unit == "word" else _cut_tokens
        while at < stream.end and (len(carry) or not stream.ended()):
            if unit == "word" and len(carry) >= MAX_LINE_BYTES:
                raise InputError(
                    f"{piece.source.name!r}: the line at byte {at:,} is longer than {MAX_LINE_BYTES:,} bytes; "
                    "break it into lines"
                )
            if self.buffer is None:
                size = self.room if len(carry) < self.room else 2 * len(carry)  # a line outgrew it
                size = min(size, MAX_LINE_BYTES) if unit == "word" else size
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
    """Return (length, owned) of the segment at the start of a view that holds n bytes from offset `at` on.

    n < len(view) only at the end of the stream. `end` is the end of the owned bytes of the stream.
    """
    if n < len(view):
        if n and view[n - 1] != 10:
            view[n] = 10
            return n + 1, n
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
        if n % source.itemsize:  # only compressed sources: others were checked when they were opened
            raise InputError(odd_size(source.name, at + n, source.itemsize))
        return n, min(n, end - at)
    owned = max(0, n - halo * source.itemsize) // source.itemsize * source.itemsize
    return (n, owned) if owned else (0, 0)
