"""Bytes of a text as 64-bit numbers."""

from __future__ import annotations

from numpy import uint64

from ..compile_cpu import njit
from ..intrinsics import load_u64


@njit(nogil=True, cache=True)
def load_8(text, i):
    """Return the bytes from i on as a little-endian uint64: 8 bytes, or fewer at the end of the text."""
    if i + 8 <= len(text):
        return load_u64(text, i)
    chunk = uint64(0)
    for k in range(len(text) - i):
        chunk |= uint64(text[i + k]) << uint64(8 * k)
    return chunk


@njit(nogil=True, cache=True)
def word_chunk(text, i, stop):
    """Return the bytes text[i:stop], at most 8, as a little-endian uint64."""
    chunk = load_8(text, i)
    return chunk if stop - i >= 8 else chunk & ((uint64(1) << uint64(8 * (stop - i))) - uint64(1))
