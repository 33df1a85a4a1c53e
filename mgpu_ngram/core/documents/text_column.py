"""Texts of documents in one array of bytes."""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from mgpu_ngram.kernels.common.load_bytes import load_8
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64

SLACK = 8  # bytes that are stored at once


@dataclass
class TextColumn(Sequence[str]):
    """The texts of D documents.

    data    uint8: text d is data[ends_D[d - 1]:ends_D[d]] in UTF-8
    ends_D  (D,) int64
    odd     texts that UTF-8 cannot encode (halves of surrogate pairs), by number; they are empty in `data`
    """

    data: np.ndarray
    ends_D: np.ndarray
    odd: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextColumn:
        """Return the column of texts."""
        parts: list[bytes] = []
        odd: dict[int, str] = {}
        for d, text in enumerate(texts):
            try:
                parts.append(text.encode())
            except UnicodeEncodeError:
                odd[d] = text
                parts.append(b"")
        ends_D = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends_D, odd)

    @overload
    def __getitem__(self, d: int) -> str: ...
    @overload
    def __getitem__(self, d: slice) -> list[str]: ...
    def __getitem__(self, d: int | slice) -> str | list[str]:
        if isinstance(d, slice):
            return [self[i] for i in range(*d.indices(len(self)))]
        if not 0 <= d < len(self):
            raise IndexError(f"text {d} is not one of the {len(self)} texts, which are numbered from 0")
        if d in self.odd:
            return self.odd[d]
        return self.data[self.ends_D[d - 1] if d else 0 : self.ends_D[d]].tobytes().decode()

    def __len__(self) -> int:
        return len(self.ends_D)

    def head(self, d: int, characters: int) -> str:
        """Return the first characters of text d."""
        if d in self.odd:
            return self.odd[d][:characters]
        start = int(self.ends_D[d - 1]) if d else 0
        stop = min(int(self.ends_D[d]), start + 4 * characters)  # a character has 4 bytes at most
        return self.data[start:stop].tobytes().decode("utf-8", "ignore")[:characters]

    def take(self, order_N: np.ndarray) -> TextColumn:
        """Return the texts order_N[0], order_N[1], ..."""
        starts_D = np.concatenate([[0], self.ends_D[:-1]]).astype(np.int64)
        starts_N, stops_N = starts_D[order_N], self.ends_D[order_N]
        ends_N = np.cumsum(stops_N - starts_N)
        out = np.empty((int(ends_N[-1]) if len(ends_N) else 0) + SLACK, np.uint8)
        _gather(self.data, starts_N, ends_N, out)
        odd = {n: self.odd[d] for n, d in enumerate(order_N.tolist()) if d in self.odd} if self.odd else {}
        return TextColumn(out[:-SLACK], ends_N, odd)

    def without(self, numbers: Iterable[int]) -> TextColumn:
        """Return the column with the texts of these numbers moved to `odd`."""
        odd = self.odd | {d: self[d] for d in numbers}
        sizes_D = np.diff(self.ends_D, prepend=0)
        kept_D = np.ones(len(self), bool)
        kept_D[list(odd)] = False
        kept = self.take(np.flatnonzero(kept_D))
        return TextColumn(kept.data, np.cumsum(np.where(kept_D, sizes_D, 0)), odd)


def head_of(texts: Sequence[str], d: int, characters: int) -> str:
    """Return the first characters of text d."""
    return texts.head(d, characters) if isinstance(texts, TextColumn) else texts[d][:characters]


def are_utf8(data: np.ndarray, offsets_D1: np.ndarray) -> bool:
    """Return whether each text data[offsets_D1[d]:offsets_D1[d + 1]] is UTF-8."""
    text = data.tobytes()
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    starts = offsets_D1[:-1][offsets_D1[:-1] < len(data)]
    return not bool((data[starts] & 0xC0 == 0x80).any())


@njit(nogil=True, cache=True)
def _gather(data, starts_N, ends_N, out):
    at = 0
    for n in range(len(starts_N)):
        i = starts_N[n]
        while at + 8 <= ends_N[n] and i + 8 <= len(data):
            store_u64(out, at, load_u64(data, i))
            at += 8
            i += 8
        if at < ends_N[n]:
            store_u64(out, at, load_8(data, i))
        at = ends_N[n]


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def shown(text: str) -> str:
    """Return text that a terminal or a page can show, with replacement characters for all others."""
    return "".join(c if c.isprintable() else REPLACEMENT for c in text)
