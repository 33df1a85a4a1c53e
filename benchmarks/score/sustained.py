"""The rate of the edge table in short runs, when one device scores on end, with its clocks, and from Python."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.api.model import Model
from mgpu_ngram.benchmarks.harness.clocks import Clocks, open_clocks, read_clocks
from mgpu_ngram.benchmarks.harness.rows import Row, with_unit
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.plain_scoring import ScoreWork
from mgpu_ngram.benchmarks.inputs.scoring_subjects import EDGES, Subject, edge_table, queries
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.engine.memory.device import synchronize
from mgpu_ngram.kernels.dispatch import array_module, to_host

SECONDS = {"gpu": 10.0, "cpu": 2.0}  # on end
PASSES = {"gpu": 200, "cpu": 1}  # between two looks at the clock
SHORT, ON_END, PYTHON = f"score/short runs of {EDGES}", f"score/on end {EDGES}", "score/score_ids from Python"
KERNEL_SHARE = 0.85  # share of the rate of short runs, for `Model.score_ids`


def sustained(suite: Suite, subject: Subject) -> None:
    """Three rows: single passes with a pause after each, as Table 3 has them, `Model.score_ids` of the same codes, and
    passes on end for some seconds.

    The last row has one run for each PASSES passes; its notes give the first and the last of them with the clocks.
    """
    suite.say(f"{EDGES}, on end for {SECONDS[suite.device]:g} s")
    codes_T, repeated = queries(subject, suite.device)
    index, sizes = edge_table(subject.trie), subject.sizes(codes_T, repeated)
    call = partial(index.score, codes_T)
    check = ScoreWork.of(subject.trie, codes_T).check
    short = suite.run(SHORT, sizes, call, check=check, items=len(codes_T), unit=QUERIES_PER_SECOND)
    _from_python(suite, subject, codes_T, short)
    handle = open_clocks() if suite.device == "gpu" else None
    passes = PASSES[suite.device]
    seconds: list[float] = []
    clocks: list[Clocks] = []
    synchronize(suite.device)
    while not seconds or sum(seconds) < SECONDS[suite.device]:
        start = time.perf_counter()
        for _ in range(passes):
            call()
        if handle is not None:
            clocks.append(read_clocks(handle))  # the device still works: it was given its passes ahead
        synchronize(suite.device)
        seconds.append(time.perf_counter() - start)
    suite.add(
        ON_END, sizes, seconds, items=passes * len(codes_T), unit=QUERIES_PER_SECOND, baseline=SHORT,
        baseline_seconds=passes * short.median_seconds if short.median_seconds else None,
        notes=f"{passes} passes a run; {_ends(seconds, clocks, passes * len(codes_T))}",
    )  # fmt: skip


def _from_python(suite: Suite, subject: Subject, codes_T: Any, short: Row) -> None:
    """The row of `Model.score_ids`, with the sentences of the codes as ids and offsets on the device."""
    xp = array_module(codes_T)
    ends_S = xp.flatnonzero(codes_T == 0)
    codes_T = codes_T[: int(ends_S[-1]) + 1]
    ids_T = (codes_T[codes_T != 0] - 1).astype(np.int32)
    offsets_S1 = xp.append(xp.zeros(1, np.int64), ends_S - xp.arange(len(ends_S)))
    model = Model(BackoffModel.of(subject.trie.map_arrays(to_host), subject.words), suite.device)
    sizes = subject.sizes(codes_T)
    expected = ScoreWork.of(subject.trie, codes_T).scores[0]

    def check(total_S: Any) -> None:
        sums_S = xp.diff(xp.append(xp.zeros(1), xp.cumsum(expected, dtype=np.float64)[ends_S]))
        if not xp.allclose(total_S, sums_S, rtol=1e-4):
            raise WrongResult("score_ids gives other sums than array code; not timed")

    suite.run(
        PYTHON, sizes, partial(model.score_ids, ids_T, offsets_S1), check=check, items=len(codes_T),
        unit=QUERIES_PER_SECOND, target=KERNEL_SHARE * short.rate if short.rate and suite.device == "gpu" else None,
        baseline=SHORT, baseline_seconds=len(codes_T) / short.rate if short.rate else None,
    )  # fmt: skip


def _ends(seconds: list[float], clocks: list[Clocks], items: int) -> str:
    """Return the rates of the first and the last runs, and the clocks then."""
    few = max(1, len(seconds) // 10)
    parts = []
    for name, passes, clock in (("first", seconds[:few], clocks[:1]), ("last", seconds[-few:], clocks[-1:])):
        parts.append(f"{name} {with_unit(items / statistics.median(passes), '')}" + "".join(f" at {c}" for c in clock))
    return "; ".join(parts)
