"""Read JSON values in compiled code; values that parsers may read differently are odd."""

# mypy: allow-untyped-defs

from __future__ import annotations

from numpy import uint64

from mgpu_ngram.kernels.common.ascii import BACKSLASH, COLON, COMMA, HIGH_BITS, ONES, QUOTE
from mgpu_ngram.kernels.common.load_bytes import load_8
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64, trailing_zeros

MAX_NUMBER = 300  # bytes of a number
MAX_DEPTH = 60
ODD_VALUE = -1
OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST = 123, 125, 91, 93


@njit(nogil=True, cache=True)
def past_space(data, i):
    """Return the first byte from i on that is not white space of JSON; a newline ends the line."""
    while data[i] == 32 or data[i] == 9 or data[i] == 13:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _special(chunk):
    """Return the high bit of each byte that is a quote, a backslash, a control character or not ASCII.

    Bits above the first are not exact.
    """
    quote = chunk ^ uint64(0x2222222222222222)
    slash = chunk ^ uint64(0x5C5C5C5C5C5C5C5C)
    found = (quote - ONES) & ~quote
    found |= (slash - ONES) & ~slash
    found |= (chunk - uint64(0x2020202020202020)) & ~chunk
    return (found | chunk) & HIGH_BITS


@njit(nogil=True, cache=True)
def utf8_size(data, i):
    """Return the number of bytes of the non-ASCII UTF-8 character at i; 0 if the bytes are not valid UTF-8."""
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
def string_end(data, i, plain):
    """Return the byte after the quote that ends the string whose first byte is i, or ODD_VALUE.

    plain  a string with escapes is odd
    """
    while True:
        if i + 8 <= len(data):
            found = _special(load_u64(data, i))
            if not found:
                i += 8
                continue
            i += trailing_zeros(found) >> 3
        c = data[i]
        if c == QUOTE:
            return i + 1
        if c == BACKSLASH:
            size = _escape_size(data, i)
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
def _escape_size(data, i):
    """Return the bytes of the escape at i, 0 if it is none."""
    c = data[i + 1]
    if c == 117:  # u
        return 6 if hex_value(data, i + 2) >= 0 else 0
    for other in (34, 92, 47, 98, 102, 110, 114, 116):
        if c == other:
            return 2
    return 0


@njit(nogil=True, cache=True)
def hex_value(data, i):
    """Return the value of the four hexadecimal digits from i on, or -1."""
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
def read_text(data, i, texts, at):
    """Write the string whose first byte is i, unescaped, to `texts` from `at` on.

    Returns (the byte after its quote, or ODD_VALUE; the end of the written bytes).
    """
    while True:
        if i + 8 <= len(data):
            chunk = load_u64(data, i)
            store_u64(texts, at, chunk)
            found = _special(chunk)
            if not found:
                i += 8
                at += 8
                continue
            size = trailing_zeros(found) >> 3
            i += size
            at += size
        c = data[i]
        if c == QUOTE:
            return i + 1, at
        if c == BACKSLASH:
            size = _escape_size(data, i)
            if size == 0:
                return ODD_VALUE, at
            code = int(data[i + 1])
            if size == 6:
                code = hex_value(data, i + 2)
                if 0xD800 <= code < 0xDC00 and data[i + 6] == BACKSLASH and data[i + 7] == 117:
                    low = hex_value(data, i + 8)
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
            at = write_utf8(texts, at, code)
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
def write_utf8(out, at, code):
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
def literal_end(data, i):
    """Return the byte after true, false or null at i, or ODD_VALUE."""
    chunk = load_8(data, i)
    if chunk & uint64(0xFFFFFFFF) == uint64(0x65757274) or chunk & uint64(0xFFFFFFFF) == uint64(0x6C6C756E):
        return i + 4
    if chunk & uint64(0xFFFFFFFFFF) == uint64(0x65736C6166):
        return i + 5
    return ODD_VALUE


@njit(nogil=True, cache=True)
def _digits_end(data, i):
    while 48 <= data[i] <= 57:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _number_end(data, i):
    """Return the byte after the number at i, or ODD_VALUE."""
    first = i
    if data[i] == 45:
        i += 1
    start = i
    i = _digits_end(data, i)
    if i == start or (data[start] == 48 and i > start + 1):
        return ODD_VALUE
    if data[i] == 46:
        start = i + 1
        i = _digits_end(data, start)
        if i == start:
            return ODD_VALUE
    if data[i] | 32 == 101:
        start = i + 1
        if data[start] == 43 or data[start] == 45:
            start += 1
        i = _digits_end(data, start)
        if i == start:
            return ODD_VALUE
    return i if i - first <= MAX_NUMBER else ODD_VALUE


@njit(nogil=True, cache=True)
def value_end(data, i):
    """Return the byte after the value at i, or ODD_VALUE."""
    depth, objects = 0, uint64(0)  # the lowest bit: whether the innermost container is an object
    while True:
        c = data[i]
        opened = False
        if c == QUOTE:
            i = string_end(data, i + 1, False)
        elif c == OPEN_OBJECT or c == OPEN_LIST:  # noqa: SIM109
            is_object = c == OPEN_OBJECT
            i = past_space(data, i + 1)
            if data[i] == (CLOSE_OBJECT if is_object else CLOSE_LIST):
                i += 1
            else:
                opened = True
                depth += 1
                if depth > MAX_DEPTH:
                    return ODD_VALUE
                objects = objects << uint64(1) | uint64(is_object)
                if is_object:
                    i = _key_end(data, i)
        elif c == 45 or 48 <= c <= 57:
            i = _number_end(data, i)
        else:
            i = literal_end(data, i)
        if i == ODD_VALUE:
            return ODD_VALUE
        while not opened:
            if depth == 0:
                return i
            i = past_space(data, i)
            if data[i] == COMMA:
                i = past_space(data, i + 1)
                if objects & uint64(1):
                    i = _key_end(data, i)
                    if i == ODD_VALUE:
                        return ODD_VALUE
                break
            if data[i] != (CLOSE_OBJECT if objects & uint64(1) else CLOSE_LIST):
                return ODD_VALUE
            i += 1
            depth -= 1
            objects >>= uint64(1)


@njit(nogil=True, cache=True)
def _key_end(data, i):
    """Return where the value of the key at i begins, or ODD_VALUE."""
    if data[i] != QUOTE:
        return ODD_VALUE
    i = string_end(data, i + 1, False)
    if i == ODD_VALUE:
        return ODD_VALUE
    i = past_space(data, i)
    return past_space(data, i + 1) if data[i] == COLON else ODD_VALUE
