"""Sorted runs: the sorted tables of one or more chunks, kept in memory or in files until they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import to_device_together, to_host_fast
from mgpu_ngram.engine.memory.device import free_bytes, to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard, on_device_or_host
from mgpu_ngram.engine.memory.spill import held, result_to_device, spill
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.kernels.common.radix_sort import radix_sort
from mgpu_ngram.kernels.count.count_prefixes import count_prefixes
from mgpu_ngram.kernels.count.merge_tables import merge_tables
from mgpu_ngram.kernels.dispatch import array_module, on_gpu, to_host

T = TypeVar("T")

RUN_ENTRY = "run"  # kind of checkpoint entry
MANY_TABLES = 8  # with this many tables per shard, a GPU sorts all rows together instead of merging pair by pair
# Copies of a row in memory while it is merged and written: input, output, between levels, on the host. On a GPU they
# include the row while it is encoded, and its pages that wait to be written.
MERGE_COPIES = {"cpu": 8, "gpu": 6}
LEAST_BLOCK = 0.25  # share of `Budget.block_bytes` that a block has even if the device is full


@dataclass(frozen=True)
class StoredRun:
    """A sorted run in a file that all workers can read."""

    path: str
    chunks: tuple[int, ...]


@dataclass
class SortedRun:
    """The counts of one or more chunks. When the result is made, each chunk of the corpus is in exactly one run.

    tables   {order: tables to sum, each cut into the same S shards}
    bins     {order: dense histogram that is not yet a table}
    stored   stored runs
    chunks   numbers of the chunks in `tables` and `bins`
    seconds  by step of the work
    """

    tables: dict[int, list[ShardedTable]]
    bins: dict[int, Any] = field(default_factory=dict)
    stored: tuple[StoredRun, ...] = ()
    chunks: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables in memory."""
        return sum(t.nbytes for tables in self.tables.values() for t in tables)

    @property
    def host_bytes(self) -> int:
        """Bytes of the tables in host memory."""
        return sum(t.nbytes for tables in self.tables.values() for t in tables if not on_gpu(t.counts))

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of the tables by name."""
        named = {f"{n}.{i}": t for n, tables in self.tables.items() for i, t in enumerate(tables)}
        return {f"{name}.{field}": getattr(t, field) for name, t in named.items() for field in ("keys", "counts")}

    def with_arrays(self, named: dict[str, Any]) -> SortedRun:
        """Return the run with other arrays of the tables, such as of another device."""
        tables = {
            n: [replace(t, keys=named[f"{n}.{i}.keys"], counts=named[f"{n}.{i}.counts"]) for i, t in enumerate(ts)]
            for n, ts in self.tables.items()
        }
        return replace(self, tables=tables)


def spill_run(run: SortedRun, budget: Budget, folder: str) -> SortedRun:
    """Spill a run, see `spill`: a file holds its sorted tables, and all workers can read the file."""
    return spill(
        run, budget, folder, lambda run, folder: store_run(result_to_device(run, "cpu"), folder, durable=False)
    )


def store_run(run: SortedRun, folder: str, durable: bool = True) -> SortedRun:
    """Sum the tables of a run, write them to a file of `folder`, and return the run without them.

    durable  wait until the file is on disk, to resume from it; not needed for spilled runs
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
    path = save_entry(folder, RUN_ENTRY, run.chunks, arrays, {"bits": bits}, durable)
    return SortedRun({}, {}, (*run.stored, StoredRun(path, run.chunks)), seconds=run.seconds)


def open_run(stored: StoredRun) -> SortedRun:
    """Return a stored run, as views of its file."""
    arrays, metadata = load_arrays(stored.path, verify=False)
    tables, bins = {}, {}
    for n, bits in metadata["bits"].items():
        keys, counts, ends_S = (arrays[f"{n}.{name}"] for name in ("keys", "counts", "ends"))
        tables[int(n)] = [ShardedTable(keys, counts, np.array(ends_S), int(n), bits)]
    for name in arrays:
        if name.endswith(".bins"):
            bins[int(name.partition(".")[0])] = arrays[name]
    return SortedRun(tables, bins, (), stored.chunks)


def bundle_runs(*runs: SortedRun) -> SortedRun:
    """Return several runs as one, counted as held. Tables are kept side by side; dense histograms and seconds are
    summed.
    """
    return held(_bundled(*runs))


def _bundled(*runs: SortedRun) -> SortedRun:
    return SortedRun(
        {n: [t for r in runs for t in r.tables.get(n, [])] for n in _orders(r.tables for r in runs)},
        {n: add_bins(*[r.bins[n] for r in runs if n in r.bins]) for n in _orders(r.bins for r in runs)},
        tuple(s for r in runs for s in r.stored),
        tuple(c for r in runs for c in r.chunks),
        add_seconds(*(r.seconds for r in runs)),
    )


def merge_runs(*runs: SortedRun) -> SortedRun:
    """Sum runs to one table per order. Any order of merging gives the same table; stored runs stay in their files."""
    run = _bundled(*runs)
    watch = Stopwatch("gpu" if any(on_gpu(t.counts) for tables in run.tables.values() for t in tables) else "cpu")
    run.tables = {n: [merge(tables)] for n, tables in run.tables.items()}
    watch.lap("reduce")
    run.seconds = add_seconds(run.seconds, watch.seconds)
    return run


def merge(tables: Sequence[ShardedTable]) -> ShardedTable:
    """Sum tables of one order and one number of shards on their device; in host memory when the device is full."""
    if len(tables) == 1:
        return tables[0]
    return where_it_fits(_merge, *tables)


def merge_to(tables: Sequence[ShardedTable], device: str) -> ShardedTable:
    """Sum tables of one order and one number of shards on a device, wherever they are."""
    return merge(_tables_to_device(tables, device))


def _merge(*tables: ShardedTable) -> ShardedTable:
    if len(tables) >= MANY_TABLES * len(tables[0].ends_S) and on_gpu(tables[0].counts):
        return sort_together(tables)
    keys, counts, ends_S = merge_tables([(t.keys, t.counts, t.ends_S) for t in tables])
    return ShardedTable(keys, counts, ends_S, tables[0].order, tables[0].bits)


def sort_together(tables: Sequence[ShardedTable]) -> ShardedTable:
    """Sum tables of one order and one number of shards by sorting all rows of a shard.

    For many small tables: kernel launches for each pair of tables would take longer than the work.
    """
    first, xp = tables[0], array_module(tables[0].counts)
    summed = []
    for s in range(len(first.ends_S)):
        shards = [t.shard(s) for t in tables]
        columns = xp.empty((len(first.keys) + 1, sum(map(len, shards))), np.uint64)
        for c, column in enumerate(columns):
            xp.concatenate([[*t.keys, t.counts.view(np.uint64)][c] for t in shards], out=column)
        columns = radix_sort(columns, first.order * first.bits)
        summed += count_prefixes(columns[:-1], first.bits, first.order, first.order, columns[-1].view(np.int64))
    keys, counts = (xp.concatenate(arrays, axis=-1) for arrays in zip(*summed, strict=True))
    return ShardedTable(keys, counts, np.cumsum([len(c) for _, c in summed]), first.order, first.bits)


def _orders(found: Iterable[dict[int, Any]]) -> list[int]:
    return sorted({n for one in found for n in one})


def add_bins(*histograms: Any) -> Any:
    """Sum dense histograms of one order, on the GPU if one of them is there."""
    device = "gpu" if any(map(on_gpu, histograms)) else "cpu"
    total = to_device(histograms[0], device)
    for bins in histograms[1:]:
        total = total + to_device(bins, device)
    return total


def where_it_fits(fn: Callable[..., T], *tables: Any, make_room: Callable[[], None] | None = None) -> T:
    """Return fn(*tables) on the device of the tables; in host memory if one of them is there or the device is full.

    make_room  see `on_device_or_host`
    """
    places = {"gpu" if on_gpu(t.counts) else "cpu" for t in tables}
    here = places.pop() if len(places) == 1 else "both"

    def call(device: str) -> T:
        return fn(*(tables if device == here else [map_table(t, to_host_fast) for t in tables]))

    return on_device_or_host(call, "gpu" if here == "gpu" else "cpu", make_room)


def map_table(table: Any, fn: Callable[[Any], Any]) -> Any:
    """Return the table with `fn` applied to its arrays, such as a copy to a device."""
    return replace(table, keys=fn(table.keys), counts=fn(table.counts))


def _tables_to_device(tables: Sequence[ShardedTable], device: str) -> list[ShardedTable]:
    arrays = to_device_together([a for t in tables for a in (t.keys, t.counts)], device)
    return [
        replace(t, keys=keys, counts=counts) for t, keys, counts in zip(tables, arrays[::2], arrays[1::2], strict=True)
    ]


def bins_of(run: SortedRun) -> SortedRun:
    """Return the sum of the dense histograms of a run and of its stored runs."""
    return bundle_runs(SortedRun({}, run.bins), *(SortedRun({}, open_run(s).bins) for s in run.stored))


def take_shards(run: SortedRun, first: int, last: int) -> SortedRun:
    """Return shards `first` to `last` - 1 of a run, as views, and all of its stored runs, uncut."""
    tables = {n: [t.part(first, last) for t in ts] for n, ts in run.tables.items()}
    return SortedRun(tables, {}, run.stored, run.chunks)


def tables_of_shards(runs: Sequence[SortedRun], first: int, last: int) -> dict[int, list[ShardedTable]]:
    """Return the tables of shards `first` to `last` - 1, by order.

    runs  runs whose tables hold only these shards (`take_shards`) and whose stored runs hold all shards
    """
    stored = {s.path: s for run in runs for s in run.stored}
    parts = [*runs, *(take_shards(open_run(s), first, last) for s in stored.values())]
    return {n: [t for p in parts for t in p.tables.get(n, [])] for n in _orders(p.tables for p in parts)}


def take_shards_to_gpu(run: SortedRun, first: int, last: int) -> SortedRun:
    """As `take_shards`, on the GPU if it has room: peers read GPU memory directly, but host memory by TCP."""
    part = take_shards(run, first, last)

    def take(device: str) -> SortedRun:
        if device == "cpu":
            return part
        return replace(part, tables={n: _tables_to_device(ts, device) for n, ts in part.tables.items()})

    return on_device_or_host(take, "gpu" if part.host_bytes <= free_bytes("gpu") // 2 else "cpu")


@dataclass(frozen=True)
class MergedBlock:
    """Merged rows of one order, of the shards from `first` on. The last shard continues in the next block unless
    `whole`.

    left_out  (number of n-grams that no file will hold, sum of their counts)
    """

    table: ShardedTable
    first: int
    whole: bool = True
    left_out: tuple[int, int] = (0, 0)


def room_bytes(budget: Budget) -> int:
    """Return the bytes that a block may take now, with all its copies."""
    block_bytes = budget.block_bytes()
    # At least LEAST_BLOCK: on a full device, blocks of a row each would take hours.
    return max(min(budget.working_bytes(), block_bytes), int(LEAST_BLOCK * block_bytes))


def merged_blocks(tables: Sequence[ShardedTable], first: int, budget: Budget) -> Iterator[MergedBlock]:
    """Sum tables of the same shards block by block. The first shard has the number `first`.

    tables  all of one order and one number of shards; in memory, or views of files

    A block is as large as the working memory allows: several shards, or a range of keys of one shard. When the device
    is full, the host merges it.
    """
    most_rows = max(1, room_bytes(budget) // (MERGE_COPIES[budget.device] * 8 * (len(tables[0].keys) + 1)))
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
                table = merge(on_device_or_host(partial(_tables_to_device, cut), budget.device))
            yield MergedBlock(table, first + at, i == len(cuts) - 1)
        at = last


def _by_key(parts: list[ShardedTable], most_rows: int) -> Iterator[list[ShardedTable]]:
    """Yield pieces of the tables of one shard, cut at common keys, with `most_rows` rows or fewer, in key order."""
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
    """Return the first row whose key is `key` or greater."""
    xp = array_module(keys)
    low, high = 0, keys.shape[1]
    for column, values in zip(keys, xp.asarray(key[:, None]), strict=True):
        if low == high:
            break
        equal = column[low:high]  # to the key, in the columns before this one
        low, high = (low + int(xp.searchsorted(equal, values, side)[0]) for side in ("left", "right"))
    return low
