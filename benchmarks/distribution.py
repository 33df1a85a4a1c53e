"""`mgpu-ngram bench distribution`: the experiments of giLM (Li, 2018) with this engine, and beyond them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.cluster import clusters_of, parts_of
from mgpu_ngram.benchmarks.distribution_cases import Run
from mgpu_ngram.benchmarks.distribution_compact import compact, top
from mgpu_ngram.benchmarks.distribution_files import disk
from mgpu_ngram.benchmarks.distribution_limits import ceilings
from mgpu_ngram.benchmarks.distribution_rates import dense, peers, small
from mgpu_ngram.benchmarks.distribution_steps import one_by_one, steps
from mgpu_ngram.benchmarks.distribution_thesis import order, saturation, throughput
from mgpu_ngram.benchmarks.distribution_workers import workers as several_workers
from mgpu_ngram.benchmarks.rows import one_line
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import parse_bytes
from mgpu_ngram.engine.row_options import ROW_ALIGNMENT_BYTES

TOKENS = {"gpu": 8_800_000, "cpu": 300_000}  # of the large models: on a GPU as many n-grams as the peers' model has
SIZE = {"gpu": "20 GiB", "cpu": "256 MiB"}  # of rows at once
MIN_TOKENS = 1_000
PARTS: dict[str, Callable[[Run], None]] = {
    "dense": dense,
    "small": small,
    "peers": peers,
    "top": top,
    "compact": compact,
    "saturation": saturation,
    "throughput": throughput,
    "order": order,
    "steps": steps,
    "one_by_one": one_by_one,
    "workers": several_workers,
    "disk": disk,
}


def bench(
    device: str,
    tokens: int | None,
    size: str | int | None,
    results: str | Path,
    workers: str | None = None,
    only: str | None = None,
    folder: str | None = None,
) -> list[dict[str, Any]]:
    """Measure distributions, write distribution.csv and the figures to the folder `results`, and return the rows.

    device   "cpu" or "gpu"
    tokens   words of the text that the large models are made from; by device when None
    size     bytes of rows that are made at once, such as "4 GiB"; by device when None
    workers  numbers of workers, such as "1,2,4"; as many GPUs as there are, or 1 and 2 on a CPU, when None
    only     parts to measure, by name or by number from 1; all when None. What the device writes is always measured
    folder   where models and distributions are written; a temporary one when None

    Distributions are compared with those of plain array code before they are timed, and WrongResult is raised when one
    differs. Rows are told and saved part by part.
    """
    try:
        from mgpu_ngram.benchmarks import distribution_figures
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    parts, clusters = parts_of(only, PARTS), clusters_of(workers, device)
    tokens = TOKENS[device] if tokens is None else tokens
    if tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens} but must be at least {MIN_TOKENS}")
    size_bytes = parse_bytes(SIZE[device] if size is None else size, "size")
    size_bytes -= size_bytes % ROW_ALIGNMENT_BYTES
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; make it, or leave it out")
    suite = Suite(device, Path(results) / "distribution.csv")
    suite.say(f"{suite.name}; {suite.version}")
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=folder) as place:
        run = Run(suite, tokens, size_bytes, clusters, Path(place))
        for part in [ceilings, *(PARTS[name] for name in parts)]:
            before = len(suite.rows)
            part(run)
            suite.release()
            for row in suite.rows[before:]:
                suite.say(one_line(row))
            suite.save()
    distribution_figures.draw(suite.rows, Path(results))
    return [asdict(row) for row in suite.rows]
