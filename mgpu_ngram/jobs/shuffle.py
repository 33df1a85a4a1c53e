"""The exchange between counting and writing: what every run holds of a part goes to the worker that owns the part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.engine.runs import Run, bundle_runs, take_part


def shuffle(
    executor: Executor,
    runs: list[Handle],
    stored: Sequence[Run],
    parts: Sequence[tuple[int, int]],
    call: Callable[[int, list[Handle | Run]], Handle],
    done: Callable[[Handle], None],
) -> None:
    """call(part, what all runs hold of it), two parts a worker at a time. Empties `runs`, to free their memory.

    runs    in memory, and
    stored  in files
    parts   (first, last) shards of each
    """
    if len(parts) == 1:
        taken = [list(runs)]
    else:
        by_run = [[executor.call(take_part, run, *shards, beside=run) for shards in parts] for run in runs]
        taken = [list(pieces) for pieces in zip(*by_run, strict=True)] or [[] for _ in parts]
    runs.clear()
    files = [executor.call(bundle_runs, *stored)] if stored else []  # once: it may name thousands of files
    calls = (partial(call, part, taken.pop(0) + files) for part in range(len(parts)))
    windowed(executor, calls, 2 * executor.workers, done)
