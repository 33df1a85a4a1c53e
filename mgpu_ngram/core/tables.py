"""Tables of n-gram counts: the value that count tasks make, split, merge and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Distinct n-grams of one order with their counts, sorted by key; NumPy or CuPy.

    keys    (C, G) uint64, codes (symbol id + 1) packed `bits` bits each, first word highest,
            left-aligned over C = ceil(order * bits / 64) columns (kernels.count.ngram_keys)
    counts  (G,) int64, at least 1
    order   words per n-gram
    bits    bits per code
    """

    keys: Any
    counts: Any
    order: int
    bits: int

    def __len__(self) -> int:
        return len(self.counts)
