"""Whole runs, text to Parquet: on a CPU beside collections.Counter, on a GPU beside plain writes of as many bytes."""

from __future__ import annotations

import gc
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq

from mgpu_ngram.benchmarks.count.tables import count_to_tables
from mgpu_ngram.benchmarks.count.words_codes import ORDER
from mgpu_ngram.benchmarks.harness.machine_rates import write_plainly
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts.counts import read_counts
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.kernels.dispatch import to_host

WORKERS, RUNS = 2, 3
TARGET_SPEEDUP = 12  # over Counter, on 2 cores
TARGET = 2.5e8  # tokens/s of one GPU and 16 cores
COMPARED_ROWS = 100_000  # rows of each order
TEXT, IDS = "words/run to Parquet", "words/run to Parquet of ids"
PLAIN_WRITES = "plain writes to the page cache"


def run(suite: Suite, path: Path, tokens: int) -> None:
    """Rows for Counter, for a run, and for a run up to its merged tables, which correspond to the Counter."""
    suite.say("words: a whole run beside collections.Counter")
    start = time.perf_counter()
    with open(path, "rb") as file:
        counters = oracles.count_lines(file, ORDER)
    counter_seconds = time.perf_counter() - start
    columns: Literal["text", "ids"]
    for columns in "ids", "text":  # also the warm-up
        _check(_run(path, columns)[1], counters)
    del counters  # millions of tuples, which would keep Python's garbage collector busy
    gc.collect()
    whole, ids, unwritten = list[float](), list[float](), list[float]()
    bytes_of: dict[str, int] = {}
    for _ in range(RUNS):
        for kernel, columns, seconds in (TEXT, "text", whole), (IDS, "ids", ids):
            taken, out = _run(path, columns)
            seconds.append(taken)
            bytes_of[kernel] = parquet_bytes(out)
        unwritten.append(_run_unwritten(path))
    sizes = f"tokens={tokens} n=1..{ORDER}"
    peer = "words/peer collections.Counter"
    suite.add(peer, sizes, [counter_seconds], items=tokens, unit=TOKENS_PER_SECOND, notes="one process")
    for kernel, runs, notes in (
        (TEXT, whole, "Counter writes nothing"),
        (IDS, ids, "columns of ids; Counter writes nothing"),
        ("words/run without writing", unwritten, "up to the merged tables"),
    ):
        if kernel in bytes_of:
            measure_plain_writes(suite, path.with_name("plain"), bytes_of[kernel])
        suite.add(
            kernel,
            f"{sizes} workers={WORKERS}",
            runs,
            items=tokens,
            unit=TOKENS_PER_SECOND,
            bytes_moved=bytes_of.get(kernel),
            ceiling=PLAIN_WRITES,
            baseline=peer,
            baseline_seconds=counter_seconds,
            notes=f"{notes}; target {TARGET_SPEEDUP}x",
        )


def run_on_gpu(suite: Suite, path: Path, tokens: int, expected_counts: list[np.ndarray]) -> None:
    """Add rows of a run to text and to ids: from the page cache to the page cache, on one GPU with all cores.

    expected_counts  counts of the n-grams of each order, ascending
    """
    columns: Literal["text", "ids"]
    for columns, kernel in ("ids", IDS), ("text", TEXT):
        suite.say(f"words: a whole run to Parquet, columns of {columns}")
        seconds = []
        for _ in range(1 + RUNS):  # the first is the warm-up
            shutil.rmtree(_output(path), ignore_errors=True)  # or the run would delete it in measured time
            taken, out = _run(path, columns, suite.device)
            seconds.append(taken)
        for n, expected in enumerate(expected_counts, 1):
            counts = np.array(pq.read_table(out / f"order={n}", columns=["count"])["count"])
            if not np.array_equal(to_host(suite.xp.sort(to_device(counts, suite.device))), expected):
                raise WrongResult(f"the files of a run have other counts of order {n} than the text; not timed")
        size_bytes = parquet_bytes(out)
        shutil.rmtree(out)
        measure_plain_writes(suite, path.with_name("plain"), size_bytes)
        suite.add(
            kernel, f"tokens={tokens} n=1..{ORDER} cores={cpu_cores()}", seconds[1:], items=tokens,
            unit=TOKENS_PER_SECOND, bytes_moved=size_bytes, ceiling=PLAIN_WRITES,
            target=TARGET, notes="from text in the page cache; all orders",
        )  # fmt: skip


def parquet_bytes(folder: Path) -> int:
    """Return the bytes of the Parquet files under a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def measure_plain_writes(suite: Suite, folder: Path, size_bytes: int) -> None:
    """Set the ceiling PLAIN_WRITES: the rate at which all cores write as many bytes to a new folder."""
    suite.ceilings[PLAIN_WRITES] = size_bytes / write_plainly(folder, size_bytes, cpu_cores())


def _output(path: Path) -> Path:
    return path.with_name("counts")


def _run(path: Path, columns: Literal["text", "ids"] = "text", device: str = "cpu") -> tuple[float, Path]:
    """Seconds of a run, and its output."""
    executor = LocalExecutor(device, WORKERS)
    start = time.perf_counter()
    try:
        config = count_job.CountConfig([str(path)], ORDER, columns=columns)
        result = count_job.run(config, RunContext(executor, _output(path), overwrite=True))
    finally:
        executor.close()
    return time.perf_counter() - start, result.path


def _run_unwritten(path: Path) -> float:
    """Seconds of a run up to its merged tables."""
    executor = LocalExecutor("cpu", WORKERS)
    try:
        return count_to_tables([str(path)], executor, path.parent).seconds
    finally:
        executor.close()


def _check(path: Path, counters: list[Counter[Any]]) -> None:
    """Distinct and total counts of every order, and rows from all over it, are Counter's."""
    counts = read_counts(path)
    for n, counter in enumerate(counters, 1):
        table = counts.order(n).to_arrow()
        oracles.check_total(len(table), len(counter), f"distinct n-grams of a run, order {n}")
        oracles.check_total(int(np.asarray(table["count"]).sum()), counter.total(), f"n-grams of a run, order {n}")
        sample = table.take(np.arange(0, len(table), max(1, len(table) // COMPARED_ROWS)))
        for ngram, found in zip(sample["ngram"].to_pylist(), sample["count"].to_pylist(), strict=True):
            if counter[tuple(ngram.encode().split(b" "))] != found:
                raise WrongResult(f"a run counts {ngram!r} {found} times, collections.Counter does not; not timed")
