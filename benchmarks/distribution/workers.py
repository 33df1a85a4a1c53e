"""Several workers, each with its own replica, histories and rows, which are consumed where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.distribution.rates import find_and_write
from mgpu_ngram.benchmarks.harness.side_by_side import Done, Measurement, side_by_side, timed
from mgpu_ngram.benchmarks.harness.units import DISTRIBUTIONS_PER_SECOND
from mgpu_ngram.benchmarks.inputs.distribution_cases import LARGE, SHAPES, Case, DistributionBench
from mgpu_ngram.core.models.row_options import RowOptions

PASSES = {"gpu": 200, "cpu": 3}  # over a worker's histories in one round
HISTORIES = {"gpu": 2_500, "cpu": 20}  # histories of a worker
KERNEL = "distribution/workers rows"


@dataclass(frozen=True)
class RowsShare:
    """The case and the room for rows of one worker, on its device."""

    case: Case
    options: RowOptions
    out: Any


def workers(bench: DistributionBench) -> None:
    """A row for each number of workers."""
    tokens = min(bench.tokens, SHAPES[LARGE].tokens or bench.tokens)
    side_by_side(bench.suite, work_on(bench.suite.device), tokens, bench.clusters)


def work_on(device: str) -> Measurement:
    return Measurement(KERNEL, DISTRIBUTIONS_PER_SECOND, PASSES[device], make_share, make_rows)


def make_share(worker: int, tokens: int, device: str) -> RowsShare:
    """The model of all workers, and text of this one alone."""
    H = HISTORIES[device]
    case = Case.make(SHAPES[LARGE], tokens, 2 * H, device, text_seed=1 + worker)
    options = case.options()
    return RowsShare(case, options, case.model.dense(case.find_first(H, options.scale), options))


def make_rows(share: RowsShare, start: float, passes: int, device: str) -> Done:
    """Find and write the rows of all histories."""
    H, positions_H = len(share.out), share.case.positions(len(share.out))
    make = partial(find_and_write, share.case, positions_H, share.options, share.out)
    seconds, rows = timed(make, start, passes, device)
    total = float(rows[:, -1].sum(dtype=np.float64))
    return Done(seconds, total, H * len(share.options.orders), share.case.sizes(H))
