"""Benchmarks: kernels and whole stages, beside measured ceilings and peers. `mgpu-ngram bench` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from mgpu_ngram.benchmarks.harness.options import BenchOptions
    from mgpu_ngram.benchmarks.reproduce.paper import Paper

RESULTS, PAPER_RESULTS = "benchmarks/results", "benchmarks/papers"
# The name of each bench, also of its CSV file, and its module, which is imported when it is needed.
BENCHES = {
    name: f"{__name__}.{module}"
    for name, module in {
        "count": "count.bench",
        "cluster": "cluster.bench",
        "score": "score.bench",
        "distribution": "distribution.bench",
        "estimate": "estimate.bench",
        "lda": "lda.bench",
        "decode": "decode.bench",
        "fusion": "fusion.bench",
        "filter": "filter",
        "startup": "startup",
        "tools": "tools",
    }.items()
}
# The name of each paper, also of its folder, and the module that has its `PAPER`.
PAPERS = {
    name: f"{__name__}.reproduce.{module}"
    for name, module in {
        "glm": "glm",
        "gilm": "gilm",
        "ngrams-cuda": "ngrams_cuda",
        "culda": "culda",
        "amun": "amun",
    }.items()
}


class Bench(Protocol):
    """A module of BENCHES.

    FLAGS     fields of `BenchOptions` that the bench obeys, besides `device` and `results`
    MEASURES  for rows whose kernel begins so, the modules that they measure, such as engine.score.replica; none for
              ceilings and peers. The longest beginning counts. Younger code of these modules, or of modules that they
              import, makes a row stale
    bench     measures, writes NAME.csv and the figures, and returns the rows
    """

    FLAGS: set[str]
    MEASURES: Mapping[str, Sequence[str]]

    def bench(self, options: BenchOptions) -> list[dict[str, Any]]: ...


def open_bench(name: str) -> Bench:
    """Return the module of a bench."""
    return cast(Bench, import_module(BENCHES[name]))


def open_paper(name: str) -> Paper:
    """Return a paper of PAPERS."""
    return import_module(PAPERS[name]).PAPER
