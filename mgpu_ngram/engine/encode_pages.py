"""Encode count tables on a GPU as row groups of Parquet files, so that only packed bytes go to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from mgpu_ngram.core.parquet import GROUP_BYTES, group_rows
from mgpu_ngram.core.parquet_deltas import DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, Page
from mgpu_ngram.core.tables import ShardedTable, Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine.count import heaviest_rows
from mgpu_ngram.engine.device import on_device_or_host, to_device, to_host_fast
from mgpu_ngram.kernels.count.pack_deltas import Numbers, numbers_of_word, pack_deltas, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import suffix_texts
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

ROW_BYTES = 128  # of the device for a usual row while it is encoded: lengths, offsets, and pages before they are copied
CHUNK_ROWS = 4096  # whose greatest count is found before their rows are
MOST_ROWS = 1 << 25  # that are encoded at once; more would take memory and save no time


@dataclass(frozen=True)
class _Column:
    """The pages of a column on their device.

    encoding  of the pages
    streams   (bytes, starts_P1) of each part of the pages: that of page p is bytes[starts_P1[p]:starts_P1[p + 1]]
    range_2P  the least and the greatest integer of each page; empty for texts
    """

    encoding: int
    streams: list[tuple[Any, Any]]
    range_2P: list[Any]


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
    working_bytes  of the device that may be used beside the table, the words of the vocabulary included
    """

    def __init__(self, vocabulary: Vocabulary, columns: str, min_count: int, top: int, working_bytes: int):
        self._vocabulary, self._columns, self._min_count, self._top = vocabulary, columns, min_count, top
        self._words: tuple[Any, Any] | None = None  # offsets and bytes on the device
        if columns == "text":
            working_bytes -= vocabulary.offsets_V.nbytes + vocabulary.data.nbytes
        self._most_rows = max(0, min(MOST_ROWS, working_bytes // ROW_BYTES))

    @staticmethod
    def can_encode(vocabulary: Vocabulary, columns: str) -> bool:
        """Return whether files have only encoded columns: all but those of bytes and token lists have."""
        return columns == "ids" or vocabulary.unit == "word"

    def parts(self, table: ShardedTable) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of the shards that are encoded together; a large one comes alone."""
        first, S = 0, len(table.ends_S)
        for s in range(1, S + 1):
            if s == S or table.start(s + 1) - table.start(first) > self._most_rows:
                yield first, s
                first = s

    def encode(self, table: ShardedTable) -> list[EncodedShard] | None:
        """Return the shards of a table; None if a row group has too many bytes or the device is full: the host can do
        it.
        """
        if min(len(table), group_rows(self._columns)) > self._most_rows:
            return None
        return on_device_or_host(lambda device: self._encode(table) if device == "gpu" else None, "gpu")

    def _encode(self, table: ShardedTable) -> list[EncodedShard] | None:
        xp, S = array_module(table.counts), len(table.ends_S)
        distinct_S, heads = np.diff(table.ends_S, prepend=0).tolist(), self._heads(table)
        total_S = np.diff(to_host(_before(table.counts)[xp.asarray(table.ends_S)]), prepend=0).tolist()
        if self._min_count > 1:
            table = _at_least(table, self._min_count)
        starts = [range(table.start(s), table.start(s + 1), group_rows(self._columns)) for s in range(S)]
        starts_P1 = np.array([*(row for rows in starts for row in rows), len(table)], np.int64)
        groups: list[tuple[int, list[Page]]] = []
        while len(groups) < len(starts_P1) - 1:
            first = len(groups)
            most = starts_P1[first] + max(self._most_rows, int(starts_P1[first + 1] - starts_P1[first]))
            last = int(np.searchsorted(starts_P1, most, "right")) - 1
            some = self._groups(table, starts_P1[first : last + 1])
            if some is None:
                return None
            groups += some
        cuts = np.cumsum([0, *map(len, starts)]).tolist()
        shards = [groups[a:b] for a, b in pairwise(cuts)]
        return [EncodedShard(own, _nbytes(own), distinct_S[s], total_S[s], heads[s]) for s, own in enumerate(shards)]

    def _groups(self, table: ShardedTable, starts_P1: np.ndarray) -> list[tuple[int, list[Page]]] | None:
        """Return the row groups that begin at starts_P1, up to its last row; None if one has too many bytes."""
        xp, rows = array_module(table.counts), slice(int(starts_P1[0]), int(starts_P1[-1]))
        keys, counts, begins_P1 = table.keys[:, rows], table.counts[rows], xp.asarray(starts_P1 - starts_P1[0])
        if self._columns == "ids":
            columns = [_integers(numbers_of_word(keys, table.bits, n), begins_P1) for n in range(table.order)]
        elif (texts := self._texts(keys, table.order, table.bits, begins_P1)) is not None:
            columns = [texts]
        else:
            return None
        columns.append(_integers(whole_numbers(xp.ascontiguousarray(counts)), begins_P1))
        by_group = map(list, zip(*_to_host(columns), strict=True))
        return list(zip(np.diff(starts_P1).tolist(), by_group, strict=True))

    def _texts(self, keys_CR: Any, order: int, bits: int, starts_P1: Any) -> _Column | None:
        if self._words is None:
            words, device = self._vocabulary, "gpu" if on_gpu(keys_CR) else "cpu"
            self._words = to_device(words.offsets_V, device), to_device(words.data, device)
        texts = suffix_texts(keys_CR, order, bits, *self._words, starts_P1)
        whole_P = array_module(keys_CR).diff(_before(texts.prefix_R + texts.suffix_R)[starts_P1])
        if int(whole_P.max()) > GROUP_BYTES:
            return None
        streams = [_integers(whole_numbers(bytes_R), starts_P1).streams[0] for bytes_R in texts[:2]]
        return _Column(DELTA_BYTE_ARRAY, [*streams, (texts.data, _before(texts.suffix_R)[starts_P1])], [])

    def _heads(self, table: ShardedTable) -> list[Table]:
        """Return the rows of each shard that have the greatest counts, by rising row; of equal counts the first.

        They are in the chunks with the greatest counts, so only these and the ends of the shard go to the host.
        """
        xp, C = array_module(table.counts), len(table) // CHUNK_ROWS
        most_C = to_host(table.counts[: C * CHUNK_ROWS].reshape(C, CHUNK_ROWS).max(1)) if C else np.empty(0, np.int64)
        cuts = [table.start(s) for s in range(len(table.ends_S) + 1)]
        candidates = [_candidates(most_C, a, b, self._top) for a, b in pairwise(cuts)]
        counts = to_host(table.counts[xp.asarray(np.concatenate(candidates))])
        rows, begin = [], 0
        for some in candidates:
            rows.append(np.sort(some[heaviest_rows(counts[begin : begin + len(some)], min(self._top, len(some)))]))
            begin += len(some)
        taken = xp.asarray(np.concatenate(rows))
        keys, counts = to_host(table.keys[:, taken]), to_host(table.counts[taken])
        ends = np.cumsum([0, *map(len, rows)]).tolist()
        return [Table(keys[:, a:b], counts[a:b], table.order, table.bits) for a, b in pairwise(ends)]


def _candidates(most_C: np.ndarray, first: int, end: int, k: int) -> np.ndarray:
    """Return rows of `first` to `end` - 1 that include the k with the greatest counts, rising.

    most_C  the greatest count of each chunk of CHUNK_ROWS rows
    """
    c, after = -(-first // CHUNK_ROWS), end // CHUNK_ROWS  # chunks within the rows
    if after - c <= k:
        return np.arange(first, end)
    best = np.sort(c + np.argsort(-most_C[c:after], kind="stable")[:k])
    inside = (best[:, None] * CHUNK_ROWS + np.arange(CHUNK_ROWS)).reshape(-1)
    return np.concatenate([np.arange(first, c * CHUNK_ROWS), inside, np.arange(after * CHUNK_ROWS, end)])


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


def _integers(numbers: Numbers, starts_P1: Any) -> _Column:
    packed = pack_deltas(numbers, starts_P1)
    return _Column(DELTA_BINARY_PACKED, [(packed.data, packed.starts_P1)], [packed.least_P, packed.most_P])


def _to_host(columns: Sequence[_Column]) -> list[list[Page]]:
    """Return the pages of each column in host memory.

    All numbers are copied at once, and all bytes: while a thread waits for the device, threads that write take the
    interpreter.
    """
    streams = [stream for column in columns for stream in column.streams]
    arrays = [*(starts_P1 for _, starts_P1 in streams), *(n for column in columns for n in column.range_2P)]
    xp = array_module(arrays[0])
    found = np.split(to_host(xp.concatenate(arrays)), np.cumsum([*map(len, arrays)])[:-1])
    starts, ranges = found[: len(streams)], iter(found[len(streams) :])
    data, begin, parts = to_host_fast(xp.concatenate([data for data, _ in streams])).data, 0, []
    for cuts in starts:
        parts.append([data[begin + a : begin + b] for a, b in pairwise(cuts.tolist())])
        begin += int(cuts[-1])
    pages, own = [], iter(parts)
    for column in columns:
        of_page = zip(*(next(own) for _ in column.streams), strict=True)
        limits = (
            zip(*(next(ranges).tolist() for _ in column.range_2P), strict=True) if column.range_2P else repeat(None)
        )
        pages.append([Page(some, column.encoding, limit) for some, limit in zip(of_page, limits, strict=False)])
    return pages


def _nbytes(groups: list[tuple[int, list[Page]]]) -> int:
    return sum(len(part) for _, pages in groups for page in pages for part in page.parts)
