"""The exchange between counting and writing: what every run holds of a part goes to the worker that owns the part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.engine.sorted_runs import Run, bundle_runs, take_part, take_part_to_gpu


def shuffle(
    executor: Executor,
    runs: list[Handle],
    stored: Sequence[Run],
    parts: Sequence[tuple[int, int]],
    call: Callable[[int, list[Handle | Run]], Handle],
    done: Callable[[Handle], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """call(part, what all runs hold of it), two parts a worker at a time. Empties `runs` with the last part.

    runs       in memory, and
    stored     in files
    parts      (first, last) shards of each
    meanwhile  done once, when the first parts are under way
    """
    take = take_part_to_gpu if executor.transport == "ipc" else take_part
    files = [executor.call(bundle_runs, *stored)] if stored else []  # once: it may name thousands of files

    def call_part(part: int) -> Handle:
        shards = parts[part]
        # `first`: a worker that makes a part keeps no other waiting for what it holds of theirs.
        taken = (
            runs
            if len(parts) == 1
            else [executor.call(take, run, *shards, colocate_with=run, priority=True) for run in runs]
        )
        pieces = [*taken, *files]
        if part == len(parts) - 1:
            runs.clear()
        return call(part, pieces)

    windowed(executor, map(call_part, range(len(parts))), 2 * executor.workers, done, meanwhile)
