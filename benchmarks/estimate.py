"""`mgpu-ngram bench estimate`: Kneser-Ney models from ids and from text, on one device and several, beside lmplz."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.cluster import clusters_of, parts_of
from mgpu_ngram.benchmarks.estimate_files import write
from mgpu_ngram.benchmarks.estimate_ids import ids
from mgpu_ngram.benchmarks.estimate_peers import lmplz
from mgpu_ngram.benchmarks.estimate_text import Run, text
from mgpu_ngram.benchmarks.estimate_text import workers as several_workers
from mgpu_ngram.benchmarks.rows import one_line
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import InputError

TOKENS = {"gpu": 200_000_000, "cpu": 1_000_000}
MIN_TOKENS = 2_000
PARTS: dict[str, Callable[[Run], None]] = {
    "ids": lambda run: ids(run.suite, run.tokens),
    "text": text,
    "workers": several_workers,
    "write": lambda run: write(run.suite, run.tokens, run.folder),
    "lmplz": lmplz,
}


def bench(
    device: str,
    tokens: int | None,
    results: str | Path,
    workers: str | None = None,
    only: str | None = None,
    folder: str | None = None,
    text_file: str | None = None,
) -> list[dict[str, Any]]:
    """Measure estimating, write estimate.csv and the figure to the folder `results`, and return the rows.

    device   "cpu" or "gpu"
    tokens   words of the text that models are made from; by device when None
    workers  numbers of workers, such as "1,2,4"; as many GPUs as there are, or 1 and 2 on a CPU, when None
    only     parts to measure, by name or by number from 1; all when None. What the device copies is always measured
    folder   where texts and models are written; a temporary one when None
    text_file  what the part lmplz makes a model of, in the place of a generated text

    The model of a small text is compared with plain Python, those that are timed by their sizes and sums, and
    WrongResult is raised when one is wrong. Rows are told and saved part by part.
    """
    try:
        from mgpu_ngram.benchmarks import estimate_figures
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    parts, clusters = parts_of(only, PARTS), clusters_of(workers, device)
    tokens = TOKENS[device] if tokens is None else tokens
    if tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens} but must be at least {MIN_TOKENS}")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; make it, or leave it out")
    if text_file is not None and not Path(text_file).is_file():
        raise InputError(f"{text_file}: no such file; give a text, or leave out --text")
    suite = Suite(device, Path(results) / "estimate.csv")
    suite.say(f"{suite.name}; {suite.version}")
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=folder) as place:
        run = Run(suite, tokens, clusters, Path(place), Path(text_file).absolute() if text_file else None)
        for part in parts:
            before = len(suite.rows)
            PARTS[part](run)
            suite.release()
            for row in suite.rows[before:]:
                suite.say(one_line(row))
            suite.save()
    estimate_figures.draw(suite.rows, Path(results))
    return [asdict(row) for row in suite.rows]
