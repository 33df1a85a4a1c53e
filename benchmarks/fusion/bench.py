"""`mgpu-ngram bench fusion`: n-gram models inside PyTorch's models and behind other decoders."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.fusion.ctc import ctc
from mgpu_ngram.benchmarks.fusion.mixture import mixture
from mgpu_ngram.benchmarks.fusion.rescore import rescore
from mgpu_ngram.benchmarks.fusion.words import words
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, open_suite

FLAGS = {"only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "fusion/ctc": ("engine.states.ctc_search",),
    "fusion/ctc pyctcdecode": (),
    "fusion/mixture": ("engine.states.torch_mixture",),
    "fusion/mixture torch": (),
    "fusion/rescore": ("jobs.rescore.run",),
    "fusion/words": ("engine.states.torch_mixture",),
}
PARTS: dict[str, Callable[[Suite, Path], None]] = {
    "mixture": lambda suite, folder: mixture(suite),
    "words": lambda suite, folder: words(suite),
    "rescore": rescore,
    "ctc": ctc,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure the parts, write fusion.csv to the folder of results, and return the rows.

    only  parts to measure; the rate at which the device copies is always measured. The parts mixture, words and
          ctc need PyTorch

    Results are compared with plain PyTorch and NumPy before they are timed, and WrongResult is raised when one differs.
    Rows are printed and saved part by part.
    """
    parts = options.parts(PARTS)
    suite = open_suite("fusion", options)
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        for part in parts:
            suite.measure_part(PARTS[part], suite, Path(place))
    return [asdict(row) for row in suite.rows]
