"""The modules of the benches, which are imported when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from mgpu_ngram.benchmarks import BENCHES
from mgpu_ngram.benchmarks.harness.options import BenchOptions


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
