"""Words, orders 1 to 5, through an executor: cached text to merged tables, and the cost of a small memory."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.count.tables import count_to_tables, totals_of
from mgpu_ngram.benchmarks.count.words_codes import ORACLE_WORDS, ORDER, VOCABULARY
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.benchmarks.inputs.corpora import zipf_texts
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.vocabulary import Vocabulary
from mgpu_ngram.core.inputs.corpus import Chunk, open_corpus
from mgpu_ngram.core.memory_config import MIN_BYTES, MemoryConfig
from mgpu_ngram.engine.count.sorted_runs import SortedRun
from mgpu_ngram.engine.memory.blocks import device_blocks
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.count.passes import MAX_READ_THREADS
from mgpu_ngram.jobs.count.plan import BLOCK_BYTES
from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.stages.run_file import ClusterConfig

ROUNDS, ENOUGH_SECONDS = 3, 45.0  # of one measurement
TARGET_SPEEDUP = {2: 1.9, 4: 3.7}  # over one H200
TARGET_OVERHEAD = 0.03
FILE_TOKENS = {"gpu": 200_000_000, "cpu": 250_000}  # tokens of a generated corpus
OVERHEAD_TOKENS = 1_000_000_000  # at most
SPILL_TOKENS = 1_000_000_000  # at most
BUDGETS_PER_TABLE = 10
TEXT_TO_SHARDS = "cluster/words text to shards"


@dataclass(frozen=True)
class ZipfCorpus:
    """Generated files of words, each with its number of n-grams of each order."""

    folder: Path
    files: list[tuple[Path, list[int]]]

    @classmethod
    def generate(cls, folder: Path, tokens: int, file_tokens: int) -> ZipfCorpus:
        return cls(folder, zipf_texts(folder, tokens, file_tokens, VOCABULARY, ORDER))

    @property
    def paths(self) -> list[str]:
        return [str(path) for path, _ in self.files]

    @property
    def totals(self) -> list[int]:
        """N-grams of orders 1, 2, ..."""
        return [sum(of_order) for of_order in zip(*(totals for _, totals in self.files), strict=True)]

    @property
    def sizes(self) -> str:
        size_bytes = sum(path.stat().st_size for path, _ in self.files)
        return f"tokens={self.totals[0]} bytes={size_bytes} n=1..{ORDER}"

    def head(self, tokens: int) -> ZipfCorpus:
        """Return the first files that have no more than `tokens` together, at least one."""
        files: list[tuple[Path, list[int]]] = []
        for path, totals in self.files:
            if files and sum(t[0] for _, t in files) + totals[0] > tokens:
                break
            files.append((path, totals))
        return ZipfCorpus(self.folder, files)


def speedup(suite: Suite, executor: Executor, corpus: ZipfCorpus) -> None:
    """One row: this executor on the corpus, beside one worker if that was measured before."""
    suite.say(f"words: text to shards, {executor.workers} workers, transport {executor.transport}")
    seconds = _rounds(executor, corpus)
    one = next((r for r in suite.rows if r.kernel == TEXT_TO_SHARDS and r.sizes.endswith(" workers=1")), None)
    target = TARGET_SPEEDUP.get(executor.workers) if suite.device == "gpu" else None
    suite.add(
        TEXT_TO_SHARDS,
        f"{corpus.sizes} workers={executor.workers}",
        seconds,
        items=corpus.totals[0],
        unit=TOKENS_PER_SECOND,
        target=target * one.rate if target and one and one.rate else None,
        baseline="workers=1" if one else "",
        baseline_seconds=one.median_seconds if one else None,
        notes=f"transport {executor.transport}" + (f"; target {target}x over one" if target else ""),
    )


def read(suite: Suite, executor: Executor, corpus: ZipfCorpus) -> None:
    """One row: all workers copy text to their devices at once and do nothing with it: the floor of pass 1."""
    suite.say(f"text to the devices, {executor.workers} workers")
    text = open_corpus(corpus.paths)
    chunks = text.chunks(-(-text.size_bytes // executor.workers))
    threads = min(MAX_READ_THREADS, executor.threads)
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        handles = [executor.call(read_chunk, c, suite.device, threads, affinity=k) for k, c in enumerate(chunks)]
        executor.wait(handles)
        seconds.append(time.perf_counter() - start)
        oracles.check_total(sum(executor.gather(handles)), text.size_bytes, "bytes of text")
    suite.add(
        "cluster/read text",
        f"bytes={text.size_bytes} workers={executor.workers}",
        seconds[1:],  # the first warms up
        items=text.size_bytes / executor.workers,
        unit="B/s",
        notes=f"per worker, each with {threads} threads",
    )


def read_chunk(chunk: Chunk, device: str, threads: int) -> int:
    """Copy a chunk to the device; return its bytes of text."""
    blocks = device_blocks(chunk, "word", BLOCK_BYTES[device], 0, device, threads, None, Stopwatch(device))
    return sum(int(block.owned_S.sum()) for block, _ in blocks)


def overhead(suite: Suite, corpus: ZipfCorpus) -> None:
    """Four rows: one worker of a cluster beside the same work in this process, to merged tables and to Parquet."""
    corpus = corpus.head(OVERHEAD_TOKENS)
    tables: list[list[float]] = []
    runs: list[list[float]] = []
    for name in "this process", "a cluster of one":
        suite.say(f"words: text to shards, and to Parquet, in {name}")
        executor: Executor = LocalExecutor(suite.device, 1)
        if name == "a cluster of one":
            executor = open_executor(ClusterConfig(device=suite.device, workers=1))  # type: ignore[arg-type]
        try:
            tables.append(_rounds(executor, corpus))
            run = _run(executor, corpus, MemoryConfig())
            _check_totals([o["total"] for o in run.manifest["orders"].values()], corpus)
            runs.append([run.wall_seconds])
        finally:
            executor.close()
            suite.release()
    row: dict[str, Any] = {"items": corpus.totals[0], "unit": TOKENS_PER_SECOND}
    for what, (alone, cluster) in ("", tables), (", to Parquet", runs):
        alone_seconds = statistics.median(alone)
        suite.add(f"cluster/without a cluster{what}", corpus.sizes, alone, **row)
        suite.add(
            f"cluster/overhead{what}",
            corpus.sizes,
            cluster,
            target=corpus.totals[0] / alone_seconds / (1 + TARGET_OVERHEAD) if suite.device == "gpu" else None,
            baseline=f"cluster/without a cluster{what}",
            baseline_seconds=alone_seconds,
            notes=f"one worker takes {statistics.median(cluster) / alone_seconds - 1:+.1%}; "
            f"target at most {TARGET_OVERHEAD:+.0%}",
            **row,
        )


def spill(suite: Suite, corpus: ZipfCorpus) -> None:
    """Two rows: whole runs with all memory, and with a tenth of the size of the tables."""
    corpus = corpus.head(SPILL_TOKENS)
    limited = "device_bytes" if suite.device == "gpu" else "host_bytes"
    executor = LocalExecutor(suite.device, 1)
    try:
        suite.say("words: a run with all memory")
        _run(executor, _beginning(corpus), MemoryConfig())  # the warm-up
        free = _run(executor, corpus, MemoryConfig())
        _check_totals([o["total"] for o in free.manifest["orders"].values()], corpus)
        bits = check.code_bits(free.manifest["symbols"])
        distinct = {int(n): order["distinct"] for n, order in free.manifest["orders"].items()}
        table_bytes = sum(8 * (check.num_columns(n, bits) + 1) * G for n, G in distinct.items() if n > 1)
        budget_bytes = max(MIN_BYTES[limited], table_bytes // BUDGETS_PER_TABLE)
        suite.say(f"words: a run with {budget_bytes:,} {limited}")
        suite.release()  # or the peak would be that of the run before
        memory = MemoryConfig(**{limited: budget_bytes, "spill_dir": str(corpus.folder)})
        small = _run(executor, corpus, memory)
    finally:
        executor.close()
        suite.release()
    if small.manifest != free.manifest:
        raise WrongResult(f"a run with {budget_bytes:,} {limited} gives another output than one with all; not timed")
    row: dict[str, Any] = {"items": corpus.totals[0], "unit": TOKENS_PER_SECOND}
    notes = f"to Parquet; {_stages(free)}"
    suite.add("cluster/run with all memory", corpus.sizes, [free.wall_seconds], notes=notes, **row)
    suite.add(
        "cluster/run with a small budget",
        corpus.sizes,
        [small.wall_seconds],
        target=corpus.totals[0] / free.wall_seconds / 2 if suite.device == "gpu" else None,
        baseline="cluster/run with all memory",
        baseline_seconds=free.wall_seconds,
        notes=f"tables of {table_bytes:,} bytes, {table_bytes / budget_bytes:.1f} times {limited} {budget_bytes:,}; "
        f"peak of the device {small.peak_device_bytes:,}; {_stages(small)}; target half the speed",
        **row,
    )


def _run(executor: Executor, corpus: ZipfCorpus, memory: MemoryConfig) -> count_job.CountResult:
    """A whole run, to Parquet."""
    config = count_job.CountConfig(corpus.paths, ORDER)
    return count_job.run(
        config, RunContext(executor, corpus.folder / "counts", overwrite=True, memory=memory or MemoryConfig())
    )


def _stages(run: count_job.CountResult) -> str:
    """Return the seconds of each stage of a run, as text."""
    return "seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in run.seconds.items())


def _rounds(executor: Executor, corpus: ZipfCorpus) -> list[float]:
    """Return the seconds of several rounds, after a small one that is checked and a warm-up."""
    _check_beginning(executor, corpus)
    count_to_tables(corpus.paths[:1], executor, corpus.folder)
    seconds: list[float] = []
    while len(seconds) < ROUNDS and sum(seconds) < ENOUGH_SECONDS:
        merged = count_to_tables(corpus.paths, executor, corpus.folder)
        seconds.append(merged.seconds)
        totals: Counter[int] = Counter({1: merged.tokens})
        for part in executor.gather([executor.call(totals_of, part) for part in merged.parts]):
            totals.update(part)
        _check_totals([totals[n] for n in range(1, ORDER + 1)], corpus)
        del merged  # before the next round needs the memory
    return seconds


def _check_totals(totals: Sequence[int], corpus: ZipfCorpus) -> None:
    for n, (found, expected) in enumerate(zip(totals, corpus.totals, strict=True), 1):
        oracles.check_total(found, expected, f"n-grams of order {n}")


def _beginning(corpus: ZipfCorpus) -> ZipfCorpus:
    """Return the first lines as a corpus."""
    head = corpus.folder / "head.txt"
    with open(corpus.paths[0], "rb") as file:
        head.write_bytes(b"".join(file.readlines(6 * ORACLE_WORDS)))
    return ZipfCorpus(corpus.folder, [(head, [])])


def _check_beginning(executor: Executor, corpus: ZipfCorpus) -> None:
    """Compare the counts of the first lines, in several chunks, with collections.Counter, n-gram by n-gram."""
    [path] = _beginning(corpus).paths
    size_bytes = Path(path).stat().st_size
    chunk_bytes = max(1, size_bytes // (2 * executor.workers))
    merged = count_to_tables([path], executor, corpus.folder, chunk_bytes, keep=True)
    vocabulary, *parts = executor.gather([merged.vocabulary, *merged.parts])
    with open(path, "rb") as file:
        _, *counters = oracles.count_lines(file, ORDER)
    for n, counter in enumerate(counters, 2):
        runs = [run for part in parts for run in part if n in run.tables]
        if _ngrams(runs, n, vocabulary) != counter or sum(len(r.tables[n][0]) for r in runs) != len(counter):
            raise WrongResult(f"text, order {n}: n-grams differ from those of collections.Counter; not timed")


def _ngrams(runs: Sequence[SortedRun], order: int, vocabulary: Vocabulary) -> dict[tuple[bytes, ...], int]:
    found: dict[tuple[bytes, ...], int] = {}
    for run in runs:
        [table] = run.tables[order]
        found |= zip(oracles.table_ngrams(table, vocabulary), to_host(table.counts).tolist(), strict=True)
    return found
