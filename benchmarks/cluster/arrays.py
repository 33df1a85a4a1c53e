"""Arrays that cross from worker to worker: a dense histogram reduced in a tree, sparse tables shuffled and merged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.benchmarks.inputs.corpora import splitmix64
from mgpu_ngram.cluster.executor import Executor, Handle, reduce_tasks
from mgpu_ngram.core.counts.tables import ShardedTable
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.engine.count.sorted_runs import SortedRun, add_bins, bundle_runs, merge_runs, take_shards
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.jobs.count import run as count_job
from mgpu_ngram.jobs.count.plan import count_budget
from mgpu_ngram.kernels.dispatch import array_module

ROUNDS = {"gpu": 15, "cpu": 3}
BINS = {"gpu": 1 << 24, "cpu": 1 << 20}  # uint32: 64 MiB on a GPU
COPIES = 16
NO_BINS = 2
TARGET_REDUCTIONS = {4: 200.0}  # a second on H200s: 5 ms each
TARGET_BYTES = {4: 150e9}  # bytes of tables a second for each H200
S, ORDER, BITS = 256, 4, 19  # as of a corpus of 1 G tokens: keys of two columns
ROW_BYTES = 24
COMMON_SHARE = 1 / 8  # of a worker's rows all others have too, about as 4-grams of 250 M Zipf words each


def histogram(suite: Suite, executor: Executor) -> None:
    """Two rows: a tree of additions, from the histograms on their workers to the sum on one.

    One tree alone, with the time that Dask takes for its tasks; and COPIES histograms at once, less the time of the
    same tree over a few bytes.
    """
    suite.say(f"a dense histogram reduced over {executor.workers} workers, transport {executor.transport}")
    bins, G = BINS[suite.device], executor.workers
    whole = _reductions(executor, COPIES * bins, suite.device)
    tasks = statistics.median(_reductions(executor, NO_BINS, suite.device))
    suite.add(
        "cluster/one tree-reduce of a histogram",
        f"bins={bins} bytes={4 * bins} workers={G}",
        _reductions(executor, bins, suite.device),
        items=1,
        unit="reductions/s",
        notes=f"of it {tasks * 1e3:.3g} ms are tasks, as of the same tree over {4 * NO_BINS} bytes; "
        f"transport {executor.transport}",
    )
    suite.add(
        "cluster/tree-reduce of a histogram",
        f"bins={bins} bytes={4 * bins} workers={G} copies={COPIES}",
        [max(s - tasks, 1e-9) for s in whole],
        items=COPIES,
        unit="reductions/s",
        target=TARGET_REDUCTIONS.get(G) if suite.device == "gpu" else None,
        notes=f"{COPIES} at once: {statistics.median(whole) * 1e3:.3g} ms, less {tasks * 1e3:.3g} ms of the same tree "
        f"over {4 * NO_BINS} bytes; transport {executor.transport}",
    )


def _reductions(executor: Executor, bins: int, device: str) -> list[float]:
    G = executor.workers
    made = [executor.call(make_histogram, k, bins, device, affinity=k) for k in range(G)]
    _check_places(executor, made)
    seconds = []
    for i in range(ROUNDS[device] + 1):
        # A worker keeps what it has received, so every round reduces values of its own.
        handles = [executor.call(_same, h, affinity=k) for k, h in enumerate(made)]
        executor.wait(handles)
        start = time.perf_counter()
        [total] = reduce_tasks(executor, add_bins, handles, arity=2)
        executor.wait([total])
        seconds.append(time.perf_counter() - start)
        if i == 0:
            expected = sum(make_histogram(k, bins, "cpu") for k in range(G))
            wrong = int((executor.gather([total])[0] != expected).sum())
            oracles.check_total(wrong, 0, "bins that differ from the sum")
    return seconds[1:]  # the first warms up


def make_histogram(worker: int, bins: int, device: str) -> Any:
    """(bins,) uint32, other values on every worker."""
    return to_device(np.arange(bins, dtype=np.uint32) % np.uint32(1009) * np.uint32(worker + 1), device)


def _same(value: Any) -> Any:
    return value


def shuffle(suite: Suite, executor: Executor, table_bytes: int) -> None:
    """Three rows: tables of all workers to the owners of their shards, merged there; and both halves alone."""
    suite.say(f"tables shuffled and merged over {executor.workers} workers, transport {executor.transport}")
    G, device = executor.workers, suite.device
    executor.reserve(count_budget(MemoryConfig(), executor).device_bytes - count_job.UNRESERVED_BYTES)
    universe = candidates(table_bytes, G)
    runs, tiny = (_make_runs(executor, size, device) for size in (universe, S))
    made = executor.gather([executor.call(_rows_and_total, run) for run in runs])
    held_bytes = ROW_BYTES * sum(rows for rows, _ in made)
    merged = _merged(executor, runs)
    rows, totals = zip(*executor.gather([executor.call(_rows_and_total, run) for run in merged]), strict=True)
    oracles.check_total(sum(rows), universe, "rows of merged tables")
    oracles.check_total(sum(totals), sum(total for _, total in made), "counts of merged tables")
    del merged
    tasks = statistics.median(_time(lambda: _merged(executor, tiny), device))
    received = [executor.call(bundle_runs, *pieces, affinity=k) for k, pieces in enumerate(_pieces(executor, runs))]
    executor.wait(received)
    calls: dict[str, tuple[Callable[[], Any], str]] = {
        "shuffle and merge": (
            lambda: _merged(executor, runs),
            f"of {sum(r for r, _ in made):,} rows {universe:,} are distinct; {tasks * 1e3:.3g} ms are tasks alone",
        ),
        "shuffle alone": (lambda: _shuffled(executor, runs), "pieces arrive, nothing else"),
        "merge alone": (lambda: _wait(executor, [executor.call(merge_runs, r) for r in received]), "pieces are there"),
    }
    for name, (call, notes) in calls.items():
        suite.add(
            f"cluster/{name}",
            f"table_bytes={held_bytes} S={S} columns=2 workers={G}",
            _time(call, device),
            items=held_bytes / G,
            unit="B/s",
            target=TARGET_BYTES.get(G) if device == "gpu" and name == "shuffle and merge" else None,
            notes=f"per worker; {notes}; transport {executor.transport}",
        )


def candidates(table_bytes: int, workers: int) -> int:
    """Distinct n-grams of all workers together, of whom each has about `table_bytes`; a multiple of S."""
    rows = table_bytes // ROW_BYTES
    return max(1, int(rows * (COMMON_SHARE + (1 - COMMON_SHARE) * workers)) // S) * S


def make_run(worker: int, workers: int, universe: int, device: str) -> SortedRun:
    """Return a sorted table of order 4 in S shards: the share of one worker in `universe` n-grams.

    N-gram j belongs to all workers with a small probability, else to one. Three n-grams in a row share
    their first key column.
    """
    xp = array_module(to_device(np.empty(0), device))
    shared = np.uint64((1 << 32) * COMMON_SHARE / (COMMON_SHARE + (1 - COMMON_SHARE) * workers))
    step, three = np.uint64((1 << 64) // (universe // 3 + 2)), np.uint64(3)
    keys, counts, ends = [], [], []
    for shard in range(S):
        j = xp.arange(shard * universe // S, (shard + 1) * universe // S, dtype=np.uint64)
        random = splitmix64(j)
        mine = (random >> np.uint64(32) < shared) | (random % np.uint64(workers) == np.uint64(worker))
        j = j[mine]
        keys.append(xp.stack([j // three * step, (j % three + np.uint64(1)) << np.uint64(52)]))
        counts.append((random[mine] >> np.uint64(20)).astype(np.int64) % 8 + worker + 1)
        ends.append(len(j))
    table = ShardedTable(xp.concatenate(keys, axis=1), xp.concatenate(counts), np.cumsum(ends), ORDER, BITS)
    return SortedRun({ORDER: [table]})


def _make_runs(executor: Executor, universe: int, device: str) -> list[Handle]:
    G = executor.workers
    runs = [executor.call(make_run, k, G, universe, device, affinity=k) for k in range(G)]
    _check_places(executor, runs)
    return runs


def _pieces(executor: Executor, runs: Sequence[Handle]) -> list[list[Handle]]:
    """Return the pieces of every run, for each part of the shards."""
    G = executor.workers
    return [
        [executor.call(take_shards, r, k * S // G, (k + 1) * S // G, colocate_with=r) for r in runs] for k in range(G)
    ]


def _merged(executor: Executor, runs: Sequence[Handle]) -> list[Handle]:
    """Each part merged by its owner."""
    merged = [executor.call(merge_runs, *p, affinity=k) for k, p in enumerate(_pieces(executor, runs))]
    return _wait(executor, merged)


def _shuffled(executor: Executor, runs: Sequence[Handle]) -> None:
    _wait(executor, [executor.call(_receive, *p, affinity=k) for k, p in enumerate(_pieces(executor, runs))])


def _receive(*pieces: SortedRun) -> None:
    """Do nothing: the task ends when its pieces have arrived."""


def _wait(executor: Executor, handles: list[Handle]) -> list[Handle]:
    executor.wait(handles)
    return handles


def _rows_and_total(run: SortedRun) -> tuple[int, int]:
    [table] = run.tables[ORDER]
    return len(table), int(table.counts.sum())


def _time(call: Callable[[], Any], device: str) -> list[float]:
    """Return the wall-clock seconds of several calls, after a warm-up."""
    call()
    seconds = []
    for _ in range(ROUNDS[device]):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _check_places(executor: Executor, handles: list[Handle]) -> None:
    """Raise RunError unless every worker holds one of the values."""
    executor.wait(handles)
    if len(found := executor.groups(handles)) != executor.workers:
        raise RunError(f"{len(handles)} values lie on {len(found)} of {executor.workers} workers; measure again")
