"""Encode count tables on a GPU as row groups of Parquet files, so that only packed bytes go to the host."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.crc import append_crc32
from mgpu_ngram.core.parquet import GROUP_BYTES, group_rows
from mgpu_ngram.core.parquet_deltas import DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, Page, Range, RowGroup
from mgpu_ngram.core.tables import ShardedTable
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine.device import on_device_or_host, to_device
from mgpu_ngram.engine.heaviest import Summary, sums_before
from mgpu_ngram.engine.host_copies import SliceCopies
from mgpu_ngram.kernels.count.crc32 import crc32
from mgpu_ngram.kernels.count.pack_deltas import Numbers, numbers_of_word, pack_deltas, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import Texts, suffix_texts
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

MOST_ROWS = 1 << 25  # that are encoded at once; more would take memory and save no time
COPIED_BYTES = 16 << 20  # of row groups that a thread copies to the host at once, or of one that is larger
WRITING_THREADS = 8  # that copy pages to the host and write them at once: more would mostly wait for the interpreter


class _EncodedPage(NamedTuple):
    """A page on the device: the ranges of its parts in the bytes of its group, and the fields of `Page`."""

    ranges: list[tuple[int, int]]
    crc32: int
    encoding: int
    found: Range | None

    @property
    def nbytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


class _EncodedGroup(NamedTuple):
    """A row group on the device; the groups that were encoded with it share `data`."""

    rows: int
    data: Any
    pages: list[_EncodedPage]

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.pages)


@dataclass(frozen=True)
class EncodedShard:
    """A shard whose row groups are on the device.

    copies  to bring them to the host
    """

    groups: list[_EncodedGroup]
    copies: SliceCopies
    summary: Summary

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    def slices(self) -> Generator[list[RowGroup], None, None]:
        """Yield all row groups, some at a time, in host memory until the next ones are taken."""
        first = 0
        while first < len(self.groups):
            data, nbytes, last = self.groups[first].data, self.groups[first].nbytes, first + 1
            while last < len(self.groups) and self.groups[last].data is data:
                nbytes += self.groups[last].nbytes
                if nbytes > COPIED_BYTES:
                    break
                last += 1
            with self._copied(self.groups[first:last]) as groups:
                yield groups
            first = last

    @contextmanager
    def _copied(self, groups: Sequence[_EncodedGroup]) -> Iterator[list[RowGroup]]:
        """Yield groups of the same data. The parts of a column follow each other there, so they are copied together."""
        first, last = ([r for page in group.pages for r in page.ranges] for group in (groups[0], groups[-1]))
        ranges = [(begin, end) for (begin, _), (_, end) in zip(first, last, strict=True)]
        with self.copies.copied(groups[0].data, ranges) as streams:
            of_groups: list[RowGroup] = []
            for group in groups:
                copied, pages = zip(ranges, streams, strict=True), []
                for page in group.pages:
                    parts = []
                    for begin, end in page.ranges:
                        (start, _), part = next(copied)
                        parts.append(part[begin - start : end - start])
                    pages.append(Page(parts, page.nbytes, page.crc32, page.encoding, page.found))
                of_groups.append((group.rows, pages))
            yield of_groups


def row_bytes(columns: str, order: int) -> int:
    """Return the bytes of the device that a usual row takes while it is encoded, with its pages."""
    return 64 if columns == "ids" else max(96, 16 + 14 * order)


class PageEncoder:
    """Encode tables on their GPU.

    columns        as `PartWriter` has it; "text" needs a vocabulary of words
    min_count      n-grams with smaller counts are left out
    working_bytes  of the device that may be used beside the table, the words of the vocabulary included
    """

    def __init__(self, vocabulary: Vocabulary, columns: str, min_count: int, working_bytes: int):
        self._vocabulary, self._columns, self._min_count = vocabulary, columns, min_count
        self._words: tuple[Any, Any] | None = None  # offsets and bytes on the device
        if columns == "text":
            working_bytes -= vocabulary.offsets_V.nbytes + vocabulary.data.nbytes
        self._working_bytes = max(0, working_bytes)
        self._copies = SliceCopies(WRITING_THREADS)

    @staticmethod
    def can_encode(vocabulary: Vocabulary, columns: str) -> bool:
        """Return whether files have only encoded columns: all but those of bytes and token lists have."""
        return columns == "ids" or vocabulary.unit == "word"

    def _most_rows(self, order: int) -> int:
        """Return how many rows may be encoded at once."""
        return min(MOST_ROWS, self._working_bytes // row_bytes(self._columns, order))

    def parts(self, table: ShardedTable) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of the shards that are encoded together; a large one comes alone."""
        first, S, most = 0, len(table.ends_S), self._most_rows(table.order)
        for s in range(1, S + 1):
            if s == S or table.start(s + 1) - table.start(first) > most:
                yield first, s
                first = s

    def encode(
        self, table: ShardedTable, found: Sequence[Summary], make_room: Callable[[], None] | None = None
    ) -> list[EncodedShard] | None:
        """Return the shards of a table, with their summaries.

        make_room  frees memory of the device, if it is full

        None if a row group has too many bytes or the device remains full: the host can do it.
        """
        if min(len(table), group_rows(self._columns)) > self._most_rows(table.order):
            return None

        def encode(device: str) -> list[EncodedShard] | None:
            return self._encode(table, found) if device == "gpu" else None

        return on_device_or_host(encode, "gpu", make_room)

    def _encode(self, table: ShardedTable, found: Sequence[Summary]) -> list[EncodedShard] | None:
        S = len(table.ends_S)
        if self._min_count > 1:
            table = _at_least(table, self._min_count)
        starts = [range(table.start(s), table.start(s + 1), group_rows(self._columns)) for s in range(S)]
        starts_P1 = np.array([*(row for rows in starts for row in rows), len(table)], np.int64)
        groups: list[_EncodedGroup] = []
        while len(groups) < len(starts_P1) - 1:
            first = len(groups)
            last = int(np.searchsorted(starts_P1, starts_P1[first] + self._most_rows(table.order), "right")) - 1
            some = self._groups(table, starts_P1[first : last + 1])
            if some is None:
                return None
            groups += some
        cuts = np.cumsum([0, *map(len, starts)]).tolist()
        shards = [groups[a:b] for a, b in pairwise(cuts)]
        return [EncodedShard(own, self._copies, summary) for own, summary in zip(shards, found, strict=True)]

    def _groups(self, table: ShardedTable, starts_P1: np.ndarray) -> list[_EncodedGroup] | None:
        """Return the row groups that begin at starts_P1, up to its last row; None if one has too many bytes."""
        xp, rows = array_module(table.counts), slice(int(starts_P1[0]), int(starts_P1[-1]))
        keys, counts, begins_P1 = table.keys[:, rows], table.counts[rows], (starts_P1 - starts_P1[0]).tolist()
        packed = [whole_numbers(xp.ascontiguousarray(counts))]
        if self._columns == "ids":
            packed = [numbers_of_word(keys, table.bits, n) for n in range(table.order)] + packed
            data, pages = _encoded_pages(packed, begins_P1)
        else:
            texts, ends = self._texts(keys, table.order, table.bits, begins_P1)
            if texts is None:
                return None
            data, pages = _encoded_pages([*map(whole_numbers, texts[:2]), *packed], begins_P1, (texts.data, ends))
        return [_EncodedGroup(b - a, data, own) for (a, b), own in zip(pairwise(begins_P1), pages, strict=True)]

    def _texts(self, keys_CR: Any, order: int, bits: int, starts_P1: list[int]) -> tuple[Texts | None, list[int]]:
        """Return the texts of row groups, None if one has too many bytes; and where the suffixes of each begin."""
        xp = array_module(keys_CR)
        if self._words is None:
            words, device = self._vocabulary, "gpu" if on_gpu(keys_CR) else "cpu"
            self._words = to_device(words.offsets_V, device), to_device(words.data, device)
        begins_P1 = xp.asarray(np.array(starts_P1))
        texts = suffix_texts(keys_CR, order, bits, *self._words, begins_P1)
        sums_2P1 = xp.stack([sums_before(bytes_R)[begins_P1] for bytes_R in (texts.prefix_R, texts.suffix_R)])
        prefix_P1, suffix_P1 = to_host(sums_2P1)
        too_many = int(np.diff(prefix_P1 + suffix_P1).max()) > GROUP_BYTES
        return None if too_many else texts, suffix_P1.tolist()


def _at_least(table: ShardedTable, min_count: int) -> ShardedTable:
    kept = table.counts >= min_count
    xp = array_module(kept)
    ends_S = to_host(sums_before(kept)[xp.asarray(table.ends_S)])
    return replace(table, keys=table.keys[:, kept], counts=table.counts[kept], ends_S=ends_S)


def _encoded_pages(
    columns: Sequence[Numbers], starts_P1: list[int], suffixes: tuple[Any, list[int]] | None = None
) -> tuple[Any, list[list[_EncodedPage]]]:
    """Return the bytes of all pages on their device, column after column, and the pages of each row group.

    columns   integers that are packed
    suffixes  of texts: their bytes, and where those of each group begin. Their page begins with the first two columns

    Has few calls of the device: beside threads that write, each waits for the interpreter.
    """
    packed, C, P = pack_deltas(columns, starts_P1), len(columns), len(starts_P1) - 1
    data, cuts, xp = packed.data, packed.starts_CP1, array_module(packed.data)
    if suffixes:
        cuts = [*cuts, [len(data) + start for start in suffixes[1]]]
        data = xp.concatenate([data, suffixes[0]])
    sizes = np.diff(cuts).reshape(-1)
    begin_N, size_N = xp.asarray(np.stack([np.array(cuts)[:, :-1].reshape(-1), sizes]))
    arrays = crc32(data, begin_N, size_N), packed.least_CP.reshape(-1), packed.most_CP.reshape(-1)
    numbers = to_host(xp.concatenate(arrays, dtype=np.int64)).reshape(-1, P).tolist()  # waits until `data` is complete
    crcs, least, most = numbers[: len(cuts)], numbers[len(cuts) : len(cuts) + C], numbers[len(cuts) + C :]

    def page(p: int, streams: Sequence[int], encoding: int) -> _EncodedPage:
        ranges, crc = [(cuts[s][p], cuts[s][p + 1]) for s in streams], 0
        for s, (begin, end) in zip(streams, ranges, strict=True):
            crc = append_crc32(crc, crcs[s][p], end - begin)
        found = (least[streams[0]][p], most[streams[0]][p]) if encoding == DELTA_BINARY_PACKED else None
        return _EncodedPage(ranges, crc, encoding, found)

    layout = [([c], DELTA_BINARY_PACKED) for c in range(2 if suffixes else 0, C)]
    if suffixes:
        layout = [([0, 1, C], DELTA_BYTE_ARRAY), *layout]
    return data, [[page(p, *column) for column in layout] for p in range(P)]
