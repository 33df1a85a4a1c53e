"""Normalise sentences as a SentencePiece model does before it cuts them into pieces.

The rules of a model are a double array of darts-clone: see `Normalizer::Normalize` of SentencePiece.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import uint8, uint32

from .. import check
from ..common.ascii import SPACE
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .normalize_text import character_size

NUL = 0
VALUE = 0x7FFFFFFF  # bits of the value of a unit
LONGEST = 256  # bytes of a replacement


class PieceRules(NamedTuple):
    """The normalisation rules of a model.

    units_U   (U,) uint32, the double array of its rules; may be empty
    data      uint8, the replacements, each ended by a NUL
    plain_C   (256,) bool, the ASCII characters with which no rule begins, alone or followed by another ASCII character
    flags     int64: 1, a space before the text; 2, no spaces around it and single ones inside; 4, spaces are U+2581
    """

    units_U: Any
    data: Any
    plain_C: Any
    flags: int


def piece_text(text_B: Any, ends_S: Any, rules: PieceRules) -> tuple[Any, ...]:
    """Return (text_B, ends_S, failed_S): the normalised sentences, one after the other.

    text_B  (B,) uint8, sentences in UTF-8, a newline after each, B < 2**32
    ends_S  (S,) int64, the byte after each newline

    The resulting text_B has no newlines between sentences. failed_S (S,) bool marks sentences with a NUL, or with a
    replacement of over LONGEST bytes; these are empty.
    """
    check.dtype(text_B, np.uint8)
    check.dtype(ends_S, np.int64)
    check.length(text_B, 2**32)
    check.dtype(rules.units_U, np.uint32)
    arrays = {"text_B": text_B, "ends_S": ends_S} | {k: v for k, v in rules._asdict().items() if k != "flags"}
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(text_B, ends_S, rules)


def _cpu(text_B, ends_S, rules):
    S = len(ends_S)
    out_ends_S, failed_S = np.empty(S, np.int64), np.empty(S, bool)
    room = len(text_B) + len(text_B) // 2 + 4 * LONGEST
    while True:
        out = np.empty(room, np.uint8)
        used = _fill(text_B, ends_S, rules, out, out_ends_S, failed_S)
        if used >= 0:
            return out[:used], out_ends_S, failed_S
        room *= 2


def plain_characters(units_U: np.ndarray) -> np.ndarray:
    """Return plain_C of `PieceRules`."""
    plain_C = np.zeros(256, bool)
    for c in range(1, 128):
        if not len(units_U):
            plain_C[c] = True
            continue
        node = _offset(units_U[0]) ^ c
        unit = units_U[node]
        if _label(unit) != c:
            plain_C[c] = True
        elif not unit >> 8 & 1:
            children = (units_U[node ^ _offset(unit) ^ b] for b in range(1, 128))
            plain_C[c] = not any(_label(child) == b for b, child in zip(range(1, 128), children, strict=True))
    return plain_C


@njit(nogil=True, inline="always")
def _label(unit):
    return unit & uint32(0x800000FF)


@njit(nogil=True, inline="always")
def _offset(unit):
    return np.int64((unit >> uint32(10)) << ((unit & uint32(0x200)) >> uint32(6)))


@njit(nogil=True, cache=True)
def _longest_rule(text_B, i, end, units_U):
    """Return (the bytes of the longest rule that begins at i, where its replacement starts); 0 bytes for none."""
    length, value = 0, 0
    if len(units_U) == 0:
        return length, value
    node = _offset(units_U[0])
    for at in range(i, end):
        c = text_B[at]
        node ^= np.int64(c)
        unit = units_U[node]
        if _label(unit) != c:
            break
        node ^= _offset(unit)
        if unit >> uint32(8) & uint32(1):
            length, value = at + 1 - i, np.int64(units_U[node] & uint32(VALUE))
    return length, value


@njit(nogil=True, cache=True)
def _fill(text_B, ends_S, rules, out, out_ends_S, failed_S):
    """Return the bytes that were written, -1 if there is no room for all."""
    units_U, data, plain_C, flags = rules
    prefix, single, escape = flags & 1 != 0, flags & 2 != 0, flags & 4 != 0
    begin, at, room = 0, 0, len(out) - 3 * LONGEST - 8
    for s in range(len(ends_S)):
        i, end, first = begin, ends_S[s] - 1, at
        solid = at  # behind the last character that is not a space
        begun, after_space = False, single
        failed_S[s] = False
        while i < end:
            if at > room:
                return -1
            c = text_B[i]
            is_plain = plain_C[c] and (i + 1 == end or text_B[i + 1] < 0x80)
            if is_plain and begun and c != SPACE:
                out[at] = c
                at += 1
                i += 1
                solid, after_space = at, False
                continue
            if c == NUL:
                failed_S[s] = True
                break
            read, value = (0, 0) if is_plain else _longest_rule(text_B, i, end, units_U)
            source, k = text_B, i
            if read:
                source, k = data, value
                size = 0
                while size <= LONGEST and data[k + size] != NUL:
                    size += 1
                if size > LONGEST:
                    failed_S[s] = True
                    break
            else:
                read = size = character_size(c)
            i += read
            if single and not begun and size == 1 and source[k] == SPACE:
                continue
            if prefix and not begun:
                at = _put_space(out, at, escape)
            begun = True
            stop = k + size
            while after_space and k < stop and source[k] == SPACE:
                k += 1
            if k < stop:
                after_space = single and source[stop - 1] == SPACE
            while k < stop:
                if source[k] == SPACE:
                    at = _put_space(out, at, escape)
                    k += 1
                    continue
                size = character_size(source[k])
                for j in range(size):
                    out[at + j] = source[k + j]
                is_block = escape and size == 3 and out[at] == 0xE2 and out[at + 1] == 0x96 and out[at + 2] == 0x81
                at += size
                k += size
                if not is_block:
                    solid = at
        if failed_S[s]:
            at = first
        elif single:
            at = solid
        out_ends_S[s] = at
        begin = ends_S[s]
    return at


@njit(nogil=True, inline="always")
def _put_space(out, at, escape):
    """Write a space; returns the end."""
    if escape:
        out[at], out[at + 1], out[at + 2] = uint8(0xE2), uint8(0x96), uint8(0x81)
        return at + 3
    out[at] = uint8(SPACE)
    return at + 1


def _cuda(text_B, ends_S, rules):
    import cupy

    S = len(ends_S)
    failed_S = cupy.zeros(S, bool)
    if not S:
        return cupy.empty(0, np.uint8), cupy.empty(0, np.int64), failed_S
    sizes_S = cupy.empty(S, np.int64)
    fn, blocks = kernel("filter/piece_text", "piece_text"), grid_for(32 * S, 128)
    units_U, data, plain_C, flags = rules
    arguments = (text_B, ends_S, S, units_U, len(units_U), data, plain_C, flags)
    launch(fn, blocks, 128, (*arguments, sizes_S, failed_S, 0, 0))
    out_ends_S = cupy.cumsum(sizes_S)
    out = cupy.empty(int(out_ends_S[-1]), np.uint8)
    launch(fn, blocks, 128, (*arguments, sizes_S, 0, out_ends_S, out))
    return out, out_ends_S, failed_S


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return sentences, and rules with known results: a TAB becomes a space, "ab" is dropped, "ac" is "A b"."""
    letters = [*"aaaabbccdd      \t", "\u2581", "é", "中", "\0"]
    shares = np.array([1.0] * (len(letters) - 1) + [0.01])
    parts = ["".join(rng.choice(letters, n, p=shares / shares.sum())) + "\n" for n in rng.integers(0, 40, size // 20)]
    encoded = [part.encode() for part in parts]
    units_U = np.zeros(1024, np.uint32)

    def unit(place, label, offset, leaf=False):
        units_U[place] = offset << 10 | leaf << 8 | label

    unit(0, 0, 256)
    unit(256 ^ 9, 9, 512 ^ 256 ^ 9, True)  # its children are at 512, and so on
    units_U[512] = 0x80000000
    unit(256 ^ 97, 97, 768 ^ 256 ^ 97)
    unit(768 ^ 98, 98, 513 ^ 768 ^ 98, True)
    units_U[513] = 0x80000002
    unit(768 ^ 99, 99, 514 ^ 768 ^ 99, True)
    units_U[514] = 0x80000003
    return {
        "text_B": np.frombuffer(b"".join(encoded), np.uint8),
        "ends_S": np.cumsum([len(part) for part in encoded], dtype=np.int64),
        "rules": PieceRules(
            units_U, np.frombuffer(b" \0\0A b\0", np.uint8), plain_characters(units_U), int(rng.integers(8))
        ),
    }
