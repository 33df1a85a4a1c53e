"""`mgpu-ngram bench distribution`: the experiments of giLM (Li, 2018) with this engine, and beyond them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.distribution.ceilings import ceilings
from mgpu_ngram.benchmarks.distribution.compact import compact, top
from mgpu_ngram.benchmarks.distribution.files import disk
from mgpu_ngram.benchmarks.distribution.rates import dense, peers, small
from mgpu_ngram.benchmarks.distribution.sampling import sampling
from mgpu_ngram.benchmarks.distribution.states import states
from mgpu_ngram.benchmarks.distribution.steps import one_by_one, steps
from mgpu_ngram.benchmarks.distribution.thesis import order, saturation, throughput
from mgpu_ngram.benchmarks.distribution.workers import workers as several_workers
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import open_suite
from mgpu_ngram.benchmarks.inputs.distribution_cases import DistributionBench
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.row_options import ROW_ALIGNMENT_BYTES
from mgpu_ngram.core.typed_config import parse_bytes

TOKENS = {"gpu": 8_800_000, "cpu": 300_000}  # of the large models: on a GPU as many n-grams as the peers' model has
SIZE = {"gpu": "20 GiB", "cpu": "256 MiB"}  # bytes of rows that are made together
MIN_TOKENS = 1_000
FLAGS = {"size", "tokens", "workers", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "distribution/": ("engine.distribution.next_word",),
    "distribution/children": ("kernels.distribution.gather_children",),
    "distribution/disk": ("jobs.distribution.run",),
    "distribution/one by one": ("kernels.score.score_by_edges",),
    "distribution/states": ("engine.states.state_model",),
    "distribution/sums": ("kernels.distribution.sum_children",),
    "distribution/words": ("engine.distribution.sample_words",),
}
PARTS: dict[str, Callable[[DistributionBench], None]] = {
    "dense": dense,
    "small": small,
    "peers": peers,
    "states": states,
    "top": top,
    "sampling": sampling,
    "compact": compact,
    "saturation": saturation,
    "throughput": throughput,
    "order": order,
    "steps": steps,
    "one_by_one": one_by_one,
    "workers": several_workers,
    "disk": disk,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure distributions, write distribution.csv and the figures to the folder of results, and return the rows.

    tokens  words of the text that the large models are made from
    size    bytes of rows that are made at once, such as "4 GiB"
    only    parts to measure; the rate at which the device writes is always measured

    Distributions are compared with those of plain array code before they are timed, and WrongResult is raised when one
    differs. Rows are printed and saved part by part.
    """
    parts, clusters = options.parts(PARTS), options.clusters()
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    size_bytes = parse_bytes(SIZE[options.device] if options.size is None else options.size, "size")
    if size_bytes < ROW_ALIGNMENT_BYTES:
        raise InputError(f"size is {size_bytes} bytes but must be at least {ROW_ALIGNMENT_BYTES}")
    suite = open_suite("distribution", options)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = DistributionBench(suite, tokens, size_bytes, clusters, Path(place))
        for part in [ceilings, *(PARTS[name] for name in parts)]:
            suite.measure_part(part, shared)
    from mgpu_ngram.benchmarks.distribution import figures as distribution_figures

    distribution_figures.draw(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
