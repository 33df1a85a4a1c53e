"""Text as bytes and back, without loss: bytes that are not UTF-8 become halves of surrogate pairs."""

from __future__ import annotations

import codecs

BOM = codecs.BOM_UTF8  # the byte order mark, which some editors write at the start of a file


def without_mark(data: bytes) -> bytes:
    """Return the bytes of a file of text without a byte order mark."""
    return data.removeprefix(BOM)


def to_text(data: bytes) -> str:
    """Return bytes as str; `to_bytes` returns the same bytes again."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return str as bytes: a character of `to_text` as the byte that it was, another half of a surrogate pair as the
    three bytes that UTF-8 would have for it.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b"".join(
            char.encode("utf-8", "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass")
            for char in text
        )
