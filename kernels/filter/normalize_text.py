"""Normalise texts character by character, and write their sentences as lines."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import uint32, uint64

from .. import check
from ..common.ascii import NEWLINE
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

SAME, FAILS, DROPPED = 0, 0xFFFFFFFF, 1  # entries of a character map
MAX_SIZE = 254  # bytes that a character becomes
CODE_POINTS, PAGE = 0x110000, 256


class CharacterMap(NamedTuple):
    """The replacement of each character.

    pages_U  (U,) int32: the row of each page of 256 characters
    entry_P  (256 P,) uint32: SAME; FAILS if the replacement depends on other characters, never for white space; or
             start << 8 | size + 1 of its replacement
    data     uint8, the replacements in UTF-8
    """

    pages_U: Any
    entry_P: Any
    data: Any


def normalize_text(text_B: Any, ends_D: Any, characters: CharacterMap, by_line: bool, strip: bool) -> tuple[Any, ...]:
    """Return (text_B, sentences_D, failed_D): the sentences of all texts with a newline after each.

    text_B   (B,) uint8, texts in UTF-8 one after the other, B < 2**32
    ends_D   (D,) int64, where each text ends
    by_line  a sentence is a line of a text; else it is the text. An empty text has no sentence
    strip    drop Unicode white space around a sentence before characters are replaced

    sentences_D (D,) int64 is the number of sentences up to each text, and failed_D (D,) bool marks texts with a
    character that fails; these have no sentences.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(ends_D, np.int64)
    check.length(text_B, 2**32)
    check.dtype(characters.pages_U, np.int32)
    check.dtype(characters.entry_P, np.uint32)
    check.dtype(characters.data, np.uint8)
    arrays = {"text_B": text_B, "ends_D": ends_D} | characters._asdict()
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(text_B, ends_D, characters, by_line, strip)


def _cpu(text_B, ends_D, characters, by_line, strip):
    B, D = len(text_B), len(ends_D)
    sentences_D, failed_D = np.empty(D, np.int64), np.empty(D, bool)
    room = B + B // 8 + D + 2 * MAX_SIZE
    while True:
        out = np.empty(room, np.uint8)
        used = _fill(text_B, ends_D, characters, by_line, strip, out, sentences_D, failed_D)
        if used >= 0:
            return out[:used], sentences_D, failed_D
        room *= 2


@njit(nogil=True, cache=True)
def character_size(lead):
    """Return the number of bytes of a UTF-8 character from its first byte."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@njit(nogil=True, cache=True)
def code_point(text_B, i):
    """Return (the code point of the character at i, the number of its bytes)."""
    a = np.int64(text_B[i])
    if a < 0x80:
        return a, 1
    b = np.int64(text_B[i + 1]) & 63
    if a < 0xE0:
        return (a & 31) << 6 | b, 2
    c = np.int64(text_B[i + 2]) & 63
    if a < 0xF0:
        return (a & 15) << 12 | b << 6 | c, 3
    return (a & 7) << 18 | b << 12 | c << 6 | np.int64(text_B[i + 3]) & 63, 4


@njit(nogil=True, cache=True)
def is_white(c):
    """Return whether Python's str.split treats a code point as white space."""
    if c <= 32:
        return c == 32 or 9 <= c <= 13 or 28 <= c
    if c < 0x1680:
        return c == 0x85 or c == 0xA0
    return (
        0x2000 <= c <= 0x200A or c == 0x1680 or c == 0x2028 or c == 0x2029 or c == 0x202F or c == 0x205F or c == 0x3000
    )


@njit(nogil=True, cache=True)
def _stripped(text_B, begin, end):
    """Return text_B[begin:end] without white space around it."""
    while begin < end:
        c, size = code_point(text_B, begin)
        if not is_white(c):
            break
        begin += size
    while begin < end:
        last = end - 1
        while text_B[last] & 0xC0 == 0x80:
            last -= 1
        if not is_white(code_point(text_B, last)[0]):
            break
        end = last
    return begin, end


@njit(nogil=True, cache=True)
def _fill(text_B, ends_D, characters, by_line, strip, out, sentences_D, failed_D):
    """Return the bytes that were written, -1 if there is no room for all."""
    pages_U, entry_P, data = characters
    ascii_C = np.zeros(128, np.uint8)  # what a character of ASCII becomes, 255: not one byte
    for c in range(128):
        entry = entry_P[PAGE * pages_U[0] + c]
        ascii_C[c] = c if entry == SAME else data[entry >> uint32(8)] if entry & uint32(255) == 2 else 255
    at, sentences, begin, room = 0, 0, 0, len(out) - MAX_SIZE - 1
    for d in range(len(ends_D)):
        end, first, first_sentence = ends_D[d], at, sentences
        failed_D[d] = False
        start = begin
        while begin < end and not failed_D[d]:
            stop = end
            if by_line:
                stop = start
                while stop < end and text_B[stop] != NEWLINE:
                    stop += 1
            i, last = _stripped(text_B, start, stop) if strip else (start, stop)
            while i < last:
                if at + last - i > room:
                    return -1
                while i < last:  # of ASCII; unsigned indexes, because Numba tests signed ones for below 0
                    byte = text_B[uint64(i)]
                    if byte >= 0x80 or ascii_C[byte] == 255:
                        break
                    out[uint64(at)] = ascii_C[byte]
                    at += 1
                    i += 1
                if i == last:
                    break
                c, size = code_point(text_B, i)
                entry = entry_P[PAGE * pages_U[c >> 8] + (c & 255)]
                if entry == SAME:
                    for k in range(size):
                        out[at + k] = text_B[i + k]
                    at += size
                elif entry == FAILS:
                    failed_D[d] = True
                    break
                else:
                    new = np.int64(entry & uint32(255)) - 1
                    source = np.int64(entry >> uint32(8))
                    for k in range(new):
                        out[at + k] = data[source + k]
                    at += new
                i += size
            if at > room:
                return -1
            out[at] = NEWLINE
            at += 1
            sentences += 1
            start = stop + 1
            if stop == end:
                break
        if failed_D[d]:
            at, sentences = first, first_sentence
        sentences_D[d] = sentences
        begin = end
    return at


def _cuda(text_B, ends_D, characters, by_line, strip):
    import cupy

    D = len(ends_D)
    sentences_D, failed_D = cupy.zeros(D, np.int64), cupy.zeros(D, bool)
    if not D:
        return cupy.empty(0, np.uint8), sentences_D, failed_D
    sizes_D = cupy.empty(D, np.int64)
    fn, blocks = kernel("filter/normalize_text", "normalize_text"), grid_for(32 * D, 128)
    arguments = (text_B, ends_D, D, *characters, int(by_line), int(strip))
    launch(fn, blocks, 128, (*arguments, sizes_D, sentences_D, failed_D, 0, 0))
    out_ends_D = cupy.cumsum(sizes_D)
    out = cupy.empty(int(out_ends_D[-1]), np.uint8)
    launch(fn, blocks, 128, (*arguments, sizes_D, 0, 0, out_ends_D, out))
    return out, cupy.cumsum(sentences_D), failed_D


def map_of(replacements: dict[int, str | None]) -> CharacterMap:
    """Return a map of some characters by code point: a replacement, or None for a character that fails."""
    rows: list[np.ndarray] = [np.full(PAGE, SAME, np.uint32)]
    pages_U = np.zeros(CODE_POINTS // PAGE, np.int32)
    data = bytearray()
    for code, text in replacements.items():
        page = code // PAGE
        if not pages_U[page]:
            pages_U[page] = len(rows)
            rows.append(np.full(PAGE, SAME, np.uint32))
        new = FAILS if text is None else len(data) << 8 | len(text.encode()) + 1
        data += (text or "").encode()
        rows[pages_U[page]][code % PAGE] = new
    return CharacterMap(pages_U, np.concatenate(rows), np.frombuffer(bytes(data), np.uint8))


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return texts of several lines of Latin, Greek and other letters, some of which fail, and a map of these."""
    letters = [*"abcdeABCDE  \n\t", "é", "É", "Σ", "中", "\u2003", "\u3000", "😀", "\0"]
    shares = np.array([8.0] * 14 + [1, 1, 0.05, 1, 1, 1, 1, 0.1])
    text = "".join(letters[i] for i in rng.choice(len(letters), size, p=shares / shares.sum()))
    ends = np.sort(rng.integers(0, size + 1, size // 30 + 1)).tolist()
    parts = [text[a:b].encode() for a, b in zip([0, *ends], ends, strict=False)]
    replacements: dict[int, str | None] = {ord(c): c.lower() for c in "ABCDEÉ"}
    replacements |= {ord("Σ"): None, ord("\t"): "", 0: " ", ord("中"): "<zhong>"}
    return {
        "text_B": np.frombuffer(b"".join(parts), np.uint8),
        "ends_D": np.cumsum([len(part) for part in parts], dtype=np.int64),
        "characters": map_of(replacements),
        "by_line": bool(rng.integers(2)),
        "strip": bool(rng.integers(2)),
    }
