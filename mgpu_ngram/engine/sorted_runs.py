"""Runs: the sorted tables of some chunks on their way to the result; kept in memory or stored, and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mgpu_ngram.core.arrays import load_arrays
from mgpu_ngram.core.checkpoint import save_entry
from mgpu_ngram.core.tables import ShardedTable
from mgpu_ngram.engine.budget import Budget, hold
from mgpu_ngram.engine.device import (
    Stopwatch,
    add_seconds,
    free_bytes,
    memory_guard,
    out_of_memory,
    to_device,
    to_device_together,
    to_host_fast,
)
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.merge_tables import merge_tables
from mgpu_ngram.kernels.count.prefix_runs import prefix_runs
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

RUN = "run"  # kind of checkpoint entry
MANY_TABLES = 8  # for each shard: from there on a GPU sorts them together rather than merging pair by pair
MERGE_COPIES = {"cpu": 8, "gpu": 5}  # of a row while it is merged and written: in, out, between levels, on the host


@dataclass(frozen=True)
class StoredRun:
    """A run in a file that every worker sees."""

    path: str
    chunks: tuple[int, ...]


@dataclass
class Run:
    """What is counted of some chunks. Every chunk of a corpus is in exactly one run when the result is made.

    tables   order -> tables cut into shards, all of one S, that are to be summed
    bins     order -> dense histogram, not yet a table
    stored   runs that lie in files
    chunks   numbers of the chunks in `tables` and `bins`
    seconds  by stage, what it took
    """

    tables: dict[int, list[ShardedTable]]
    bins: dict[int, Any] = field(default_factory=dict)
    stored: tuple[StoredRun, ...] = ()
    chunks: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    __hash__ = object.__hash__  # by identity: `hold` keeps a set of those that live

    @property
    def nbytes(self) -> int:
        """Bytes of its tables, in memory."""
        return sum(t.nbytes for tables in self.tables.values() for t in tables)

    @property
    def host_bytes(self) -> int:
        """Bytes that it holds in host memory."""
        return sum(t.nbytes for tables in self.tables.values() for t in tables if not on_gpu(t.counts))


def spill_run(run: Run, budget: Budget, folder: str) -> Run:
    """Leave a run on its device while there is room, else on the host, else in a file of `folder`."""
    place = budget.place(run.nbytes)
    if place == "device" and run.host_bytes:  # some tables have left a full device
        place = "host" if budget.fits_host(run.nbytes) else "disk"
    if place == "device":
        return run
    run = replace(run, tables={n: [moved(t, to_host_fast) for t in tables] for n, tables in run.tables.items()})
    return hold(run) if place == "host" else store_run(run, folder, durable=False)


def store_run(run: Run, folder: str, durable: bool = True) -> Run:
    """Sum the tables of a run and write them to a file of `folder`; what they held in memory is free again.

    durable  wait for the disk: of what is saved for a run that ends early, not of what memory has no room for
    """
    if not run.tables and not run.bins:
        return run
    run = merge_runs(run)
    arrays: dict[str, np.ndarray] = {}
    bits = {}
    for n, [table] in run.tables.items():
        arrays |= {
            f"{n}.keys": to_host_fast(table.keys),
            f"{n}.counts": to_host_fast(table.counts),
            f"{n}.ends": table.ends_S,
        }
        bits[n] = table.bits
    for n, bins in run.bins.items():
        arrays[f"{n}.bins"] = to_host(bins)
    path = save_entry(folder, RUN, run.chunks, arrays, {"bits": bits}, durable)
    return Run({}, {}, (*run.stored, StoredRun(path, run.chunks)), seconds=run.seconds)


def open_run(stored: StoredRun) -> Run:
    """A stored run: views of its file."""
    arrays, metadata = load_arrays(stored.path, verify=False)
    tables, bins = {}, {}
    for n, bits in metadata["bits"].items():
        keys, counts, ends_S = (arrays[f"{n}.{name}"] for name in ("keys", "counts", "ends"))
        tables[int(n)] = [ShardedTable(keys, counts, np.array(ends_S), int(n), bits)]
    for name in arrays:
        if name.endswith(".bins"):
            bins[int(name.partition(".")[0])] = arrays[name]
    return Run(tables, bins, (), stored.chunks)


def bundle_runs(*runs: Run) -> Run:
    """Several runs as one; nothing is summed but dense histograms and seconds."""
    return Run(
        {n: [t for r in runs for t in r.tables.get(n, [])] for n in _orders(r.tables for r in runs)},
        {n: add_bins(*[r.bins[n] for r in runs if n in r.bins]) for n in _orders(r.bins for r in runs)},
        tuple(s for r in runs for s in r.stored),
        tuple(c for r in runs for c in r.chunks),
        add_seconds(*(r.seconds for r in runs)),
    )


def merge_runs(*runs: Run) -> Run:
    """Sum runs, to one table per order. Any order of merging gives the same; stored ones stay stored."""
    run = bundle_runs(*runs)
    watch = Stopwatch("gpu" if any(on_gpu(t.counts) for tables in run.tables.values() for t in tables) else "cpu")
    run.tables = {n: [merge(tables)] for n, tables in run.tables.items()}
    watch.lap("reduce")
    run.seconds = add_seconds(run.seconds, watch.seconds)
    return run


def merge(tables: Sequence[ShardedTable]) -> ShardedTable:
    """Sum tables of one order and one S, where they are; in host memory when the device is full."""
    if len(tables) == 1:
        return tables[0]
    return where_it_fits(_merge, *tables)


def merge_to(tables: Sequence[ShardedTable], device: str) -> ShardedTable:
    """Sum tables of one order and one S on a device, wherever they are."""
    return merge(_moved_together(tables, device))


def _merge(*tables: ShardedTable) -> ShardedTable:
    if len(tables) >= MANY_TABLES * len(tables[0].ends_S) and on_gpu(tables[0].counts):
        return sort_together(tables)
    keys, counts, ends_S = merge_tables([(t.keys, t.counts, t.ends_S) for t in tables])
    return ShardedTable(keys, counts, ends_S, tables[0].order, tables[0].bits)


def sort_together(tables: Sequence[ShardedTable]) -> ShardedTable:
    """Sum tables of one order and one S by sorting all rows of a shard: of many small tables, for which starting a
    kernel for each pair would take longer than the work.
    """
    first, xp = tables[0], array_module(tables[0].counts)
    summed = []
    for s in range(len(first.ends_S)):
        shards = [t.shard(s) for t in tables]
        columns = xp.empty((len(first.keys) + 1, sum(map(len, shards))), np.uint64)
        for c, column in enumerate(columns):
            xp.concatenate([[*t.keys, t.counts.view(np.uint64)][c] for t in shards], out=column)
        columns = radix_sort(columns, first.order * first.bits)
        summed += prefix_runs(columns[:-1], first.bits, first.order, first.order, columns[-1].view(np.int64))
    keys, counts = (xp.concatenate(arrays, axis=-1) for arrays in zip(*summed, strict=True))
    return ShardedTable(keys, counts, np.cumsum([len(c) for _, c in summed]), first.order, first.bits)


def _orders(found: Iterable[dict[int, Any]]) -> list[int]:
    return sorted({n for one in found for n in one})


def add_bins(*histograms: Any) -> Any:
    """Sum dense histograms of one order: on the GPU when one of them is there."""
    device = "gpu" if any(map(on_gpu, histograms)) else "cpu"
    total = to_device(histograms[0], device)
    for bins in histograms[1:]:
        total = total + to_device(bins, device)
    return total


def where_it_fits(fn: Callable, *tables: Any) -> Any:
    """fn(*tables) where they are; in host memory when some are there already, or the device is full."""
    if len({on_gpu(t.counts) for t in tables}) == 1:
        try:
            return fn(*tables)
        except Exception as error:
            if not out_of_memory(error) or not on_gpu(tables[0].counts):
                raise
    return fn(*[moved(t, to_host_fast) for t in tables])


def moved(table: Any, move: Callable[[Any], Any]) -> Any:
    """A table with its arrays moved."""
    return replace(table, keys=move(table.keys), counts=move(table.counts))


def _moved_together(tables: Sequence[ShardedTable], device: str) -> list[ShardedTable]:
    arrays = to_device_together([a for t in tables for a in (t.keys, t.counts)], device)
    return [
        replace(t, keys=keys, counts=counts) for t, keys, counts in zip(tables, arrays[::2], arrays[1::2], strict=True)
    ]


def bins_of(run: Run) -> Run:
    """The dense histograms of a run and of its stored runs, added up."""
    return bundle_runs(Run({}, run.bins), *(Run({}, open_run(s).bins) for s in run.stored))


def take_part(run: Run, first: int, last: int) -> Run:
    """What a run holds of shards `first` to `last` - 1: views. Its stored runs come along whole."""
    tables = {n: [t.part(first, last) for t in ts] for n, ts in run.tables.items()}
    return Run(tables, {}, run.stored, run.chunks)


def take_part_to_gpu(run: Run, first: int, last: int) -> Run:
    """As `take_part`; what waits in host memory goes to the GPU if it has room: from host memory it would go by tcp."""
    part = take_part(run, first, last)
    if part.host_bytes > free_bytes("gpu") // 2:
        return part
    try:
        return replace(part, tables={n: _moved_together(ts, "gpu") for n, ts in part.tables.items()})
    except Exception as error:
        if not out_of_memory(error):
            raise
        return part


@dataclass(frozen=True)
class MergedBlock:
    """Merged rows of the shards from `first` on. Its last shard goes on in the next block unless `whole`."""

    table: ShardedTable
    first: int
    whole: bool = True


def merged_blocks(tables: Sequence[ShardedTable], first: int, budget: Budget) -> Iterator[MergedBlock]:
    """Sum tables of the same shards, of which the first is number `first`, a block at a time.

    tables  all of one order and S; in memory, or views of files

    Blocks are as large as the working memory allows: all shards, some, or a part of one, cut by key.
    """
    row_bytes = 8 * len(tables[0].keys) + 8
    most_rows = max(1, min(budget.working_bytes(), budget.block_bytes()) // (MERGE_COPIES[budget.device] * row_bytes))
    S = len(tables[0].ends_S)
    at = 0
    while at < S:
        last = at + 1
        while last < S and sum(t.start(last + 1) - t.start(at) for t in tables) <= most_rows:
            last += 1
        parts = [t.part(at, last) for t in tables]
        cuts = [parts] if last > at + 1 else list(_by_key(parts, most_rows))
        for i, cut in enumerate(cuts):
            with memory_guard("merging tables", budget.device):
                table = merge(_moved_together(cut, budget.device))
            yield MergedBlock(table, first + at, i == len(cuts) - 1)
        at = last


def _by_key(parts: list[ShardedTable], most_rows: int) -> Iterator[list[ShardedTable]]:
    """Cut tables of one shard at common keys until each piece has few enough rows, in the order of keys."""
    largest = max(parts, key=len)
    if sum(map(len, parts)) <= most_rows or len(largest) < 2:
        yield parts
        return
    key = to_host(largest.keys[:, len(largest) // 2])
    below, above = [], []
    for t in parts:
        row = _rank(t.keys, key)
        below.append(replace(t, keys=t.keys[:, :row], counts=t.counts[:row], ends_S=np.array([row])))
        above.append(replace(t, keys=t.keys[:, row:], counts=t.counts[row:], ends_S=np.array([len(t) - row])))
    yield from _by_key(below, most_rows)
    yield from _by_key(above, most_rows)


def _rank(keys: Any, key: np.ndarray) -> int:
    """The first row that is not below `key`."""
    xp = array_module(keys)
    low, high = 0, keys.shape[1]
    for column, values in zip(keys, xp.asarray(key[:, None]), strict=True):
        if low == high:
            break
        equal = column[low:high]  # to the key, in the columns before this one
        low, high = (low + int(xp.searchsorted(equal, values, side)[0]) for side in ("left", "right"))
    return low
