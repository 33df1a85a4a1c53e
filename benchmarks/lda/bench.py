"""`mgpu-ngram bench lda`: topic models on one device and several, beside their bounds, other programs and a paper."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import open_suite
from mgpu_ngram.benchmarks.lda import tables as lda_paper
from mgpu_ngram.benchmarks.lda.cpu import cpu
from mgpu_ngram.benchmarks.lda.gpus import gpus, stream
from mgpu_ngram.benchmarks.lda.quality import quality
from mgpu_ngram.benchmarks.lda.speed import corpus, speed
from mgpu_ngram.benchmarks.lda.sweeps import LdaBench
from mgpu_ngram.benchmarks.lda.transform import transform

TOKENS = {"gpu": 1_000_000_000, "cpu": 1_000_000}  # at most: corpora have their own sizes
MIN_TOKENS = 2_000
FLAGS = {"text", "tokens", "workers", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "lda/": ("engine.lda.sweep",),
    "lda/corpus": (),
    "lda/cpu WarpLDA": (),
    "lda/cpu scikit-learn": (),
    "lda/cpu tomotopy": (),
    "lda/gpus": ("engine.lda.sweep", "engine.lda.blocks", "cluster.gang"),
    "lda/quality": ("engine.lda.sweep", "engine.lda.metrics"),
    "lda/quality scikit-learn": (),
    "lda/quality tomotopy": (),
    "lda/stream": ("engine.lda.sweep", "engine.lda.blocks"),
    "lda/transform": ("kernels.lda.fold_in",),
}
PARTS: dict[str, Callable[[LdaBench], None]] = {
    "corpus": corpus,
    "speed": speed,
    "gpus": gpus,
    "stream": stream,
    "transform": transform,
    "quality": quality,
    "cpu": cpu,
    "table1": lda_paper.table1,
    "table4": lda_paper.table4,
    "table5": lda_paper.table5,
    "fig7": lda_paper.fig7,
    "fig8": lda_paper.fig8,
    "fig9": lda_paper.fig9,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure topic models, write lda.csv and figures to the folder of results, and return the rows.

    text    docword file or sparse matrix of a real corpus. With .train. in its name, the file with .test. beside it has
            the held-out documents; else a tenth of the documents are held out. The parts quality and cpu train on it in
            place of a generated corpus
    tokens  of a generated corpus at most: its shape shrinks with them
    only    parts to measure; the rate at which the device copies is always measured

    Counts are compared with the corpus, devices and steps with each other, and WrongResult is raised when one is wrong.
    Rows are printed and saved part by part.
    """
    parts, clusters = options.parts(PARTS), options.clusters()
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    data = Path(options.text).absolute() if options.text else None
    suite = open_suite("lda", options)
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = LdaBench(suite, tokens, clusters, data, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    from mgpu_ngram.benchmarks.lda import figures as lda_figures

    lda_figures.draw(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
