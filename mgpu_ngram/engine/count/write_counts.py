"""Write merged tables and the vocabulary to Parquet files, several at once."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from mgpu_ngram.core.counts.parquet import PartWriter, write_vocabulary
from mgpu_ngram.core.counts.parquet_deltas import WRITTEN_BYTES
from mgpu_ngram.core.counts.tables import Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.engine.count.count_chunk import unigram_tables
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.parquet_pages import MAX_WRITING_THREADS, EncodedShard, PageEncoder
from mgpu_ngram.engine.count.sorted_runs import (
    MERGE_COPIES,
    MergedBlock,
    SortedRun,
    map_table,
    merged_blocks,
    tables_of_shards,
)
from mgpu_ngram.engine.count.text_ids import WindowKeys
from mgpu_ngram.engine.count.top_ngrams import Summary, heaviest, summaries
from mgpu_ngram.engine.count.window_blocks import Least, Windows
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.memory.out_of_memory import on_device_or_host
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.kernels.dispatch import on_gpu

HOST_PARTS = 4  # parts of the host memory of a GPU's task: merged rows take one at most, buffers of copies another one

T = TypeVar("T")


@dataclass(frozen=True)
class WriteOptions:
    """Options for writing tables: columns and threads."""

    folder: str
    budget: Budget
    min_count: int = 1  # n-grams with smaller counts are omitted
    top: int = 5  # number of most frequent n-grams that are reported
    threads: int = 1
    first_order: int = 1  # lowest order in the sorted runs; 2 if the vocabulary has counted order 1
    columns: str = "text"  # or "ids", as `PartWriter` has it
    spill_folder: str = ""  # for tables that do not fit in memory


@dataclass(frozen=True)
class WrittenFile:
    """One file: its name in the output folder, and its content."""

    name: str
    rows: int
    size_bytes: int
    crc32: int
    order: int = 0  # 0: the vocabulary
    distinct: int = 0  # n-grams before min_count
    total: int = 0
    top: tuple[tuple[int, list[int], str], ...] = ()  # (count, codes, text) of the most frequent n-grams


def write_part(
    runs: Sequence[SortedRun],
    first: int,
    last: int,
    vocabulary: Vocabulary,
    options: WriteOptions,
    with_symbols: bool = False,
) -> tuple[list[WrittenFile], dict[str, float]]:
    """Merge shards `first` to `last` - 1 of sorted runs; write order=N/part-SSSSS.parquet for each order and shard.

    runs          runs whose tables hold only these shards (`take_shards`) and whose stored runs hold all shards
    with_symbols  also write vocabulary.parquet and, if the vocabulary has counted it, order 1

    Merges block by block within the budget and writes files while the next blocks are merged.
    Returns the files, and the seconds of `reduce` and `write`.
    """
    tables = tables_of_shards(runs, first, last)
    wanted = sorted((n for n in tables if n >= options.first_order), reverse=True)
    blocks = (block for n in wanted for block in merged_blocks(tables[n], first, options.budget))
    return _write(blocks, vocabulary, options, with_symbols)


def write_windows(
    pieces: Sequence[WindowKeys],
    runs: Sequence[SortedRun],
    shards: tuple[int, int],
    lexicon: Lexicon,
    order: int,
    vocabulary: Vocabulary,
    options: WriteOptions,
) -> tuple[list[WrittenFile], dict[str, float]]:
    """Count shards[0] to shards[1] - 1 from their windows, as `write_part` merges and writes them.

    pieces  windows of up to `order` words of all tokens
    runs    as for `write_part`: tables of earlier counts
    """
    windows, added = Windows(pieces, shards, lexicon, order), tables_of_shards(runs, *shards)
    blocks = windows.blocks(added, options.budget, Least(options.min_count, options.top), options.spill_folder)
    return _write(blocks, vocabulary, options, with_symbols=shards[0] == 0)


def _write(
    blocks: Iterator[MergedBlock], vocabulary: Vocabulary, options: WriteOptions, with_symbols: bool
) -> tuple[list[WrittenFile], dict[str, float]]:
    """Write the files of blocks; return them, and the seconds of `reduce`, in which blocks are made, and `write`."""
    watch = Stopwatch(options.budget.device)
    encoder = None
    if options.budget.device == "gpu" and PageEncoder.can_encode(vocabulary, options.columns):
        room = options.budget.block_bytes() // MERGE_COPIES["gpu"]
        buffers = options.budget.host_working_bytes() // HOST_PARTS // WRITTEN_BYTES
        threads = min(max(1, buffers), MAX_WRITING_THREADS)
        encoder = PageEncoder(vocabulary, options.columns, options.min_count, room, threads)
    with ThreadPoolExecutor(options.threads) as pool, ThreadPoolExecutor(1) as making:
        writing = _Writing(pool, options.budget)
        try:
            if with_symbols:
                writing.add(_symbol_files(vocabulary, options), 0)
            if options.budget.device == "gpu" and encoder is None:
                blocks = _ahead(making, blocks)  # the GPU makes blocks while rows go to the host
            for block in blocks:
                order = block.table.order
                write = partial(_write_shard, order=order, vocabulary=vocabulary, options=options)
                watch.lap("reduce")
                if block.whole:
                    _add_shards(writing, block, encoder, write, options.top, 1 if order == 1 else None)
                else:
                    writing.add_pieces(partial(write, shard=block.first), _pieces(block, blocks))
                watch.lap("write")
            files = writing.finish()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    watch.lap("write")
    return files, watch.seconds


def _add_shards(
    writing: _Writing,
    block: MergedBlock,
    encoder: PageEncoder | None,
    write: Callable[..., WrittenFile],
    top: int,
    num_shards: int | None,
) -> None:
    """Write the shards of a block, the largest first; up to shard `num_shards` - 1. Encode them on their GPU."""
    found: list[Summary] | None = None  # if the device is full, the host writes all shards
    if encoder and on_gpu(block.table.counts):
        found = on_device_or_host(lambda device: summaries(block.table, top) if device == "gpu" else None, "gpu")
    for first, last in encoder.parts(block.table) if encoder and found else [(0, len(block.table.ends_S))]:
        part = block.table.part(first, last)
        shards: Sequence[Table | EncodedShard] | None
        shards = encoder.encode(part, found[first:last], writing.free_device) if encoder and found else None
        place = "host" if shards is None else "device"
        if shards is None:
            writing.make_room(part.nbytes)
            part = map_table(part, to_host_fast)
            shards = [part.shard(s) for s in range(last - first)]
        numbered = enumerate(shards, block.first + first)
        wanted = [(s, rows) for s, rows in numbered if num_shards is None or s < num_shards]
        wanted.sort(key=lambda one: one[1].nbytes, reverse=True)
        writing.add(
            [
                partial(write, [rows], shard=s, left_out=block.left_out if s == block.first else (0, 0))
                for s, rows in wanted
            ],
            sum(r.nbytes for r in shards),
            place,
        )


class _Batch(NamedTuple):
    """Files whose arrays are freed together: their bytes, and where these are, "host" or "device"."""

    files: list[Future[WrittenFile]]
    nbytes: int
    place: str


class _Writing:
    """Shards that are being written: merged rows wait in host memory, encoded ones on their device, as many as fit."""

    def __init__(self, pool: ThreadPoolExecutor, budget: Budget):
        self._pool = pool
        rows_bytes = budget.block_bytes() // MERGE_COPIES["cpu"]  # bytes of the next block, which is merged meanwhile
        if budget.device == "gpu":
            rows_bytes = budget.host_working_bytes() // HOST_PARTS
        self._room = {"host": rows_bytes, "device": budget.block_bytes() // MERGE_COPIES["gpu"]}
        self._waiting: deque[_Batch] = deque()
        self._files: list[WrittenFile] = []

    def add(self, jobs: Sequence[Callable[[], WrittenFile]], nbytes: int, place: str = "host") -> None:
        """Write files of arrays of `nbytes` bytes, which are freed when all are written; waits for memory first.

        Raises the error of a file that could not be written.
        """
        self.make_room(nbytes, place)
        for file in (file for batch in self._waiting for file in batch.files if file.done()):
            file.result()
        self._waiting.append(_Batch([self._pool.submit(job) for job in jobs], nbytes, place))

    def add_pieces(self, write: Callable[[Iterable[Table]], WrittenFile], pieces: Iterator[Table]) -> None:
        """Write the file of a shard that spans blocks; writes it alone if it does not fit in memory."""
        table_bytes, tables = 0, []
        for table in pieces:
            tables.append(table)
            table_bytes += table.keys.nbytes + table.counts.nbytes
            self.make_room(table_bytes)
            if table_bytes > self._room["host"]:
                self._files.append(write(itertools.chain(_each_once(tables), _ahead(self._pool, pieces))))
                return
        self.add([partial(write, tables)], table_bytes)

    def make_room(self, nbytes: int, place: str = "host") -> None:
        """Wait until `nbytes` fit beside the arrays that are being written from that place."""

        def waiting() -> int:
            return sum(batch.nbytes for batch in self._waiting if batch.place == place)

        while waiting() and waiting() + nbytes > self._room[place]:
            self._files += [file.result() for file in self._waiting.popleft().files]

    def free_device(self) -> None:
        """Wait until no arrays of the device are being written."""
        self.make_room(self._room["device"] + 1, "device")

    def finish(self) -> list[WrittenFile]:
        """Wait for all files."""
        return self._files + [file.result() for batch in self._waiting for file in batch.files]


def _each_once(tables: list[Table]) -> Iterator[Table]:
    """Yield the tables of a list, and remove each from it."""
    while tables:
        yield tables.pop(0)


def _ahead(pool: ThreadPoolExecutor, items: Iterator[T]) -> Iterator[T]:
    """Yield tables or blocks; computes the next one while the caller uses the current one."""
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, items, None)
        yield item


def _pieces(block: MergedBlock, blocks: Iterator[MergedBlock]) -> Iterator[Table]:
    """Yield the tables of one shard that spans several blocks, from `block` on."""
    while True:
        yield map_table(block.table.shard(0), to_host_fast)
        if block.whole:
            return
        block = next(blocks)


def _symbol_files(vocabulary: Vocabulary, options: WriteOptions) -> list[Callable[[], WrittenFile]]:
    """Return functions that write vocabulary.parquet and, if the sorted runs begin with order 2, order 1."""

    def symbols() -> WrittenFile:
        name = "vocabulary.parquet"
        file = write_vocabulary(vocabulary, Path(options.folder) / name, vocabulary.as_text)
        return WrittenFile(name, file["rows"], file["bytes"], file["crc32"])

    def unigrams() -> WrittenFile:
        return _write_shard(unigram_tables(vocabulary), 1, 0, vocabulary, options)

    return [symbols, unigrams] if options.first_order == 2 else [symbols]


def _write_shard(
    pieces: Iterable[Table | EncodedShard],
    order: int,
    shard: int,
    vocabulary: Vocabulary,
    options: WriteOptions,
    left_out: tuple[int, int] = (0, 0),
) -> WrittenFile:
    """Write one shard, given in consecutive pieces, or encoded as one.

    left_out  as in `MergedBlock`: reports count these n-grams, too
    """
    name = f"order={order}/part-{shard:05d}.parquet"
    distinct, total = left_out
    top: list[tuple[int, list[int]]] = []
    with PartWriter(Path(options.folder) / name, order, vocabulary, vocabulary.as_text, options.columns) as writer:
        for piece in pieces:
            if isinstance(piece, EncodedShard):
                rows, counted, head = piece.summary
                piece.write(writer)
            else:
                rows, counted, head = len(piece), int(piece.counts.sum()), piece
                filtered = options.min_count > 1
                writer.add(_at_least(piece, options.min_count) if filtered else piece, is_ours=filtered)
            distinct, total = distinct + rows, total + counted
            codes, counts = heaviest(head, options.top)
            top = sorted([*top, *zip((-counts).tolist(), codes.tolist(), strict=True)])[: options.top]
    file = writer.written
    shown = tuple((-negative, codes, _display(vocabulary, codes)) for negative, codes in top)
    return WrittenFile(
        name=name,
        rows=file["rows"],
        size_bytes=file["bytes"],
        crc32=file["crc32"],
        order=order,
        distinct=distinct,
        total=total,
        top=shown,
    )


def _at_least(table: Table, min_count: int) -> Table:
    kept = table.counts >= min_count
    return replace(table, keys=table.keys[:, kept], counts=table.counts[kept])


def _display(vocabulary: Vocabulary, codes: list[int]) -> str:
    """Return an n-gram as text for reports."""
    symbols = [vocabulary.symbol(c - 1) for c in codes]
    if vocabulary.unit == "id":
        return " ".join(str(int.from_bytes(s, "little")) for s in symbols)
    return (b" " if vocabulary.unit == "word" else b"").join(symbols).decode("utf-8", "backslashreplace")
