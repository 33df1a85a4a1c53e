"""Count the n-grams of some shards from their windows, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.shards import sort_bytes_per_token
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.engine.count.count_chunk import split
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.sorted_runs import (
    MergedBlock,
    SortedRun,
    merged_blocks,
    room_bytes,
    where_it_fits,
)
from mgpu_ngram.engine.count.suffix_order import in_text_order, tables_of_windows
from mgpu_ngram.engine.count.text_ids import WindowKeys
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import move_to
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host
from mgpu_ngram.engine.memory.spill import spill
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.dispatch import array_module, on_gpu

RESORTED_BYTES = 40  # of memory for each n-gram of an order that is put into the order of the text, beside its tables


@dataclass(frozen=True)
class Least:
    """Which n-grams a block keeps: those of a count of at least `count`, which files will hold; and at least `top`
    n-grams, which reports show.
    """

    count: int
    top: int

    def of(self, counts_R: Any) -> int:
        """Return the least count that is kept."""
        least = self.count
        while least > 1 and count_true(counts_R >= least) < self.top:
            least //= 2
        return least


@dataclass(frozen=True)
class Windows:
    """The windows of some shards of a text. No word is split (`Lexicon.split`), as in all counts.

    pieces   the windows of each worker's tokens
    shards   (first, past the last) shard
    order    most words of a window
    """

    pieces: Sequence[WindowKeys]
    shards: tuple[int, int]
    lexicon: Lexicon
    order: int

    def blocks(
        self, added: Mapping[int, Sequence[ShardedTable]], budget: Budget, least: Least, folder: str
    ) -> Iterator[MergedBlock]:
        """Yield the counts of all shards, in the order of the shards: of one or several shards, order by order.

        added   tables of the same shards, S each, by order, whose counts are added
        folder  where tables of a shard spill whose windows are too many to be sorted at once
        """
        first, past = self.shards
        rows_S = self._rows()
        row_bytes = sort_bytes_per_token(self.order, check.code_bits(self.lexicon.symbols)) + RESORTED_BYTES
        most_rows = max(1, room_bytes(budget) // row_bytes)
        at = first
        while at < past:
            end = at + 1
            # A GPU counts several shards at once, because many small kernels would take longer than the cut.
            while budget.device == "gpu" and end < past and rows_S[at - first : end + 1 - first].sum() <= most_rows:
                end += 1
            own = {n: [t.part(at - first, end - first) for t in tables] for n, tables in added.items()}
            if rows_S[at - first : end - first].sum() > most_rows:
                yield from self._large(at, own, budget, most_rows, folder)
            else:
                yield from self._small((at, end), own, budget, least)
            at = end

    def _small(
        self, shards: tuple[int, int], added: Mapping[int, Sequence[ShardedTable]], budget: Budget, least: Least
    ) -> Iterator[MergedBlock]:
        """Yield the counts of shards whose windows are sorted at once."""
        columns = list(self._columns(shards))
        with memory_guard("counting n-grams", budget.device):
            tables = on_device_or_host(partial(self._tables, columns), budget.device)
        for n in range(self.order, 1, -1):
            table, left_out = tables.pop(n), (0, 0)
            if not added.get(n):
                table, left_out = _frequent(table, least)
            found = [where_it_fits(partial(self._cut, shards=shards), table)]
            del table
            if added.get(n):
                yield from merged_blocks([*found, *added[n]], shards[0], budget)
            else:
                yield MergedBlock(found.pop(), shards[0], left_out=left_out)  # the caller alone holds the table

    def _large(
        self, shard: int, added: Mapping[int, Sequence[ShardedTable]], budget: Budget, most_rows: int, folder: str
    ) -> Iterator[MergedBlock]:
        """Yield the counts of a shard from sorted runs of its windows, which may spill."""
        shards, runs = (shard, shard + 1), list[SortedRun]()
        for columns in _in_slices(self._columns(shards), most_rows):
            with memory_guard("counting n-grams", budget.device):
                tables = on_device_or_host(partial(self._tables, columns), budget.device)
            cut = {n: [where_it_fits(partial(self._cut, shards=shards), tables.pop(n))] for n in sorted(tables)}
            runs.append(spill(SortedRun(cut), budget, folder))
            del cut
        for n in range(self.order, 1, -1):
            tables_of_runs = [table for run in runs for table in run.tables.pop(n)]
            yield from merged_blocks([*tables_of_runs, *added.get(n, ())], shard, budget)

    def _rows(self) -> np.ndarray:
        """Return (S,) int64, the windows of each shard."""
        first, past = self.shards
        rows_S = np.zeros(past - first, np.int64)
        for piece in self.pieces:
            for keys in piece.streams:
                rows_S += np.diff(keys.starts_S1[first - piece.first : past - piece.first + 1])
        return rows_S

    def _columns(self, shards: tuple[int, int]) -> Iterator[Any]:
        """Yield the windows of some shards, for each stream of the text."""
        return (columns for piece in self.pieces for columns in piece.of(shards) if columns.shape[1])

    def _tables(self, columns: Sequence[Any], device: str) -> dict[int, Table]:
        """Return the tables of windows in suffix order."""
        bits = check.code_bits(self.lexicon.symbols)
        none = to_device(np.empty((check.num_columns(self.order, bits), 0), np.uint64), device)
        # No name holds the keys, so that they are freed as soon as they are sorted.
        return tables_of_windows(
            array_module(none).concatenate([none, *(move_to(some, device) for some in columns)], axis=1),
            self.order, bits,
        )  # fmt: skip

    def _cut(self, table: Table, shards: tuple[int, int]) -> ShardedTable:
        """Return a table in the order of the text, cut into shards."""
        table = in_text_order(table)
        if shards[1] - shards[0] == 1:
            keys, counts = table.keys, table.counts
            if table.order == 2 and not on_gpu(keys):  # it would keep the tables of all orders: see `count_prefixes`
                keys, counts = keys.copy(), counts.copy()
            return ShardedTable(keys, counts, np.array([len(table)]), table.order, table.bits)
        return split(table, self.lexicon).part(*shards)


def _in_slices(columns: Iterator[Any], most_rows: int) -> Iterator[list[Any]]:
    """Yield lists of windows (C, R) with `most_rows` rows in all; the last one has the rest."""
    waiting: list[Any] = []
    room = most_rows
    for some in columns:
        begin = 0
        while begin < some.shape[1]:
            waiting.append(some[:, begin : begin + room])
            begin += waiting[-1].shape[1]
            room -= waiting[-1].shape[1]
            if not room:
                yield waiting
                waiting, room = [], most_rows
    if waiting:
        yield waiting


def _frequent(table: Table, least: Least) -> tuple[Table, tuple[int, int]]:
    """Return the n-grams of a table that a block keeps; and how many it leaves out, and the sum of their counts."""
    count = least.of(table.counts)
    if count == 1:
        return table, (0, 0)
    rows = array_module(table.counts).flatnonzero(table.counts >= count)
    kept = replace(table, keys=table.keys.take(rows, axis=1), counts=table.counts[rows])
    return kept, (len(table) - len(kept), int(table.counts.sum() - kept.counts.sum()))
