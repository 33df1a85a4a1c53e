"""The rate of the edge table in short runs, and when one device scores on end, with its clocks."""

from __future__ import annotations

import statistics
import time
from functools import partial

from mgpu_ngram.benchmarks.clocks import Clocks, open_clocks, read_clocks
from mgpu_ngram.benchmarks.rows import with_unit
from mgpu_ngram.benchmarks.score_models import EDGES, UNIT, Subject, edge_table, queries
from mgpu_ngram.benchmarks.score_work import Work
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.engine.device import synchronize

SECONDS = {"gpu": 10.0, "cpu": 2.0}  # on end
PASSES = {"gpu": 200, "cpu": 1}  # between two looks at the clock
SHORT, ON_END = f"score/short runs of {EDGES}", f"score/on end {EDGES}"


def sustained(suite: Suite, subject: Subject) -> None:
    """Two rows: single passes with a pause after each, as Table 3 has them, and passes on end for some seconds.

    The second row has one run for each PASSES passes; its notes give the first and the last of them with the clocks.
    """
    suite.say(f"{EDGES}, on end for {SECONDS[suite.device]:g} s")
    codes_T, repeated = queries(subject, suite.device)
    index, sizes = edge_table(subject.trie), subject.sizes(codes_T, repeated)
    call = partial(index.score, codes_T)
    check = Work.of(subject.trie, codes_T).check
    short = suite.run(SHORT, sizes, call, check=check, items=len(codes_T), unit=UNIT)
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
        ON_END, sizes, seconds, items=passes * len(codes_T), unit=UNIT, baseline=SHORT,
        baseline_seconds=passes * short.median_seconds if short.median_seconds else None,
        notes=f"{passes} passes a run; {_ends(seconds, clocks, passes * len(codes_T))}",
    )  # fmt: skip


def _ends(seconds: list[float], clocks: list[Clocks], items: int) -> str:
    """Return the rates of the first and the last runs, and the clocks then."""
    few = max(1, len(seconds) // 10)
    parts = []
    for name, passes, clock in (("first", seconds[:few], clocks[:1]), ("last", seconds[-few:], clocks[-1:])):
        parts.append(f"{name} {with_unit(items / statistics.median(passes), '')}" + "".join(f" at {c}" for c in clock))
    return "; ".join(parts)
