"""Several workers, each with its own replica and its own text, which score at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.side_by_side import Done, Measurement, side_by_side, timed
from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.scoring_subjects import EDGES, QUERIES, Index, Subject, edge_table, queries

PASSES = {"gpu": 200, "cpu": 20}  # over a worker's text in one round
KERNEL = f"score/workers {EDGES}"


@dataclass(frozen=True)
class ScoreShare:
    """The index and the text of one worker, on its device."""

    index: Index
    codes_T: Any
    sizes: str


def workers(suite: Suite, tokens: int, clusters: list[int]) -> None:
    """A row for each number of workers."""
    side_by_side(suite, work_on(suite.device), tokens, clusters)


def work_on(device: str) -> Measurement:
    return Measurement(KERNEL, QUERIES_PER_SECOND, PASSES[device], make_share, score_share)


def make_share(worker: int, tokens: int, device: str) -> ScoreShare:
    """The model of all workers, and text of this one alone."""
    subject = Subject.make(tokens, QUERIES[device], device, text_seed=1 + worker)
    codes_T, repeated = queries(subject, device)
    return ScoreShare(edge_table(subject.trie), codes_T, subject.sizes(codes_T, repeated))


def score_share(share: ScoreShare, start: float, passes: int, device: str) -> Done:
    """Score the text of a share, in so many passes."""
    share.index.score(share.codes_T)  # the first time takes longer
    seconds, (prob_T, _) = timed(lambda: share.index.score(share.codes_T), start, passes, device)
    return Done(seconds, float(prob_T.sum(dtype=np.float64)), len(prob_T), share.sizes)
