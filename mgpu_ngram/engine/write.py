"""Merged tables and the vocabulary to Parquet files, several at once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mgpu_ngram.core.parquet import write_part, write_vocabulary
from mgpu_ngram.core.tables import Table
from mgpu_ngram.engine.count import heaviest, unigram_table
from mgpu_ngram.engine.vocabulary import Lexicon
from mgpu_ngram.kernels.dispatch import to_host


@dataclass(frozen=True)
class WriteOptions:
    """What is written of each table, and by how many threads."""

    folder: str
    min_count: int = 1  # n-grams that occur less often are left out
    top: int = 5  # n-grams that are reported
    threads: int = 1


@dataclass(frozen=True)
class WrittenFile:
    """One file: its name under the output, and what it holds."""

    name: str
    rows: int
    size_bytes: int
    crc32: int
    order: int = 0  # 0: the vocabulary
    distinct: int = 0  # n-grams before min_count
    total: int = 0
    top: tuple[tuple[int, list[int], str], ...] = ()  # (count, codes, text) of those that occur most


def write_tables(tables: Mapping[tuple[int, int], Table], lexicon: Lexicon, options: WriteOptions) -> list[WrittenFile]:
    """Write each (order, shard)'s table to order=N/part-SSSSS.parquet."""
    with ThreadPoolExecutor(options.threads) as pool:
        largest_first = sorted(tables.items(), key=lambda item: -len(item[1]))
        jobs = [pool.submit(_write_table, table, shard, lexicon, options) for (_, shard), table in largest_first]
        return [job.result() for job in jobs]


def write_symbols(lexicon: Lexicon, options: WriteOptions, with_unigrams: bool) -> list[WrittenFile]:
    """Write vocabulary.parquet, and order 1 from its counts."""
    name = "vocabulary.parquet"
    file = write_vocabulary(lexicon.vocabulary, Path(options.folder) / name, lexicon.as_text)
    files = [WrittenFile(name, file["rows"], file["bytes"], file["crc32"])]
    return files + ([_write_table(unigram_table(lexicon), 0, lexicon, options)] if with_unigrams else [])


def _write_table(table: Table, shard: int, lexicon: Lexicon, options: WriteOptions) -> WrittenFile:
    distinct, total = len(table), int(table.counts.sum())
    codes, counts = heaviest(table, options.top)
    if options.min_count > 1:
        kept = table.counts >= options.min_count
        table = replace(table, keys=table.keys[:, kept], counts=table.counts[kept])
    keys, counts_G = np.ascontiguousarray(to_host(table.keys)), np.ascontiguousarray(to_host(table.counts))
    name = f"order={table.order}/part-{shard:05d}.parquet"
    host = Table(keys, counts_G, table.order, table.bits)
    file = write_part(host, lexicon.vocabulary, Path(options.folder) / name, lexicon.as_text)
    top = tuple((c, k, _display(lexicon, k)) for k, c in zip(codes.tolist(), counts.tolist(), strict=True))
    return WrittenFile(name, file["rows"], file["bytes"], file["crc32"], table.order, distinct, total, top)


def _display(lexicon: Lexicon, codes: list[int]) -> str:
    """An n-gram for people."""
    unit = lexicon.vocabulary.unit
    symbols = [lexicon.vocabulary.symbol(c - 1) for c in codes]
    if unit == "id":
        return " ".join(str(int.from_bytes(s, "little")) for s in symbols)
    return (b" " if unit == "word" else b"").join(symbols).decode("utf-8", "backslashreplace")
