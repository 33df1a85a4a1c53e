"""Merged tables to Parquet, as a run writes them: each order and shard its own file, with all cores."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq

from mgpu_ngram.benchmarks import oracles
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.word_codes import ORDER
from mgpu_ngram.benchmarks.word_text import Counted
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.tables import Table
from mgpu_ngram.core.vocabulary import Vocabulary
from mgpu_ngram.engine.write import WriteOptions, write_tables
from mgpu_ngram.kernels.dispatch import to_host

MAX_ROWS = 200_000_000  # enough to time; shards beyond are left out
TARGET = 2e7  # rows/s with 16 cores
CHECKED_ROWS = 1000  # of each file


def run(suite: Suite, counted: Counted, folder: Path) -> None:
    """One row: rows of all orders from 2 on per second, device to files in the page cache."""
    suite.say("words: tables to Parquet")
    shards: dict[tuple[int, int], Table] = {}
    rows = 0
    for shard in sorted({shard for _, shard in counted.shards}):
        part = {key: table for key, table in counted.shards.items() if key[1] == shard}
        if shards and rows + sum(map(len, part.values())) > MAX_ROWS:
            break
        shards |= part
        rows += sum(map(len, part.values()))
    _write(
        counted,
        {key: Table(t.keys[:, :9], t.counts[:9], t.order, t.bits) for key, t in shards.items()},
        folder / "warm",
    )
    seconds = _write(counted, shards, folder / "parquet")
    _check(shards, counted.lexicon.vocabulary, folder / "parquet")
    size_bytes = sum(file.stat().st_size for file in (folder / "parquet").rglob("*.parquet"))
    suite.add(
        "words/tables to Parquet",
        f"rows={rows} n=2..{ORDER} cores={cpu_cores()}",
        [seconds],
        items=rows,
        unit="rows/s",
        bytes_moved=size_bytes,
        target=TARGET if suite.device == "gpu" else None,
        notes=f"{len(shards)} files, {size_bytes:,} bytes, to the page cache; {len(counted.shards)} in all",
    )


def _write(counted: Counted, shards: dict[tuple[int, int], Table], out: Path) -> float:
    for n in range(2, ORDER + 1):
        (out / f"order={n}").mkdir(parents=True)
    start = time.perf_counter()
    write_tables(shards, counted.lexicon, WriteOptions(str(out), threads=cpu_cores()))
    return time.perf_counter() - start


def _check(shards: dict[tuple[int, int], Table], vocabulary: Vocabulary, out: Path) -> None:
    """Every file has all rows of its table, and the first are the table's."""
    for (n, shard), table in shards.items():
        path = out / f"order={n}" / f"part-{shard:05d}.parquet"
        file = pq.ParquetFile(path)
        oracles.check_total(file.metadata.num_rows, len(table), f"rows of order {n}, shard {shard}")
        if len(table) == 0:
            continue
        head = Table(table.keys[:, :CHECKED_ROWS], to_host(table.counts[:CHECKED_ROWS]), n, table.bits)
        ngrams = [b" ".join(ngram).decode() for ngram in oracles.ngrams_of(head, vocabulary)]
        rows = next(file.iter_batches(CHECKED_ROWS)).to_pydict()
        if rows != {"ngram": ngrams, "count": head.counts.tolist()}:
            raise WrongResult(f"the first rows of order {n}, shard {shard} are not the table's; not timed")
