"""Several workers, each with its own replica, histories and rows, which are consumed where they are made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.api import open_executor
from mgpu_ngram.benchmarks.distribution_cases import LARGE, SHAPES, UNIT, Case, Run
from mgpu_ngram.benchmarks.distribution_rates import find_and_write
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.config import ClusterConfig
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.device import synchronize
from mgpu_ngram.engine.distribution import RowOptions

ROUNDS = 3
PASSES = {"gpu": 200, "cpu": 3}  # over a worker's histories in one round
HISTORIES = {"gpu": 2_500, "cpu": 20}  # of a worker
DELAY_SECONDS = 1.0  # in which every worker learns when to start
TARGET_SPEEDUP = {2: 1.9, 4: 3.8}  # over one H200
KERNEL = "distribution/workers rows"


@dataclass(frozen=True)
class Share:
    """What one worker makes rows of, and where, on its device."""

    case: Case
    options: RowOptions
    out: Any


@dataclass(frozen=True)
class Made:
    """A share made several times: seconds from the start that all workers agreed on, and the sum of the last rows."""

    seconds: float
    total: float
    rows: int
    sizes: str


def workers(run: Run) -> None:
    """A row for each number of workers: rows stay on the devices."""
    totals: dict[int, float] = {}  # by share, which does not depend on how many there are
    tokens = min(run.tokens, SHAPES[LARGE].tokens or run.tokens)
    for G in run.clusters:
        run.suite.say(f"{G} workers make rows at once")
        executor = open_executor(ClusterConfig(device=run.suite.device, workers=G))  # type: ignore[arg-type]
        try:
            _row(run.suite, executor, tokens, totals)
        finally:
            executor.close()


def _row(suite: Suite, executor: Executor, tokens: int, totals: dict[int, float]) -> None:
    G, passes = executor.workers, PASSES[suite.device]
    shares = [executor.call(make_share, k, tokens, suite.device, near=k) for k in range(G)]
    executor.wait(shares)
    found = len(executor.groups(shares))
    if found < G:
        raise RunError(f"{G} shares are on {found} of {G} workers; run again while nothing else runs here")
    seconds, made = [], 0
    for _ in range(ROUNDS):
        start = time.time() + DELAY_SECONDS
        calls = [executor.call(make_rows, share, start, passes, suite.device, beside=share) for share in shares]
        executor.wait(calls)
        done = executor.gather(calls)
        seconds.append(max(one.seconds for one in done))
        made = sum(one.rows for one in done)
        for k, one in enumerate(done):
            if abs(one.total - totals.setdefault(k, one.total)) > 1e-9 * abs(one.total):
                raise WrongResult(f"the rows of share {k} sum to {one.total} here but {totals[k]} elsewhere; not timed")
    alone = next((r for r in suite.rows if r.kernel == KERNEL and r.sizes.endswith(" workers=1")), None)
    speedup = TARGET_SPEEDUP.get(G) if suite.device == "gpu" else None
    row = suite.add(
        KERNEL,
        f"{done[0].sizes} workers={G}",
        seconds,
        items=passes * made,
        unit=UNIT,
        target=speedup * alone.rate if speedup and alone and alone.rate else None,
        notes=f"{passes} passes; the slowest worker's time" + (f"; target {speedup}x over one" if speedup else ""),
    )
    if alone and alone.rate and row.rate:
        row.baseline, row.speedup = "workers=1", row.rate / alone.rate


def make_share(worker: int, tokens: int, device: str) -> Share:
    """The model of all workers, and text of this one alone."""
    H = HISTORIES[device]
    case = Case.make(SHAPES[LARGE], tokens, 2 * H, device, text_seed=1 + worker)
    options = case.options()
    return Share(case, options, case.distributor.dense(case.find_first(H), options))


def make_rows(share: Share, start: float, passes: int, device: str) -> Made:
    """Make them, as soon as the clock of this host says `start`; who comes late is not given the time."""
    H, positions_H = len(share.out), share.case.positions(len(share.out))
    synchronize(device)
    time.sleep(max(0.0, start - time.time()))
    for _ in range(passes):
        rows = find_and_write(share.case, positions_H, share.options, share.out)
    synchronize(device)
    seconds = time.time() - start
    total = float(rows[:, -1].sum(dtype=np.float64))
    return Made(seconds, total, H * len(share.options.orders), share.case.sizes(H))
