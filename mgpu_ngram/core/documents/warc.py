"""Read the records of a WARC file, such as the texts of Common Crawl's WET files, and report damaged records.

The format: ISO 28500. Compressed files of crawls have a gzip member for each record.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.byte_ranges import PROBE_BYTES, STRIP_BYTES, Read, reader
from mgpu_ngram.core.inputs.decompress import decompressed
from mgpu_ngram.core.inputs.sources import CUTTABLE, Source
from mgpu_ngram.core.storage.file_heads import WARC_MAGIC

TEXT_RECORD = "conversion"  # type of the records that hold text
IN_WET = (TEXT_RECORD, "warcinfo")  # types of the records of a WET file
DOCUMENT_FIELDS = {  # of a document, by header
    "id": "warc-record-id",
    "url": "warc-target-uri",
    "date": "warc-date",
    "digest": "warc-block-digest",
    "language": "warc-identified-content-language",
}
LENGTH = "length"  # field with the bytes of a document's text
MAX_HEADER_BYTES = 64 << 10
MAX_RECORD_BYTES = 256 << 20  # Common Crawl cuts pages at 5 MiB
DAMAGED_BYTES = 64 << 10  # bytes of a damaged record to keep
HELD_TEXT_BYTES = 16 << 20  # bytes of text of a gzip member that wait for its checksum; records of a crawl have fewer
GZIP = b"\x1f\x8b\x08"
OVERLAP_BYTES = 1024  # bytes that show whether a gzip member holds a record

_BLANK = re.compile(rb"[\r\n]*")
_BEGIN = re.compile(rb"WARC/\d\.\d\r?\n[A-Za-z-]+:")
_BEGIN_BYTES = 64  # bytes that show whether a record begins
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_TYPE = re.compile(rb"\nWARC-Type:\s*([a-z]+)", re.IGNORECASE)


@dataclass
class WarcRecord:
    """A record: its offset in the decompressed file, its headers by lower-case name, and its content."""

    offset: int
    headers: dict[str, str]
    content: bytes


@dataclass
class DamagedRecord:
    """Bytes that are not a complete record: their offset in the decompressed file, the reason, and the first bytes."""

    offset: int
    reason: str
    head: bytes


def check_wet(name: str, head: bytes, column: str) -> None:
    """Raise InputError for a WARC file that begins without texts, and for a column that is another field."""
    types = [found.decode().lower() for found in _TYPE.findall(head)]
    other = next((found for found in types if found not in IN_WET), "")
    if other and TEXT_RECORD not in types:
        raise InputError(f"{name!r} is a WARC file of {other} records, which hold no text; give the files *.wet.gz")
    if column in (*DOCUMENT_FIELDS, LENGTH):
        raise InputError(f"text_column is {column!r}, which is another field of a WET file; leave it out")


def document_of(record: WarcRecord, column: str) -> tuple[dict[str, Any], str]:
    """Return the fields of a document and its text, the value of `column`; without the newlines at its end.

    Raises UnicodeDecodeError for text that is not UTF-8.
    """
    text = record.content.decode().rstrip("\r\n")
    headers = record.headers
    fields: dict[str, Any] = {name: headers[key] for name, key in DOCUMENT_FIELDS.items() if key in headers}
    if "language" in fields:  # in the order of their shares: eng,deu
        fields["language"] = fields["language"].partition(",")[0]
    return fields | {LENGTH: len(record.content), column: text}, text


def read_records(source: Source) -> Iterator[WarcRecord | DamagedRecord]:
    """Yield the records of a WARC file, plain or compressed, in order.

    After a damaged record, reading continues at the next one. After damaged gzip data, the next one is the first
    member that holds a record; other compressed files end at the damage.
    """
    parser = _RecordParser()
    with reader(source) as read:
        for text in _texts(source, read):
            yield from parser.cut(text) if isinstance(text, str) else parser.feed(text)
    yield from parser.end()


class _RecordParser:
    """Finds records in text that comes in parts."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._offset = 0  # of the buffer
        self._needed = 0  # bytes of the buffer that the next record needs
        self._lost = False  # behind damage: searching for the next record

    def feed(self, text: bytes) -> Iterator[WarcRecord | DamagedRecord]:
        self._buffer += text
        if len(self._buffer) >= self._needed:
            yield from self._records(False)

    def cut(self, reason: str) -> Iterator[DamagedRecord]:
        """Drop the incomplete record in the buffer; the text that follows begins a new record."""
        yield DamagedRecord(self._offset, reason, bytes(self._buffer[:DAMAGED_BYTES]))
        self._drop(len(self._buffer))
        self._lost = False

    def end(self) -> Iterator[WarcRecord | DamagedRecord]:
        yield from self._records(True)

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._offset += size
        self._needed = 0

    def _records(self, ended: bool) -> Iterator[WarcRecord | DamagedRecord]:
        at, buffer = 0, self._buffer
        while True:
            if self._lost:
                found = _BEGIN.search(buffer, at)
                at = found.start() if found else max(at, len(buffer) - (0 if ended else _BEGIN_BYTES))
                self._lost = not found
                if not found:
                    break
            at = self._after_blank(at)
            if at == len(buffer):
                break
            record, end = self._record(at, ended)
            if record is None:
                break
            yield record
            at = end
        needed = self._needed - at
        self._drop(at)
        self._needed = needed

    def _after_blank(self, at: int) -> int:
        found = _BLANK.match(self._buffer, at)
        return found.end() if found else at

    def _record(self, at: int, ended: bool) -> tuple[WarcRecord | DamagedRecord | None, int]:
        """Return the record that begins at `at`, and where it ends; None: it needs more bytes."""
        buffer = self._buffer
        if not _BEGIN.match(buffer, at):
            if not ended and len(buffer) - at < _BEGIN_BYTES:
                return None, at
            return self._damaged(at, "here begins no WARC record")
        header_end = _HEADER_END.search(buffer, at, at + MAX_HEADER_BYTES)
        if not header_end:
            if not ended and len(buffer) - at < MAX_HEADER_BYTES:
                return None, at
            return self._damaged(at, "the header of the WARC record has no end")
        lines = buffer[at : header_end.start()].decode("utf-8", "replace").split("\n")[1:]
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = headers.get("content-length", "missing")
        if not length.isdecimal() or int(length) > MAX_RECORD_BYTES:
            return self._damaged(at, f"Content-Length is {length}, no number up to {MAX_RECORD_BYTES:,}")
        start, end = header_end.end(), header_end.end() + int(length)
        if len(buffer) < end + 4 and not ended:
            self._needed = end + 4
            return None, at
        if len(buffer) < end:
            return self._damaged(
                at, f"the file ends after {len(buffer) - start:,} of {end - start:,} bytes of the text"
            )
        if not buffer.startswith((b"\r\n\r\n", b"\n\n"), end) and not (ended and not buffer[end:].strip()):
            return self._damaged(at, f"the WARC record does not end after its {int(length):,} bytes")
        return WarcRecord(self._offset + at, headers, bytes(buffer[start:end])), end

    def _damaged(self, at: int, reason: str) -> tuple[DamagedRecord, int]:
        found = _BEGIN.search(self._buffer, at + 1)
        self._lost = not found
        end = found.start() if found else len(self._buffer)
        head = bytes(self._buffer[at : min(end, at + DAMAGED_BYTES)])
        return DamagedRecord(self._offset + at, reason, head), end if found else at + 1


def _texts(source: Source, read: Read) -> Iterator[bytes | str]:
    """Yield the decompressed text in parts, and the reason (str) where some of it is damaged."""
    if source.format in CUTTABLE:
        yield from _strips(source, read, 0)
    elif source.format == "gzip":
        yield from _members(source, read)
    else:
        try:
            yield from (text.tobytes() for text in decompressed(source, read, None))
        except InputError as error:
            yield str(error).rpartition(";")[0]


def _strips(source: Source, read: Read, start: int) -> Iterator[bytes]:
    for offset in range(start, source.size_bytes, STRIP_BYTES):
        strip = np.empty(min(STRIP_BYTES, source.size_bytes - offset), np.uint8)
        read(offset, strip)
        yield strip.tobytes()


def _members(source: Source, read: Read) -> Iterator[bytes | str]:
    """Yield the text of each gzip member whose checksum is right; text of more than HELD_TEXT_BYTES comes in parts."""
    start = 0
    while start < source.size_bytes:
        decoder: Any = None
        member = start  # where the current member begins
        held: list[bytes] = []  # its text
        held_bytes = 0
        damage = ""
        for strip in _strips(source, read, start):
            for probe in range(0, len(strip), PROBE_BYTES):
                stored = strip[probe : probe + PROBE_BYTES]
                while stored and not damage:
                    if decoder is None:
                        stored = stored.lstrip(b"\0")  # padding between members
                        if not stored:
                            break
                        member = start + probe + min(PROBE_BYTES, len(strip) - probe) - len(stored)
                        decoder, held_bytes = zlib.decompressobj(wbits=31), 0
                    try:
                        text = decoder.decompress(stored)
                    except zlib.error as error:
                        damage = f"damaged gzip data in the member at byte {member:,} ({error})"
                        break
                    stored = decoder.unused_data if decoder.eof else b""
                    held.append(text)
                    held_bytes += len(text)
                    if decoder.eof:
                        decoder = None
                    if decoder is None or held_bytes > HELD_TEXT_BYTES:
                        yield b"".join(held)
                        held = []
                if damage:
                    break
            if damage:
                break
            start += len(strip)
        if decoder is not None and not damage:
            yield b"".join(held)  # nothing contradicts it
            damage = f"truncated gzip data in the member at byte {member:,}"
        if not damage:
            return
        yield damage
        start = _next_member(source, read, member + 1)


def _next_member(source: Source, read: Read, start: int) -> int:
    """Return where the next gzip member that holds a record begins; the size of the file if none does."""
    while start < source.size_bytes:
        strip = next(_strips(source, read, start))
        at = strip.find(GZIP)
        while at >= 0:
            with_some = strip[at : at + OVERLAP_BYTES]
            try:
                if zlib.decompressobj(wbits=31).decompress(with_some, len(WARC_MAGIC)) == WARC_MAGIC:
                    return start + at
            except zlib.error:
                pass
            at = strip.find(GZIP, at + 1)
        if start + len(strip) == source.size_bytes:
            break
        start += len(strip) - OVERLAP_BYTES  # a member may begin before the cut
    return source.size_bytes
