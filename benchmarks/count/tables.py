"""A corpus counted by the tasks of `jobs.count.passes` up to its merged tables, without writing them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.benchmarks.count.words_codes import ORDER
from mgpu_ngram.cluster.executor import Executor, Handle
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count.sorted_runs import SortedRun, merged_blocks, open_run, spill_run, take_shards
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.count import plan as count_plan
from mgpu_ngram.jobs.count.passes import CountPasses
from mgpu_ngram.jobs.count.run import UNRESERVED_BYTES, CountConfig
from mgpu_ngram.jobs.count.shuffle import shuffle
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.saver import CHECKPOINT_SECONDS


@dataclass
class Merged:
    """A corpus counted: the merged tables of each part of its shards, on the workers that own them."""

    parts: list[Handle]
    vocabulary: Handle
    tokens: int
    seconds: float


def count_to_tables(paths: Sequence[str], executor: Executor, folder: Path, chunk_bytes: int | None = None) -> Merged:
    """Count as `jobs.count.run` does, up to the merged tables, and write nothing.

    folder  for runs that do not fit in memory
    """
    start = time.perf_counter()
    config = CountConfig(list(paths), ORDER, chunk_bytes=chunk_bytes)
    corpus = open_corpus(config.corpus)
    budget = count_plan.count_budget(MemoryConfig(), executor, count_plan.most_table_bytes(config, corpus))
    executor.reserve(budget.device_bytes - UNRESERVED_BYTES)
    chunks = corpus.chunks(count_plan.chunk_bytes(config, corpus, executor.workers, budget))
    with Checkpoint.open(folder / "tables", {}, resume=False, restart=True) as checkpoint:
        job = CountPasses(config, executor, chunks, budget, checkpoint, CHECKPOINT_SECONDS, Progress())
        counted = job.count(count_plan.num_streams(config, corpus, len(chunks)))
        runs = job.merge(counted)
        shards = job.parts(counted)
        parts: list[Handle] = []
        shared = budget, str(checkpoint.entries_folder)

        def call(part: int, pieces: list[Handle | SortedRun]) -> Handle:
            return executor.call(merge_part, pieces, *shards[part], *shared, affinity=part)

        shuffle(executor, runs, job.stored, shards, call, parts.append)
        return Merged(parts, counted.vocabulary, counted.totals.tokens, time.perf_counter() - start)


def merge_part(runs: Sequence[SortedRun], first: int, last: int, budget: Budget, folder: str) -> list[SortedRun]:
    """Merge as `engine.count.write_counts.write_part` does, up to its files: blocks of merged rows.

    They stay on the device while they fit.

    No later task needs the device, so it may fill up to the memory that the next block takes.
    """
    stored = {s.path: s for run in runs for s in run.stored}
    parts = [*runs, *(take_shards(open_run(s), first, last) for s in stored.values())]
    merged = []
    for order in sorted({n for part in parts for n in part.tables}):
        tables = [t for part in parts for t in part.tables.get(order, [])]
        for block in merged_blocks(tables, first, budget):
            run = SortedRun({order: [block.table]})
            stays = budget.device == "gpu" and budget.working_bytes() > budget.block_bytes()
            merged.append(run if stays else spill_run(run, budget, folder))
    return merged


def totals_of(merged: Sequence[SortedRun]) -> dict[int, int]:
    """Return the number of n-grams of each order."""
    totals: Counter[int] = Counter()
    for run in [*merged, *(open_run(s) for part in merged for s in part.stored)]:
        totals.update({n: int(t.counts.sum()) for n, tables in run.tables.items() for t in tables})
    return dict(totals)
