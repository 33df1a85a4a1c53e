"""Several workers, each with its own replica and its own text, which score at once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.api import open_executor
from mgpu_ngram.benchmarks.score_models import EDGES, QUERIES, UNIT, Index, Subject, edge_table, queries
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.config import ClusterConfig
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.device import synchronize

ROUNDS = 3
PASSES = {"gpu": 200, "cpu": 20}  # over a worker's text in one round
DELAY_SECONDS = 1.0  # in which every worker learns when to start
TARGET_SPEEDUP = {2: 1.9, 4: 3.8}  # over one H200
KERNEL = f"score/workers {EDGES}"


@dataclass(frozen=True)
class Share:
    """What one worker scores, on its device."""

    index: Index
    codes_T: Any
    sizes: str


@dataclass(frozen=True)
class Scored:
    """A share scored several times: seconds from the start that all workers agreed on."""

    seconds: float
    log10: float
    tokens: int
    sizes: str


def workers(suite: Suite, tokens: int, clusters: list[int]) -> None:
    """A row for each number of workers: codes and scores stay on the devices."""
    log10: dict[int, float] = {}  # by share, which does not depend on how many there are
    for G in clusters:
        suite.say(f"{G} workers score at once")
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            _row(suite, executor, tokens, log10)
        finally:
            executor.close()


def _row(suite: Suite, executor: Executor, tokens: int, log10: dict[int, float]) -> None:
    G, passes = executor.workers, PASSES[suite.device]
    shares = [executor.call(make_share, k, tokens, suite.device, near=k) for k in range(G)]
    executor.wait(shares)
    found = len(executor.groups(shares))
    if found < G:
        raise RunError(f"{G} shares are on {found} of {G} workers; run again while nothing else runs here")
    seconds, scored = [], 0
    for _ in range(ROUNDS):
        start = time.time() + DELAY_SECONDS
        calls = [executor.call(score_share, share, start, passes, suite.device, beside=share) for share in shares]
        executor.wait(calls)
        done = executor.gather(calls)
        seconds.append(max(one.seconds for one in done))
        scored = sum(one.tokens for one in done)
        for k, one in enumerate(done):
            if abs(one.log10 - log10.setdefault(k, one.log10)) > 1e-9 * abs(one.log10):
                raise WrongResult(f"share {k} has log10 {one.log10} here but {log10[k]} elsewhere; not timed")
    alone = next((r for r in suite.rows if r.kernel == KERNEL and r.sizes.endswith(" workers=1")), None)
    speedup = TARGET_SPEEDUP.get(G) if suite.device == "gpu" else None
    row = suite.add(
        KERNEL,
        f"{done[0].sizes} workers={G}",
        seconds,
        items=passes * scored,
        unit=UNIT,
        target=speedup * alone.rate if speedup and alone and alone.rate else None,
        notes=f"{passes} passes; the slowest worker's time" + (f"; target {speedup}x over one" if speedup else ""),
    )
    if alone and alone.rate and row.rate:
        row.baseline, row.speedup = "workers=1", row.rate / alone.rate


def make_share(worker: int, tokens: int, device: str) -> Share:
    """The model of all workers, and text of this one alone."""
    subject = Subject.make(tokens, QUERIES[device], device, text_seed=1 + worker)
    codes_T, repeated = queries(subject, device)
    return Share(edge_table(subject.trie), codes_T, subject.sizes(codes_T, repeated))


def score_share(share: Share, start: float, passes: int, device: str) -> Scored:
    """Score it, as soon as the clock of this host says `start`; who comes late is not given the time."""
    share.index.score(share.codes_T)
    synchronize(device)
    time.sleep(max(0.0, start - time.time()))
    for _ in range(passes):
        prob_T, _ = share.index.score(share.codes_T)
    synchronize(device)
    seconds = time.time() - start
    return Scored(seconds, float(prob_T.sum(dtype=np.float64)), len(prob_T), share.sizes)
