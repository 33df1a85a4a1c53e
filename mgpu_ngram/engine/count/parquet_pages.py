"""Encode count tables on a GPU as row groups of Parquet files, so that only packed bytes go to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.counts.parquet import GROUP_BYTES, PartWriter, group_rows
from mgpu_ngram.core.counts.parquet_deltas import DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, Page
from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.engine.count.top_ngrams import Summary, sums_before
from mgpu_ngram.engine.memory.async_copies import SliceCopies
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.kernels.count.crc32 import crc32
from mgpu_ngram.kernels.count.join_ranges import join_ranges
from mgpu_ngram.kernels.count.pack_deltas import Numbers, numbers_of_word, pack_deltas, whole_numbers
from mgpu_ngram.kernels.count.suffix_texts import Texts, suffix_texts
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

MAX_ROWS = 1 << 25  # rows that are encoded at once; more rows would take memory and save no time
MAX_WRITING_THREADS = 16  # threads that copy pages to the host and write them at once


class _EncodedGroup(NamedTuple):
    """A row group on the device: the parts of its pages are ranges of `data`, which neighbouring groups share."""

    rows: int
    data: Any
    pages: list[Page]

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.pages)


@dataclass(frozen=True)
class EncodedShard:
    """A shard whose row groups are on the device.

    copies  copies row groups to the host
    """

    groups: list[_EncodedGroup]
    copies: SliceCopies
    summary: Summary

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    def write(self, writer: PartWriter) -> None:
        """Append all row groups to a file."""
        for _, same in groupby(self.groups, key=lambda group: id(group.data)):
            groups = list(same)
            writer.add_groups([(g.rows, g.pages) for g in groups], partial(self.copies.copied, groups[0].data))


def row_bytes(columns: str, order: int) -> int:
    """Return the bytes of the device that a typical row takes while it is encoded, including its pages."""
    return 64 if columns == "ids" else max(96, 16 + 14 * order)


class PageEncoder:
    """Encode tables on their GPU.

    columns        as `PartWriter` has it; "text" needs a vocabulary of words
    min_count      n-grams with smaller counts are left out
    working_bytes  bytes of the device for all data except the table; they include the words of the vocabulary
    threads        threads that may copy pages to the host at once; each holds WRITTEN_BYTES of pinned memory
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        columns: str,
        min_count: int,
        working_bytes: int,
        threads: int = MAX_WRITING_THREADS,
    ):
        self._vocabulary, self._columns, self._min_count = vocabulary, columns, min_count
        self._words: tuple[Any, Any] | None = None  # offsets and bytes on the device
        if columns == "text":
            working_bytes -= vocabulary.offsets_V.nbytes + vocabulary.data.nbytes
        self._working_bytes = max(0, working_bytes)
        self._copies = SliceCopies(threads)

    @staticmethod
    def can_encode(vocabulary: Vocabulary, columns: str) -> bool:
        """Return whether this class encodes all columns of the files: not for bytes and for lists of token ids."""
        return columns == "ids" or vocabulary.unit == "word"

    def _most_rows(self, order: int) -> int:
        """Return how many rows may be encoded at once."""
        return min(MAX_ROWS, self._working_bytes // row_bytes(self._columns, order))

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

        None if a row group has too many bytes or the device remains full: then the host encodes the table.
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
) -> tuple[Any, list[list[Page]]]:
    """Return the bytes of all pages on their device, in the order of the file, and the pages of each row group.

    columns   integers that are packed
    suffixes  bytes of the suffixes of texts, and where each group begins; their page begins with the first two columns

    Makes few CUDA calls: beside writing threads, each call waits for the interpreter lock.
    """
    packed, P = pack_deltas(columns, starts_P1), len(starts_P1) - 1
    streams = [[cuts] for cuts in packed.starts_CP1]  # of each column
    joined, xp = packed.data[:0], array_module(packed.data)
    if suffixes:
        joined, begins_P1 = suffixes
        streams[:2] = [[*packed.starts_CP1[:2], [len(packed.data) + begin for begin in begins_P1]]]
    ranges = [[(cuts[p], cuts[p + 1]) for cuts in column] for p in range(P) for column in streams]  # of each page
    data = join_ranges(packed.data, joined, [part for page in ranges for part in page])
    sizes_N = np.array([sum(end - begin for begin, end in page) for page in ranges])
    ends_N = np.cumsum(sizes_N)
    begin_N, size_N = xp.asarray(np.stack([ends_N - sizes_N, sizes_N]))
    arrays = crc32(data, begin_N, size_N), packed.least_CP.reshape(-1), packed.most_CP.reshape(-1)
    numbers = to_host(xp.concatenate(arrays, dtype=np.int64)).reshape(-1, P)  # waits until `data` is complete
    C, kinds = len(columns), len(streams)
    crcs, found_CP = numbers[:kinds].reshape(-1).tolist(), numbers[kinds:].reshape(2, C, P).transpose(1, 2, 0).tolist()

    def page(n: int) -> Page:
        p, column = divmod(n, kinds)
        is_text, end, size = suffixes is not None and column == 0, int(ends_N[n]), int(sizes_N[n])
        encoding = DELTA_BYTE_ARRAY if is_text else DELTA_BINARY_PACKED
        found = None if is_text else tuple(found_CP[column - kinds][p])
        return Page([(end - size, end)], size, crcs[n], encoding, found)

    return data, [[page(n) for n in range(p * kinds, (p + 1) * kinds)] for p in range(P)]
