"""Tables of n-gram counts, which count tasks make, split, merge and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAX_ORDER = 1000  # greatest order of a count; every order has files of its own


class _Rows:
    """Rows of n-grams: what tables and sharded tables have in common."""

    keys: Any
    counts: Any

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and counts."""
        return int(self.keys.nbytes + self.counts.nbytes)


@dataclass(frozen=True)
class Table(_Rows):
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


@dataclass(frozen=True)
class ShardedTable(_Rows):
    """A table cut into S shards: rows sorted by (shard, key); NumPy or CuPy.

    keys, counts, order, bits  as in `Table`
    ends_S  (S,) int64, NumPy: shard s is rows ends_S[s - 1] (0 for the first) to ends_S[s]
    """

    keys: Any
    counts: Any
    ends_S: np.ndarray
    order: int
    bits: int

    def start(self, shard: int) -> int:
        """Return the first row of a shard; for shard S, the number of rows."""
        return int(self.ends_S[shard - 1]) if shard else 0

    def shard(self, shard: int) -> Table:
        """Return one shard, as a view."""
        rows = slice(self.start(shard), self.start(shard + 1))
        return Table(self.keys[:, rows], self.counts[rows], self.order, self.bits)

    def part(self, first: int, last: int) -> ShardedTable:
        """Return shards first to last - 1, as a view."""
        a, b = self.start(first), self.start(last)
        return ShardedTable(self.keys[:, a:b], self.counts[a:b], self.ends_S[first:last] - a, self.order, self.bits)
