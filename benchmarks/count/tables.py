"""A corpus counted by the tasks of `jobs.count.passes` up to its merged tables, without writing them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.benchmarks.count.words_codes import ORDER
from mgpu_ngram.cluster.executor import Executor, Handle, Share, windowed
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.sorted_runs import SortedRun, merged_blocks, open_run, spill_run, take_shards
from mgpu_ngram.engine.count.text_ids import WindowKeys
from mgpu_ngram.engine.count.window_blocks import Least, Windows
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count import plan as count_plan
from mgpu_ngram.jobs.count.passes import CountPasses
from mgpu_ngram.jobs.count.run import UNRESERVED_BYTES, CountConfig
from mgpu_ngram.jobs.count.shuffle import parts_of, shuffle
from mgpu_ngram.jobs.count.window_files import groups_of_shards


@dataclass
class Merged:
    """A corpus counted: the merged tables of each part of its shards, on the workers that own them; or the sums of
    their counts by order, if parts are counted from tokens and not kept.
    """

    parts: list[Handle]
    vocabulary: Handle
    tokens: int
    seconds: float


def count_to_tables(
    paths: Sequence[str], executor: Executor, folder: Path, chunk_bytes: int | None = None, keep: bool = False
) -> Merged:
    """Count as `jobs.count.run` does, up to the merged tables, and write nothing.

    folder  for results that do not fit in memory
    keep    keep the tables of groups of shards, too, that are counted from the tokens
    """
    start = time.perf_counter()
    config = CountConfig(list(paths), ORDER, chunk_bytes=chunk_bytes)
    corpus = open_corpus(config.corpus)
    budget = count_plan.count_budget(MemoryConfig(), executor, count_plan.most_table_bytes(config, corpus))
    keeps_tokens = count_plan.keeps_tokens(config, corpus, executor, budget)
    if keeps_tokens:
        budget = count_plan.budget_of_tokens(config, corpus, executor, budget)
    executor.reserve(budget.device_bytes - UNRESERVED_BYTES)
    chunks = corpus.chunks(count_plan.chunk_bytes(config, corpus, executor.workers, budget))
    with Checkpoint.open(folder / "tables", {}, resume=False, restart=True) as checkpoint:
        job = CountPasses(config, RunContext(executor, folder), chunks, budget, checkpoint, keeps_tokens=keeps_tokens)
        counted = job.count(count_plan.num_streams(config, corpus, len(chunks)))
        parts: list[Handle] = []
        if keeps_tokens:
            how = counted.lexicon, budget, str(checkpoint.entries_folder), keep
            running = dict[Handle, Share]()  # keeps windows until their group is counted

            def calls() -> Iterator[Handle]:
                for group in groups_of_shards(job, counted)[1]:
                    handle = executor.call(count_group, group.windows, group.shards, *how)
                    running[handle] = group.windows
                    yield handle

            def done(handle: Handle) -> None:
                del running[handle]
                parts.append(handle)

            windowed(executor, calls(), 2 * executor.workers, done)
            return Merged(parts, counted.vocabulary, counted.totals.tokens, time.perf_counter() - start)
        runs = job.merge(counted)
        shards = parts_of(job, counted)

        def call(part: int, pieces: list[Handle | Share]) -> Handle:
            how = budget, str(checkpoint.entries_folder)
            return executor.call(merge_part, pieces, *shards[part], *how, affinity=part)

        shuffle(executor, runs, job.stored, shards, call, parts.append)
        return Merged(parts, counted.vocabulary, counted.totals.tokens, time.perf_counter() - start)


def count_group(
    pieces: Sequence[WindowKeys], shards: tuple[int, int], lexicon: Lexicon, budget: Budget, folder: str, keep: bool
) -> list[SortedRun] | dict[int, int]:
    """Count a group of shards from its windows, as `engine.count.write_counts.write_windows` does, up to its files;
    return the sum of the counts of each order: a writer would free each table before the next is made.

    keep  return the tables instead
    """
    totals, tables = Counter[int](), list[SortedRun]()
    for block in Windows(pieces, shards, lexicon, ORDER).blocks({}, budget, Least(1, 0), folder):
        totals[block.table.order] += int(block.table.counts.sum())
        if keep:
            tables.append(SortedRun({block.table.order: [block.table]}))
    return tables if keep else dict(totals)


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


def totals_of(merged: Sequence[SortedRun] | dict[int, int]) -> dict[int, int]:
    """Return the number of n-grams of each order."""
    if isinstance(merged, dict):
        return merged
    totals: Counter[int] = Counter()
    for run in [*merged, *(open_run(s) for part in merged for s in part.stored)]:
        totals.update({n: int(t.counts.sum()) for n, tables in run.tables.items() for t in tables})
    return dict(totals)
