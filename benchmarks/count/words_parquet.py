"""Merged tables to Parquet, as a run writes them: each order and shard its own file, with all cores."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from mgpu_ngram.benchmarks.count.words_codes import ORDER
from mgpu_ngram.benchmarks.count.words_run import PLAIN_WRITES, measure_plain_writes, parquet_bytes
from mgpu_ngram.benchmarks.count.words_text import Counted
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import ROWS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.counts.tables import ShardedTable, Table
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.engine.count.sorted_runs import SortedRun, take_shards
from mgpu_ngram.engine.count.write_counts import WriteOptions, write_part
from mgpu_ngram.kernels.dispatch import to_host

MAX_ROWS = 200_000_000  # enough to time; shards beyond are left out
KERNELS = {"text": "words/tables to Parquet", "ids": "words/tables to Parquet of ids"}  # by the columns of the files
TARGET = 2e7  # rows/s with 16 cores
CHECKED_ROWS = 1000  # rows of each file
WARM_ROWS = 9


def run(suite: Suite, counted: Counted, folder: Path) -> None:
    """A row for text and one for ids: rows of all orders from 2 on per second, device to files in the page cache."""
    S = next(s for s in range(counted.num_shards, 0, -1) if _rows(counted, s) <= MAX_ROWS or s == 1)
    part = take_shards(counted.run, 0, S)
    warm = {n: [_head(table)] for n, [table] in part.tables.items()}
    rows, files = _rows(counted, S), len(part.tables)
    for columns, kernel in KERNELS.items():
        suite.say(f"words: tables to Parquet, columns of {columns}")
        _write(suite, SortedRun(warm), S, counted.vocabulary, columns, folder / "warm")
        seconds = _write(suite, part, S, counted.vocabulary, columns, folder / "parquet")
        for n, [table] in part.tables.items():
            for shard in range(S):
                path = folder / "parquet" / f"order={n}" / f"part-{shard:05d}.parquet"
                _check(path, table.shard(shard), counted.vocabulary, columns)
        size_bytes = parquet_bytes(folder / "parquet")
        shutil.rmtree(folder / "warm")
        shutil.rmtree(folder / "parquet")
        measure_plain_writes(suite, folder / "plain", size_bytes)
        suite.add(
            kernel,
            f"rows={rows} n=2..{ORDER} cores={cpu_cores()}",
            [seconds],
            items=rows,
            unit=ROWS_PER_SECOND,
            bytes_moved=size_bytes,
            ceiling=PLAIN_WRITES,
            target=TARGET if suite.device == "gpu" and columns == "text" else None,
            notes=f"{files * S} files, {size_bytes:,} bytes, to the page cache; {files * counted.num_shards} in all",
        )


def _rows(counted: Counted, shards: int) -> int:
    return sum(table.start(shards) for table in counted.tables)


def _head(table: ShardedTable) -> ShardedTable:
    """Its first rows."""
    ends_S = np.minimum(table.ends_S, WARM_ROWS)
    return ShardedTable(table.keys[:, :WARM_ROWS], table.counts[:WARM_ROWS], ends_S, table.order, table.bits)


def _write(suite: Suite, part: SortedRun, shards: int, vocabulary: Vocabulary, columns: str, out: Path) -> float:
    """Seconds of writing a part."""
    for n in range(2, ORDER + 1):
        (out / f"order={n}").mkdir(parents=True)
    options = WriteOptions(str(out), suite.budget(), threads=cpu_cores(), columns=columns)
    start = time.perf_counter()
    write_part([part], 0, shards, vocabulary, options)
    return time.perf_counter() - start


def _check(path: Path, table: Table, vocabulary: Vocabulary, columns: str) -> None:
    """A file has all rows of its table, and the first are the table's."""
    file = pq.ParquetFile(path)
    oracles.check_total(file.metadata.num_rows, len(table), f"rows of {path.parent.name}, {path.stem}")
    if len(table) == 0:
        return
    counts = to_host(table.counts[:CHECKED_ROWS])
    head = Table(table.keys[:, :CHECKED_ROWS], counts, table.order, table.bits)
    rows = next(file.iter_batches(CHECKED_ROWS)).to_pydict()
    found_counts, words = rows.pop("count"), list(rows.values())
    if columns == "ids":
        found = [tuple(map(vocabulary.symbol, ngram)) for ngram in zip(*words, strict=True)]
    else:
        found = [tuple(ngram.encode().split(b" ")) for ngram in words[0]]
    if (found, found_counts) != (oracles.table_ngrams(head, vocabulary), counts.tolist()):
        raise WrongResult(f"the first rows of {path.parent.name}, {path.stem} are not the table's; not timed")
