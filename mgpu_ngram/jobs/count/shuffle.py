"""The shuffle between counting and writing: each worker gets the rows of its parts from all sorted runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from mgpu_ngram.cluster.executor import Executor, Handle, Offer, Share, windowed
from mgpu_ngram.engine.count.sorted_runs import SortedRun, bundle_runs, take_shards, take_shards_to_gpu
from mgpu_ngram.engine.count.write_counts import WrittenFile, write_part
from mgpu_ngram.jobs.count.passes import Counted, CountPasses


def write_parts(
    passes: CountPasses, counted: Counted, runs: list[Handle], folder: str
) -> list[tuple[list[WrittenFile], dict[str, float]]]:
    """Shuffle runs to the parts of their shards; one task merges and writes each part.

    runs  the result of `CountPasses.merge`; emptied

    Returns the files and the seconds of each part.
    """
    executor, parts = passes.executor, parts_of(passes, counted)
    options = passes.write_options(folder, len(parts))
    results = []

    def call(part: int, pieces: list[Handle | Share]) -> Handle:
        first, last = parts[part]
        return executor.call(
            write_part, pieces, first, last, counted.vocabulary, options, part == 0,
            label=f"writing shards {first} to {last - 1}", affinity=part,
        )  # fmt: skip

    def done(handle: Handle) -> None:
        results.append(executor.gather([handle])[0])
        passes.progress.advance(1)

    passes.progress.start("write", len(parts), "parts")
    shuffle(executor, runs, passes.stored, parts, call, done)
    return results


def parts_of(passes: CountPasses, counted: Counted) -> list[tuple[int, int]]:
    """Return (first, last) shards of each part: one part per worker, or more so that two received parts fit."""
    S, workers = counted.totals.num_shards, passes.executor.workers
    rounds = 1  # if workers share memory, parts are views
    if passes.executor.transport != "memory":
        stored_bytes = sum(os.path.getsize(s.path) for run in counted.stored for s in run.stored)
        part_bytes = passes.budget.part_bytes(counted.table_bytes // workers)
        rounds = max(1, -(-(counted.table_bytes + stored_bytes) // (workers * part_bytes)))
    P = min(S, workers * rounds)
    return [(p * S // P, (p + 1) * S // P) for p in range(P)]


def shuffle(
    executor: Executor,
    runs: list[Handle],
    stored: Sequence[SortedRun],
    parts: Sequence[tuple[int, int]],
    call: Callable[[int, list[Handle | Share]], Handle],
    done: Callable[[Handle], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Call call(part, the part's share of all runs), two parts per worker at a time. Empties `runs`.

    runs       runs in memory
    stored     runs in files
    parts      (first, last) shards of each part
    meanwhile  called once, when the first parts are in flight
    """
    files = [executor.call(bundle_runs, *stored)] if stored else []  # once: it may name thousands of files
    offer = executor.offer(runs) if len(parts) > 1 else None

    def call_part(part: int) -> Handle:
        taken = list(runs) if offer is None else [share_of_part(executor, offer, parts[part])]
        runs.clear()  # the only part frees runs as it merges them
        return call(part, [*taken, *files])

    windowed(executor, map(call_part, range(len(parts))), 2 * executor.workers, done, meanwhile)


def share_of_part(executor: Executor, runs: Offer, shards: tuple[int, int]) -> Share:
    """Return the argument of a task for shards[0] to shards[1] - 1 of each run."""
    return runs.share(take_shards_to_gpu if executor.transport == "ipc" else take_shards, *shards)
