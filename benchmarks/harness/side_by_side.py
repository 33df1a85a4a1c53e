"""Several workers at the same work, each with a share of its own on its device, from one moment on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.stages.run_file import ClusterConfig

ROUNDS = 3
DELAY_SECONDS = 1.0  # in which every worker learns when to start
TARGET_SPEEDUP = {2: 1.9, 4: 3.8}  # over one H200


@dataclass(frozen=True)
class Done:
    """A share that was worked through several times.

    seconds  from the start that all workers agreed on
    total    sum of the last results: the same wherever the share is
    items    that one pass made
    sizes    of the share, for the row
    """

    seconds: float
    total: float
    items: int
    sizes: str


@dataclass(frozen=True)
class Measurement:
    """A measurement.

    share   share(worker, tokens, device): the share of a worker, with a text of its own
    passes  over a share in one round
    run     run(share, start, passes, device) -> Done, by way of `timed`
    """

    kernel: str
    unit: str
    passes: int
    share: Callable[[int, int, str], Any]
    run: Callable[[Any, float, int, str], Done]


def side_by_side(suite: Suite, work: Measurement, tokens: int, clusters: list[int]) -> None:
    """A row for each number of workers: results stay on the devices."""
    totals: dict[int, float] = {}  # by share; the same for any number of workers
    for G in clusters:
        suite.say(f"{work.kernel}: {G} at once")
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            add_row(suite, executor, work, tokens, totals)
        finally:
            executor.close()


def add_row(suite: Suite, executor: Executor, work: Measurement, tokens: int, totals: dict[int, float]) -> None:
    """Add the row of all workers of the executor."""
    G, device = executor.workers, suite.device
    shares = [executor.call(work.share, k, tokens, device, affinity=k) for k in range(G)]
    executor.wait(shares)
    found = len(executor.groups(shares))
    if found < G:
        raise RunError(f"{G} shares are on {found} of {G} workers; run again while nothing else runs here")
    seconds, items = [], 0
    for _ in range(ROUNDS):
        start = time.time() + DELAY_SECONDS
        calls = [executor.call(work.run, share, start, work.passes, device, colocate_with=share) for share in shares]
        executor.wait(calls)
        done = executor.gather(calls)
        seconds.append(max(one.seconds for one in done))
        items = sum(one.items for one in done)
        for k, one in enumerate(done):
            if abs(one.total - totals.setdefault(k, one.total)) > 1e-9 * abs(one.total):
                raise WrongResult(f"share {k} sums to {one.total} here but {totals[k]} elsewhere; not timed")
    alone = next((r for r in suite.rows if r.kernel == work.kernel and r.sizes.endswith(" workers=1")), None)
    speedup = TARGET_SPEEDUP.get(G) if device == "gpu" else None
    row = suite.add(
        work.kernel,
        f"{done[0].sizes} workers={G}",
        seconds,
        items=work.passes * items,
        unit=work.unit,
        target=speedup * alone.rate if speedup and alone and alone.rate else None,
        notes=f"{work.passes} passes; the slowest worker's time" + (f"; target {speedup}x over one" if speedup else ""),
    )
    if alone and alone.rate and row.rate:
        row.baseline, row.speedup = "workers=1", row.rate / alone.rate


def timed(fn: Callable[[], Any], start: float, passes: int, device: str) -> tuple[float, Any]:
    """Call fn `passes` times from the time `start` on; return the seconds since `start` and the last result.

    A worker that is late does not get the time back.
    """
    synchronize(device)
    time.sleep(max(0.0, start - time.time()))
    for _ in range(passes):
        result = fn()
    synchronize(device)
    return time.time() - start, result
