"""CRC-32 of bytes that come in parts, and of one source from the CRCs of its parts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


class Crc:
    """CRC-32 of bytes that come in order, up to the offset `stop`."""

    def __init__(self, stop: int):
        self.stop, self.value, self.length = stop, 0, 0

    def add(self, crc: int, length: int) -> None:
        """Go on by `length` bytes whose own CRC-32 is `crc`."""
        self.value = _append_crc32(self.value, crc, length)
        self.length += length


def combine_crc32(parts: Iterable[tuple[int, int, int, int]]) -> int:
    """CRC-32 of one source from the (source_index, offset, length, crc32) of parts that tile it, in any order."""
    total = value = 0
    for _, offset, length, crc in sorted(parts):
        if offset != total:
            raise ValueError(f"the next part should start at byte {total} but starts at {offset}; give each part once")
        value = _append_crc32(value, crc, length)
        total += length
    return value


def _append_crc32(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of two texts in a row: first * x**(8 * second_bytes) + second, modulo the CRC's polynomial."""
    return (_multiply(first, _shift(second_bytes)) if first else 0) ^ second


def _multiply(a: int, b: int) -> int:
    """Product of polynomials over GF(2) modulo zlib's; bit 31 is x**0."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
    return product


@lru_cache(maxsize=256)  # most strips have one length
def _shift(num_bytes: int) -> int:
    """x**(8 * num_bytes) modulo zlib's polynomial."""
    power, square = 1 << 31, 1 << 23
    while num_bytes:
        if num_bytes & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        num_bytes >>= 1
    return power
