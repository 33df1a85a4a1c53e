"""Decompress the text of a source and report where it is damaged."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import DamagedInput
from mgpu_ngram.core.inputs.byte_ranges import PROBE_BYTES, STRIP_BYTES, Read, reader
from mgpu_ngram.core.inputs.sources import Source, import_zstandard
from mgpu_ngram.core.storage.crc import Crc


def decompressed(source: Source, read: Read, crc: Crc | None, strip_bytes: int = STRIP_BYTES) -> Iterator[np.ndarray]:
    """Yield the text of a compressed source; its members or frames follow one another.

    crc          extended by the stored bytes
    strip_bytes  bytes of one read
    """
    make, errors = _codec(source)
    text_bytes = fed = 0
    decoder = None

    def damaged(why: str) -> DamagedInput:
        where = f"at byte {fed} of {source.size_bytes}, after {text_bytes} bytes of text"
        return DamagedInput(f"{source.name!r} is {why} {where}; compress it again or leave it out")

    for offset in range(0, source.size_bytes, strip_bytes):
        strip = np.empty(min(strip_bytes, source.size_bytes - offset), np.uint8)
        read(offset, strip)
        if crc:
            crc.add(zlib.crc32(strip.data), len(strip))
        for start in range(0, len(strip), PROBE_BYTES):  # little at once, because it may grow a thousandfold
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


def first_text(source: Source, most: int) -> bytes:
    """Return the first text of a compressed file: one decoding step, at most `most` bytes."""
    with reader(source) as read:
        return next((text[:most].tobytes() for text in decompressed(source, read, None, PROBE_BYTES)), b"")


def _codec(source: Source) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return (a function that makes a decoder, the exceptions that it raises)."""
    if source.format == "gzip":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if source.format == "bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if source.format == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), (lzma.LZMAError,)
    zstandard = import_zstandard(source.name)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # zstd --long=31
    return decompressor.decompressobj, (zstandard.ZstdError,)
