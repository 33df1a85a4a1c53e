"""`mgpu-ngram bench estimate`: Kneser-Ney models from ids and from text, on one device and several, beside lmplz."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.estimate.files import write
from mgpu_ngram.benchmarks.estimate.ids import ids
from mgpu_ngram.benchmarks.estimate.peers import lmplz
from mgpu_ngram.benchmarks.estimate.text import EstimateBench, smoothings, text
from mgpu_ngram.benchmarks.estimate.text import workers as several_workers
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import open_suite

TOKENS = {"gpu": 200_000_000, "cpu": 1_000_000}
MIN_TOKENS = 2_000
FLAGS = {"text", "tokens", "workers", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "estimate/": ("jobs.estimate.run",),
    "estimate/ids": (
        "engine.estimate.adjusted_counts",
        "engine.estimate.assemble",
        "engine.count.count_chunk",
        "engine.estimate.probabilities",
        "engine.estimate.part",
    ),
    "estimate/peer": (),
    "estimate/write": ("jobs.estimate.assemble",),
}
PARTS: dict[str, Callable[[EstimateBench], None]] = {
    "ids": lambda bench: ids(bench.suite, bench.tokens),
    "text": text,
    "smoothings": smoothings,
    "workers": several_workers,
    "write": lambda bench: write(bench.suite, bench.tokens, bench.folder),
    "lmplz": lmplz,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure estimating, write estimate.csv and the figure to the folder of results, and return the rows.

    text    file of text for the part `lmplz`, instead of a generated text
    tokens  words of the text that models are made from
    only    parts to measure; the rate at which the device copies is always measured

    Compares the Kneser-Ney model of a small text with plain Python, and checks the sizes and sums of timed models.
    Raises WrongResult if a model is wrong. Rows are printed and saved part by part.
    """
    parts, clusters = options.parts(PARTS), options.clusters()
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    real = Path(options.text).absolute() if options.text else None
    suite = open_suite("estimate", options)
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = EstimateBench(suite, tokens, clusters, Path(place), real)
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    from mgpu_ngram.benchmarks.estimate import figures as estimate_figures

    estimate_figures.draw(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
