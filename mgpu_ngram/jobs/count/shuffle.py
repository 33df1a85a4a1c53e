"""The shuffle between counting and writing: each worker gets the rows of its parts from all sorted runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.engine.count.sorted_runs import SortedRun, bundle_runs, take_shards, take_shards_to_gpu


def shuffle(
    executor: Executor,
    runs: list[Handle],
    stored: Sequence[SortedRun],
    parts: Sequence[tuple[int, int]],
    call: Callable[[int, list[Handle | SortedRun]], Handle],
    done: Callable[[Handle], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Call call(part, the part's share of all runs), two parts per worker at a time. Empties `runs` at the last part.

    runs       runs in memory
    stored     runs in files
    parts      (first, last) shards of each part
    meanwhile  called once, when the first parts are in flight
    """
    files = [executor.call(bundle_runs, *stored)] if stored else []  # once: it may name thousands of files

    def call_part(part: int) -> Handle:
        shards = parts[part]
        taken = runs if len(parts) == 1 else [take_part(executor, run, shards) for run in runs]
        pieces = [*taken, *files]
        if part == len(parts) - 1:
            runs.clear()
        return call(part, pieces)

    windowed(executor, map(call_part, range(len(parts))), 2 * executor.workers, done, meanwhile)


def take_part(executor: Executor, run: Handle, shards: tuple[int, int]) -> Handle:
    """Call the task that returns shards[0] to shards[1] - 1 of a run, on the worker that holds the run."""
    take = take_shards_to_gpu if executor.transport == "ipc" else take_shards
    # Priority: otherwise a worker that makes a part would block other parts that need its runs.
    return executor.call(take, run, *shards, colocate_with=run, priority=True)
