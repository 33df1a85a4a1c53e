"""CRC-32 of bytes that come in parts, and CRC-32 of a source from the CRCs of its parts."""

from __future__ import annotations

from collections.abc import Iterable

PartCrc = tuple[int, int, int, int]  # (source_index, offset, length, crc32) of a part of a source


class Crc:
    """CRC-32 of bytes that come in order, up to the offset `stop`."""

    def __init__(self, stop: int):
        self.stop, self.value, self.length = stop, 0, 0

    def add(self, crc: int, length: int) -> None:
        """Add the next `length` bytes, whose CRC-32 is `crc`."""
        self.value = append_crc32(self.value, crc, length)
        self.length += length


def combine_crc32(parts: Iterable[PartCrc]) -> int:
    """Return the CRC-32 of a source from those of its parts, in any order."""
    total = value = 0
    for _, offset, length, crc in sorted(parts):
        if offset != total:
            raise ValueError(f"the next part should start at byte {total} but starts at {offset}; give each part once")
        value = append_crc32(value, crc, length)
        total += length
    return value


def append_crc32(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two texts, one after the other."""
    from mgpu_ngram.kernels.count.crc32 import shift  # imports NumPy, which `--help` does not need

    return shift(first, second_bytes) ^ second
