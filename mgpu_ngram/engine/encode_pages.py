"""Encode count tables on a GPU as row groups of Parquet files, so that only packed bytes go to the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.parquet import GROUP_BYTES, group_rows
from mgpu_ngram.core.parquet_deltas import DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, Page
from mgpu_ngram.core.tables import ShardedTable, Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine.device import on_device_or_host, to_device, to_host_fast
from mgpu_ngram.kernels.count.pack_deltas import PackedPages, numbers_of_word, pack_deltas, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import Texts, suffix_texts
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

ROW_BYTES = 100  # of the device for each row while it is encoded: lengths, offsets, and pages before they are copied
MOST_ROWS = 1 << 24  # that are encoded at once; more would only take more memory


@dataclass(frozen=True)
class EncodedShard:
    """A shard as `PartWriter` writes it.

    groups    (rows, pages) of each row group, in host memory
    nbytes    of the pages
    distinct  n-grams before min_count
    total     of their counts
    head      the rows with the greatest counts, in host memory
    """

    groups: list[tuple[int, list[Page]]]
    nbytes: int
    distinct: int
    total: int
    head: Table


class PageEncoder:
    """Encode tables on their GPU.

    columns        as `PartWriter` has it; "text" needs a vocabulary of words
    min_count      n-grams with smaller counts are left out
    top            number of rows of `EncodedShard.head`
    working_bytes  of the device that may be used beside the table
    """

    def __init__(self, vocabulary: Vocabulary, columns: str, min_count: int, top: int, working_bytes: int):
        self._vocabulary, self._columns, self._min_count, self._top = vocabulary, columns, min_count, top
        self._most_rows = min(MOST_ROWS, working_bytes // ROW_BYTES)
        self._words: tuple[Any, Any] | None = None  # offsets and bytes on the device

    @staticmethod
    def can_encode(vocabulary: Vocabulary, columns: str) -> bool:
        return columns == "ids" or vocabulary.unit == "word"

    def parts(self, table: ShardedTable) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of the shards that are encoded at once; one that is too large comes alone."""
        first, S = 0, len(table.ends_S)
        for s in range(1, S + 1):
            if s == S or table.start(s + 1) - table.start(first) > self._most_rows:
                yield first, s
                first = s

    def encode(self, table: ShardedTable) -> list[EncodedShard] | None:
        """Return the shards of a table; None if the device or a row group has no room: the host can do it."""
        if len(table) > self._most_rows:
            return None
        return on_device_or_host(lambda device: self._encode(table) if device == "gpu" else None, "gpu")

    def _encode(self, table: ShardedTable) -> list[EncodedShard] | None:
        xp, ends_S = array_module(table.counts), table.ends_S
        distinct_S, total_S, heads = np.diff(ends_S, prepend=0), _sums(table), self._heads(table)
        if self._min_count > 1:
            table = _at_least(table, self._min_count)
        starts = [range(table.start(s), table.start(s + 1), group_rows(self._columns)) for s in range(len(ends_S))]
        pages_S = [len(rows) for rows in starts]
        starts_P1 = xp.array([*(row for rows in starts for row in rows), len(table)], np.int64)
        columns = self._ids(table, starts_P1) if self._columns == "ids" else self._texts(table, starts_P1)
        if columns is None:
            return None
        columns.append(_pages(pack_deltas(whole_numbers(xp.ascontiguousarray(table.counts)), starts_P1)))
        groups = list(zip(np.diff(to_host(starts_P1)).tolist(), map(list, zip(*columns, strict=True)), strict=True))
        cuts = np.cumsum([0, *pages_S]).tolist()
        return [
            EncodedShard(some, _nbytes(some), int(distinct_S[s]), total_S[s], heads[s])
            for s, some in enumerate(groups[a:b] for a, b in zip(cuts, cuts[1:], strict=False))
        ]

    def _ids(self, table: ShardedTable, starts_P1: Any) -> list[list[Page]]:
        columns, V = [], len(self._vocabulary)
        for n in range(table.order):
            packed = pack_deltas(numbers_of_word(table.keys, table.bits, n), starts_P1)
            if len(table) and (int(packed.least_P.min()) < 0 or int(packed.most_P.max()) >= V):
                raise ValueError(f"n-grams have codes outside 1..{V}, the codes of their vocabulary")
            columns.append(_pages(packed))
        return columns

    def _texts(self, table: ShardedTable, starts_P1: Any) -> list[list[Page]] | None:
        if self._words is None:
            words, device = self._vocabulary, "gpu" if on_gpu(table.counts) else "cpu"
            self._words = to_device(words.offsets_V, device), to_device(words.data, device)
        texts = suffix_texts(table.keys, table.order, table.bits, *self._words, starts_P1)
        xp = array_module(texts.data)
        whole_P = xp.diff(_before(texts.prefix_R + texts.suffix_R)[starts_P1])
        if len(table) and int(whole_P.max()) > GROUP_BYTES:
            return None
        return [_text_pages(texts, starts_P1)]

    def _heads(self, table: ShardedTable) -> list[Table]:
        """Return the rows of each shard that have the greatest counts, by rising row; of equal counts the first."""
        xp, S = array_module(table.counts), len(table.ends_S)
        rows_SK = xp.zeros((S, self._top), np.int64)
        for s in range(S):
            counts = table.shard(s).counts.copy()
            for k in range(min(self._top, len(counts))):
                rows_SK[s, k] = row = counts.argmax()
                counts[row] = -1
        rows_SK = to_host(rows_SK)
        rows = [table.start(s) + np.sort(rows_SK[s, : table.size_of(s)]) for s in range(S)]
        cuts, taken = np.cumsum([0, *map(len, rows)]), xp.asarray(np.concatenate(rows))
        keys, counts = to_host(table.keys[:, taken]), to_host(table.counts[taken])
        return [Table(keys[:, a:b], counts[a:b], table.order, table.bits) for a, b in zip(cuts, cuts[1:], strict=False)]


def _sums(table: ShardedTable) -> list[int]:
    """Return the sum of the counts of each shard."""
    xp = array_module(table.counts)
    return np.diff(to_host(_before(table.counts)[xp.asarray(table.ends_S)]), prepend=0).tolist()


def _at_least(table: ShardedTable, min_count: int) -> ShardedTable:
    kept = table.counts >= min_count
    xp = array_module(kept)
    ends_S = to_host(_before(kept)[xp.asarray(table.ends_S)])
    return replace(table, keys=table.keys[:, kept], counts=table.counts[kept], ends_S=ends_S)


def _before(values_R: Any) -> Any:
    """Return the sum of the values before each row, and of all."""
    xp = array_module(values_R)
    sums_R1 = xp.zeros(len(values_R) + 1, np.int64)
    xp.cumsum(values_R, out=sums_R1[1:], dtype=np.int64)
    return sums_R1


def _cut(data: Any, starts_P1: Any) -> list[memoryview]:
    """Copy the bytes of pages to the host."""
    view, cuts = to_host_fast(data).data, to_host(starts_P1).tolist()
    return [view[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


def _pages(packed: PackedPages) -> list[Page]:
    parts, ranges = _cut(packed.data, packed.starts_P1), zip(*map(_ints, packed[2:]), strict=True)
    return [Page([part], DELTA_BINARY_PACKED, found) for part, found in zip(parts, ranges, strict=True)]


def _ints(values_P: Any) -> list[int]:
    return to_host(values_P).tolist()


def _text_pages(texts: Texts, starts_P1: Any) -> list[Page]:
    lengths = [pack_deltas(whole_numbers(bytes_R), starts_P1) for bytes_R in texts[:2]]
    parts = [_cut(packed.data, packed.starts_P1) for packed in lengths]
    parts.append(_cut(texts.data, _before(texts.suffix_R)[starts_P1]))
    return [Page(some, DELTA_BYTE_ARRAY, None) for some in zip(*parts, strict=True)]


def _nbytes(groups: list[tuple[int, list[Page]]]) -> int:
    return sum(len(part) for _, pages in groups for page in pages for part in page.parts)
