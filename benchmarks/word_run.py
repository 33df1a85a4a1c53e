"""A whole run on a CPU, text to Parquet with two workers, beside collections.Counter in one process."""

from __future__ import annotations

import gc
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np

from mgpu_ngram.benchmarks import oracles
from mgpu_ngram.benchmarks.cluster_tables import count_to_tables
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.word_codes import ORDER
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.counts import read_counts
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import run as count_job

WORKERS, RUNS = 2, 3
TARGET_SPEEDUP = 10  # over Counter, on 2 cores
COMPARED_ROWS = 100_000  # of each order


def run(suite: Suite, path: Path, tokens: int) -> None:
    """Rows for Counter, for a run, and for a run up to its merged tables, which correspond to the Counter."""
    suite.say("words: a whole run beside collections.Counter")
    start = time.perf_counter()
    with open(path, "rb") as file:
        counters = oracles.count_lines(file, ORDER)
    counter_seconds = time.perf_counter() - start
    for columns in "ids", "text":  # also the warm-up
        _check(_run(path, columns)[1], counters)
    del counters  # millions of tuples, which would keep Python's garbage collector busy
    gc.collect()
    whole, ids, unwritten = [], [], []
    for _ in range(RUNS):
        whole.append(_run(path)[0])
        ids.append(_run(path, "ids")[0])
        unwritten.append(_run_unwritten(path))
    sizes = f"tokens={tokens} n=1..{ORDER}"
    peer = "words/peer collections.Counter"
    suite.add(peer, sizes, [counter_seconds], items=tokens, unit=TOKENS_PER_SECOND, notes="one process")
    for kernel, runs, notes in (
        ("words/run to Parquet", whole, "Counter writes nothing"),
        ("words/run to Parquet of ids", ids, "columns of ids; Counter writes nothing"),
        ("words/run without writing", unwritten, "up to the merged tables"),
    ):
        suite.add(
            kernel,
            f"{sizes} workers={WORKERS}",
            runs,
            items=tokens,
            unit=TOKENS_PER_SECOND,
            baseline=peer,
            baseline_seconds=counter_seconds,
            notes=f"{notes}; target {TARGET_SPEEDUP}x",
        )


def _run(path: Path, columns: Literal["text", "ids"] = "text") -> tuple[float, Path]:
    """Seconds of a run, and its output."""
    executor = LocalExecutor("cpu", WORKERS)
    start = time.perf_counter()
    try:
        config = count_job.CountConfig([str(path)], ORDER, columns=columns)
        result = count_job.run(config, RunContext(executor, path.with_name("counts"), overwrite=True))
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


def _check(path: Path, counters: list[Counter]) -> None:
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
