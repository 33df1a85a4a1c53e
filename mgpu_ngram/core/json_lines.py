"""Find the texts of JSON lines and add fields to the lines in compiled code, without an object for each line.

The scanner takes lines that every parser of JSON takes, and understands alike. It leaves all others, such as lines with
an error, to `json_records.parse_record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import uint64

from mgpu_ngram.kernels.common.chunks import load_8
from mgpu_ngram.kernels.compile import njit, read_only
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64, trailing_zeros

PLAIN, ODD = 1, 2  # kinds of lines
SLACK = 8  # bytes that are stored at once
MAX_NUMBER = 300  # bytes of a number
MAX_DEPTH = 60
ODD_VALUE = -1
QUOTE, BACKSLASH, COMMA, COLON, NEWLINE = 34, 92, 44, 58, 10
OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93
ONES, HIGH = 0x0101010101010101, 0x8080808080808080

# Columns of the table of lines
START, STOP, CLOSE, KIND, TEXT_END, TAG_START, TAG_STOP, NUMBER, COLUMNS = range(9)


@dataclass
class JsonLines:
    """The lines of a block that are not blank, D of them.

    data      (B,) uint8, the block
    table_DC  (D, COLUMNS) int64: where a line starts and stops (without its newline), and where its object closes;
              PLAIN or ODD; where its text ends in `texts`; where the value of the tag
              starts and stops in `data`, -1 if it is no string; and the line's number in the block, from 0
    texts     uint8, the unescaped texts of all PLAIN lines, one after the other, in UTF-8
    lines     lines of the block, with blank ones
    """

    data: np.ndarray
    table_DC: np.ndarray
    texts: np.ndarray
    lines: int

    def line(self, d: int) -> bytes:
        """Return line d, without its newline."""
        start, stop = self.table_DC[d, :2].tolist()
        return self.data[start:stop].tobytes()

    def tags(self) -> list[str | None]:
        """Return the value of the tag of each line, None if it is no string."""
        known: dict[bytes, str] = {}
        found: list[str | None] = []
        for start, stop in self.table_DC[:, [TAG_START, TAG_STOP]].tolist():
            value = self.data[start:stop].tobytes()
            found.append(known.setdefault(value, value.decode()) if start >= 0 else None)
        return found


def scan_lines(data: np.ndarray, text_key: str, tag: str, new_keys: Sequence[str]) -> JsonLines:
    """Return the lines of a block, of which each ends with a newline; releases the GIL.

    data      (B,) uint8
    text_key  key of the text; a line without it is ODD
    tag       another key, of which the value is found; "": none
    new_keys  a line that has one of them is ODD
    """
    keys = [key.encode("utf-8", "replace") for key in (text_key, tag, *new_keys)]
    ends_K = np.cumsum([len(key) for key in keys], dtype=np.int64)
    texts = np.empty(len(data) + SLACK, np.uint8)
    lines = int(np.count_nonzero(data == NEWLINE))
    table_DC = np.empty((lines, COLUMNS), np.int64)
    D, used = _scan(read_only(data), np.frombuffer(b"".join(keys), np.uint8), read_only(ends_K), texts, table_DC)
    return JsonLines(data, table_DC[:D], texts[:used], lines)


@njit(nogil=True, cache=True)
def _scan(data, keys, ends_K, texts, table_DC):
    d, at, i = 0, 0, 0
    for number in range(len(table_DC)):
        start = i
        first = start
        while data[first] != NEWLINE and (data[first] == 32 or 9 <= data[first] <= 13):
            first += 1
        if data[first] == NEWLINE:
            i = first + 1
            continue
        row = table_DC[d]
        row[START], row[NUMBER] = start, number
        i, text_at = _line(data, start, keys, ends_K, texts, at, row)
        row[KIND] = ODD if i == ODD_VALUE else PLAIN
        if i == ODD_VALUE:
            i = _find_newline(data, start)
            row[TAG_START], row[TAG_STOP] = -1, -1
        else:
            at = text_at
        row[STOP], row[TEXT_END] = i, at
        i += 1
        d += 1
    return d, at


@njit(nogil=True, cache=True)
def _line(data, i, keys, ends_K, texts, at, row):
    """Read the object on a line. Returns (where the line ends, or ODD_VALUE; the end of its text)."""
    i = _space(data, i)
    if data[i] != OPEN_OBJECT:
        return ODD_VALUE, at
    i = _space(data, i + 1)
    has_text, has_tag = False, False
    tag = (-1, -1)
    if data[i] == CLOSE_OBJECT:
        return ODD_VALUE, at
    while True:
        if data[i] != QUOTE:
            return ODD_VALUE, at
        key = i + 1
        i = _string(data, key, True)
        if i == ODD_VALUE:
            return ODD_VALUE, at
        found = _which(data, key, i - 1, keys, ends_K)
        i = _space(data, i)
        if data[i] != COLON:
            return ODD_VALUE, at
        i = _space(data, i + 1)
        if found == 0:
            if has_text:
                return ODD_VALUE, at
            has_text = True
            if data[i] == QUOTE:
                i, at = _text(data, i + 1, texts, at)
            elif data[i] == 110:  # null
                i = _literal(data, i)
            else:
                return ODD_VALUE, at
        elif found == 1:
            if has_tag:
                return ODD_VALUE, at
            has_tag = True
            if data[i] == QUOTE:
                start = i + 1
                i = _string(data, start, True)
                tag = (start, i - 1)
            else:
                i = _value(data, i)
        elif found > 1:
            return ODD_VALUE, at
        else:
            i = _value(data, i)
        if i == ODD_VALUE:
            return ODD_VALUE, at
        i = _space(data, i)
        if data[i] == COMMA:
            i = _space(data, i + 1)
        elif data[i] == CLOSE_OBJECT:
            break
        else:
            return ODD_VALUE, at
    row[CLOSE] = i
    row[TAG_START], row[TAG_STOP] = tag
    i = _space(data, i + 1)
    return (i if has_text and data[i] == NEWLINE else ODD_VALUE), at


@njit(nogil=True, cache=True)
def _space(data, i):
    """Return the first byte from i on that is no white space of JSON; a newline ends the line."""
    while data[i] == 32 or data[i] == 9 or data[i] == 13:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _find_newline(data, i):
    while i + 8 <= len(data):
        chunk = load_u64(data, i) ^ uint64(0x0A0A0A0A0A0A0A0A)  # type: ignore[call-arg]
        found = (chunk - uint64(ONES)) & ~chunk & uint64(HIGH)
        if found:
            return i + (trailing_zeros(found) >> 3)  # type: ignore[call-arg]
        i += 8
    while data[i] != NEWLINE:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _which(data, start, stop, keys, ends_K):
    """Return the number of the key data[start:stop], or -1 if it is none of these."""
    begin = 0
    for k in range(len(ends_K)):
        if ends_K[k] - begin == stop - start and stop > start:
            same = True
            for j in range(stop - start):
                same &= data[start + j] == keys[begin + j]
            if same:
                return k
        begin = ends_K[k]
    return -1


@njit(nogil=True, cache=True)
def _special(chunk):
    """Return the high bit of each byte that is a quote, a backslash, a control character or not ASCII.

    Bits above the first are not exact.
    """
    quote = chunk ^ uint64(0x2222222222222222)
    slash = chunk ^ uint64(0x5C5C5C5C5C5C5C5C)
    found = (quote - uint64(ONES)) & ~quote
    found |= (slash - uint64(ONES)) & ~slash
    found |= (chunk - uint64(0x2020202020202020)) & ~chunk
    return (found | chunk) & uint64(HIGH)


@njit(nogil=True, cache=True)
def utf8_size(data, i):
    """Return the bytes of the character of UTF-8 at i, which is not ASCII; 0 if these are none."""
    a, b = data[i], data[i + 1]
    if b & 0xC0 != 0x80:  # a newline at the latest
        return 0
    if 0xC2 <= a <= 0xDF:
        return 2
    if data[i + 2] & 0xC0 != 0x80:
        return 0
    if 0xE0 <= a <= 0xEF:
        bad = (a == 0xE0 and b < 0xA0) or (a == 0xED and b > 0x9F)
        return 0 if bad else 3
    if data[i + 3] & 0xC0 != 0x80:
        return 0
    if 0xF0 <= a <= 0xF4:
        bad = (a == 0xF0 and b < 0x90) or (a == 0xF4 and b > 0x8F)
        return 0 if bad else 4
    return 0


@njit(nogil=True, cache=True)
def _string(data, i, plain):
    """Return the byte after the quote that ends the string whose first byte is i, or ODD_VALUE.

    plain  a string with escapes is odd
    """
    while True:
        if i + 8 <= len(data):
            found = _special(load_u64(data, i))  # type: ignore[call-arg]
            if not found:
                i += 8
                continue
            i += trailing_zeros(found) >> 3  # type: ignore[call-arg]
        c = data[i]
        if c == QUOTE:
            return i + 1
        if c == BACKSLASH:
            size = _escape(data, i)
            if plain or size == 0:
                return ODD_VALUE
            i += size
        elif c >= 0x80:
            while data[i] >= 0x80:
                size = utf8_size(data, i)
                if size == 0:
                    return ODD_VALUE
                i += size
        elif c < 32:
            return ODD_VALUE
        else:
            i += 1


@njit(nogil=True, cache=True)
def _escape(data, i):
    """Return the bytes of the escape at i, 0 if it is none."""
    c = data[i + 1]
    if c == 117:  # u
        return 6 if _hex(data, i + 2) >= 0 else 0
    for other in (34, 92, 47, 98, 102, 110, 114, 116):
        if c == other:
            return 2
    return 0


@njit(nogil=True, cache=True)
def _hex(data, i):
    """Return the number of the four hexadecimal digits from i on, or -1."""
    value = 0
    for k in range(4):
        c = int(data[i + k])
        if 48 <= c <= 57:
            value = 16 * value + c - 48
        elif 97 <= (c | 32) <= 102:
            value = 16 * value + (c | 32) - 87
        else:
            return -1
    return value


@njit(nogil=True, cache=True)
def _text(data, i, texts, at):
    """Write the string whose first byte is i, unescaped, to `texts` from `at` on.

    Returns (the byte after its quote, or ODD_VALUE; the end of what was written).
    """
    while True:
        if i + 8 <= len(data):
            chunk = load_u64(data, i)  # type: ignore[call-arg]
            store_u64(texts, at, chunk)  # type: ignore[call-arg]
            found = _special(chunk)
            if not found:
                i += 8
                at += 8
                continue
            size = trailing_zeros(found) >> 3  # type: ignore[call-arg]
            i += size
            at += size
        c = data[i]
        if c == QUOTE:
            return i + 1, at
        if c == BACKSLASH:
            size = _escape(data, i)
            if size == 0:
                return ODD_VALUE, at
            code = int(data[i + 1])
            if size == 6:
                code = _hex(data, i + 2)
                if 0xD800 <= code < 0xDC00 and data[i + 6] == BACKSLASH and data[i + 7] == 117:
                    low = _hex(data, i + 8)
                    if 0xDC00 <= low < 0xE000:
                        code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
                        size = 12
                if 0xD800 <= code < 0xE000:
                    return ODD_VALUE, at
            elif code == 98:
                code = 8
            elif code == 102:
                code = 12
            elif code == 110:
                code = 10
            elif code == 114:
                code = 13
            elif code == 116:
                code = 9
            at = _put(texts, at, code)
            i += size
        elif c >= 0x80:
            while data[i] >= 0x80:
                size = utf8_size(data, i)
                if size == 0:
                    return ODD_VALUE, at
                for k in range(size):
                    texts[at + k] = data[i + k]
                i += size
                at += size
        elif c < 32:
            return ODD_VALUE, at
        else:
            texts[at] = c
            i += 1
            at += 1


@njit(nogil=True, cache=True)
def _put(out, at, code):
    """Write a code point as UTF-8; returns the end."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at], out[at + 1] = 0xC0 | code >> 6, 0x80 | code & 63
        return at + 2
    if code < 0x10000:
        out[at], out[at + 1], out[at + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 63, 0x80 | code & 63
        return at + 3
    out[at], out[at + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 63
    out[at + 2], out[at + 3] = 0x80 | code >> 6 & 63, 0x80 | code & 63
    return at + 4


@njit(nogil=True, cache=True)
def _literal(data, i):
    """Return the byte after true, false or null at i, or ODD_VALUE."""
    chunk = load_8(data, i)
    if chunk & uint64(0xFFFFFFFF) == uint64(0x65757274) or chunk & uint64(0xFFFFFFFF) == uint64(0x6C6C756E):
        return i + 4
    if chunk & uint64(0xFFFFFFFFFF) == uint64(0x65736C6166):
        return i + 5
    return ODD_VALUE


@njit(nogil=True, cache=True)
def _digits(data, i):
    while 48 <= data[i] <= 57:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _number(data, i):
    """Return the byte after the number at i, or ODD_VALUE."""
    first = i
    if data[i] == 45:
        i += 1
    start = i
    i = _digits(data, i)
    if i == start or (data[start] == 48 and i > start + 1):
        return ODD_VALUE
    if data[i] == 46:
        start = i + 1
        i = _digits(data, start)
        if i == start:
            return ODD_VALUE
    if data[i] | 32 == 101:
        start = i + 1
        if data[start] == 43 or data[start] == 45:
            start += 1
        i = _digits(data, start)
        if i == start:
            return ODD_VALUE
    return i if i - first <= MAX_NUMBER else ODD_VALUE


@njit(nogil=True, cache=True)
def _value(data, i):
    """Return the byte after the value at i, or ODD_VALUE."""
    depth, objects = 0, uint64(0)  # the lowest bit: whether the innermost container is an object
    while True:
        c = data[i]
        opened = False
        if c == QUOTE:
            i = _string(data, i + 1, False)
        elif c == OPEN_OBJECT or c == OPEN_LIST:  # noqa: SIM109
            is_object = c == OPEN_OBJECT
            i = _space(data, i + 1)
            if data[i] == (CLOSE_OBJECT if is_object else CLOSE_LIST):
                i += 1
            else:
                opened = True
                depth += 1
                if depth > MAX_DEPTH:
                    return ODD_VALUE
                objects = objects << uint64(1) | uint64(is_object)
                if is_object:
                    i = _key(data, i)
        elif c == 45 or 48 <= c <= 57:
            i = _number(data, i)
        else:
            i = _literal(data, i)
        if i == ODD_VALUE:
            return ODD_VALUE
        while not opened:
            if depth == 0:
                return i
            i = _space(data, i)
            if data[i] == COMMA:
                i = _space(data, i + 1)
                if objects & uint64(1):
                    i = _key(data, i)
                    if i == ODD_VALUE:
                        return ODD_VALUE
                break
            if data[i] != (CLOSE_OBJECT if objects & uint64(1) else CLOSE_LIST):
                return ODD_VALUE
            i += 1
            depth -= 1
            objects >>= uint64(1)


@njit(nogil=True, cache=True)
def _key(data, i):
    """Return where the value of the key at i begins, or ODD_VALUE."""
    if data[i] != QUOTE:
        return ODD_VALUE
    i = _string(data, i + 1, False)
    if i == ODD_VALUE:
        return ODD_VALUE
    i = _space(data, i)
    return _space(data, i + 1) if data[i] == COLON else ODD_VALUE


def join_lines(
    lines: JsonLines, kept_D: np.ndarray, added: tuple[np.ndarray, np.ndarray], odd: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the lines that are kept, each with its new fields at the end of its object; releases the GIL.

    kept_D  (D,) bool
    added   ((D + 1,) int64 offsets, uint8): the text of each PLAIN line's new fields; empty: the line stays as it is
    odd     the same: what each ODD line becomes
    """
    room = len(lines.data) + len(added[1]) + len(odd[1]) + 3 * len(lines.table_DC) + SLACK
    out = np.empty(room, np.uint8)
    return out[: _join(lines.data, lines.table_DC, kept_D, *map(read_only, added), *map(read_only, odd), out)]


@njit(nogil=True, cache=True)
def _join(data, table_DC, kept_D, offsets_D, added, odd_offsets_D, odd, out):
    at = 0
    for d in range(len(table_DC)):
        if not kept_D[d]:
            continue
        row = table_DC[d]
        if row[KIND] == ODD:
            at = _copy(odd, odd_offsets_D[d], odd_offsets_D[d + 1], out, at)
        elif offsets_D[d] == offsets_D[d + 1]:
            at = _copy(data, row[START], row[STOP], out, at)
        else:
            end = row[CLOSE]
            while data[end - 1] == 32 or data[end - 1] == 9 or data[end - 1] == 13:
                end -= 1
            at = _copy(data, row[START], end, out, at)
            out[at], out[at + 1] = COMMA, 32
            at = _copy(added, offsets_D[d], offsets_D[d + 1], out, at + 2)
            at = _copy(data, row[CLOSE], row[STOP], out, at)
        out[at] = NEWLINE
        at += 1
    return at


@njit(nogil=True, cache=True)
def _copy(source, start, stop, out, at):
    """Copy source[start:stop] to out[at:]; up to 7 bytes after it are written, too. Returns its end."""
    i = start
    while i + 8 <= len(source) and i < stop:
        store_u64(out, at + i - start, load_u64(source, i))  # type: ignore[call-arg]
        i += 8
    while i < stop:
        out[at + i - start] = source[i]
        i += 1
    return at + stop - start
