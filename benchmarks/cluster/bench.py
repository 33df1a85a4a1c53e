"""`mgpu-ngram bench cluster`: the gain of several workers over one, and the cost of the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.cluster import arrays as cluster_arrays
from mgpu_ngram.benchmarks.cluster import scheduler as cluster_scheduler
from mgpu_ngram.benchmarks.cluster import vocabulary as cluster_vocabulary
from mgpu_ngram.benchmarks.cluster import words as cluster_words
from mgpu_ngram.benchmarks.cluster.words import FILE_TOKENS, ZipfCorpus
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, open_suite
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.typed_config import parse_bytes
from mgpu_ngram.stages.run_file import ClusterConfig

PARTS = ("read", "speedup", "overhead", "histogram", "shuffle", "spill", "vocabulary", "scheduler")
WITH_TEXT = {"read", "speedup", "overhead", "spill"}
TOKENS = {"gpu": 1_000_000_000, "cpu": 2_000_000}
TABLE_BYTES = {"gpu": "4 GiB", "cpu": "8 MiB"}  # bytes of tables of each worker in the shuffle
DISTINCT_WORDS = 20_000_000  # for the part "vocabulary"
MIN_TOKENS = 1_000
FLAGS = {"size", "tokens", "workers", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "cluster/": ("cluster.dask_executor", "engine.count.sorted_runs"),
    "cluster/read": ("engine.memory.blocks",),
    "cluster/run": ("cluster.dask_executor", "jobs.count.run"),
    "cluster/distinct": ("cluster.dask_executor", "jobs.count.run"),
    "cluster/scheduler of a count": ("cluster.dask_executor", "jobs.count.run"),
    "cluster/scheduler of an estimate": ("cluster.dask_executor", "jobs.estimate.run"),
    "cluster/words": ("cluster.dask_executor", "jobs.count.run"),
    "cluster/without": ("jobs.count.run",),
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure clusters on this host, write cluster.csv and the figure to the folder of results, return the rows.

    size  bytes of table that each worker holds before the shuffle, such as "4 GiB"

    Results are checked before they are timed. Rows are printed and saved part by part.
    """
    device, parts, clusters = options.device, options.parts(PARTS), options.clusters()
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    table_bytes = parse_bytes(TABLE_BYTES[device] if options.size is None else options.size, "size")
    suite = open_suite("cluster", options)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder)))
        corpus = ZipfCorpus(place, [])
        if WITH_TEXT & set(parts):
            suite.say(f"writing a corpus of {tokens:,} words")
            corpus = ZipfCorpus.generate(place, tokens, FILE_TOKENS[device])
        of_cluster: dict[str, Callable[[Suite, Executor], None]] = {
            "read": lambda suite, executor: cluster_words.read(suite, executor, corpus),
            "speedup": lambda suite, executor: cluster_words.speedup(suite, executor, corpus),
            "histogram": cluster_arrays.histogram,
            "shuffle": lambda suite, executor: cluster_arrays.shuffle(suite, executor, table_bytes),
        }
        for G in clusters:
            mine = [of_cluster[p] for p in parts if p in of_cluster and (p in WITH_TEXT or G > 1)]
            if mine:
                suite.say(f"a cluster of {G}")
                executor = open_executor(ClusterConfig(device=device, workers=G))  # type: ignore[arg-type]
                try:
                    for part in mine:
                        suite.measure_part(part, suite, executor)
                finally:
                    executor.close()
        for name, alone in (("overhead", cluster_words.overhead), ("spill", cluster_words.spill)):
            if name in parts:
                suite.measure_part(alone, suite, corpus)
        if "vocabulary" in parts:
            suite.measure_part(cluster_vocabulary.run, suite, place, options.tokens or DISTINCT_WORDS)
        if "scheduler" in parts:
            simulated = clusters if options.workers else cluster_scheduler.WORKERS
            suite.measure_part(cluster_scheduler.run, suite, simulated)
    if any(row.kernel == cluster_words.TEXT_TO_SHARDS and row.speedup for row in suite.rows):
        from mgpu_ngram.benchmarks.cluster import figures

        figures.draw_speedup(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
