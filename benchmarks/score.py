"""`mgpu-ngram bench score`: the experiments of gLM (Bogoychev and Lopez, 2016) with this engine, and beyond them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.cluster import clusters_of, parts_of
from mgpu_ngram.benchmarks.rows import one_line
from mgpu_ngram.benchmarks.score_ceilings import ceilings
from mgpu_ngram.benchmarks.score_effects import constants, figure9, figure10, stumps
from mgpu_ngram.benchmarks.score_models import TEXT_WORDS, Subject
from mgpu_ngram.benchmarks.score_rates import table3, table4, table5
from mgpu_ngram.benchmarks.score_text import load, text
from mgpu_ngram.benchmarks.score_workers import workers as several_workers
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import InputError

TOKENS = {"gpu": 8_800_000, "cpu": 300_000}  # of the model: on a GPU as many n-grams as the peers' model has
MIN_TOKENS = 1_000


class Run:
    """What parts share: the rows, a folder for their files, and a model that is made once."""

    def __init__(self, suite: Suite, tokens: int, clusters: list[int], folder: Path):
        self.suite, self.tokens, self.clusters, self.folder = suite, tokens, clusters, folder

    @cached_property
    def subject(self) -> Subject:
        self.suite.say(f"a model of {self.tokens:,} words")
        return Subject.make(self.tokens, TEXT_WORDS[self.suite.device], self.suite.device)


PARTS: dict[str, Callable[[Run], None]] = {
    "table3": lambda run: table3(run.suite, run.subject, run.folder),
    "ceilings": lambda run: ceilings(run.suite, run.subject),
    "text": lambda run: text(run.suite, run.subject, run.folder),
    "load": lambda run: load(run.suite, run.subject, run.folder),
    "table4": lambda run: table4(run.suite, run.subject),
    "figure10": lambda run: figure10(run.suite, run.subject),
    "figure9": lambda run: figure9(run.suite, run.subject),
    "table5": lambda run: table5(run.suite, run.subject),
    "stumps": lambda run: stumps(run.suite, run.subject),
    "constants": lambda run: constants(run.suite, run.subject),
    "workers": lambda run: several_workers(run.suite, run.tokens, run.clusters),
}


def bench(
    device: str,
    tokens: int | None,
    results: str | Path,
    workers: str | None = None,
    only: str | None = None,
    folder: str | None = None,
) -> list[dict[str, Any]]:
    """Measure scoring, write score.csv and the figures to the folder `results`, and return the rows.

    device   "cpu" or "gpu"
    tokens   words of the text that the model is made from; by device when None
    workers  numbers of workers, such as "1,2,4"; as many GPUs as there are, or 1 and 2 on a CPU, when None
    only     parts to measure, by name or by number from 1; all when None
    folder   where texts and models are written; a temporary one when None

    Scores are compared with those of plain array code before they are timed, and WrongResult is raised when one
    differs. Rows are told and saved part by part.
    """
    try:
        from mgpu_ngram.benchmarks import score_figures
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    parts, clusters = parts_of(only, PARTS), clusters_of(workers, device)
    tokens = TOKENS[device] if tokens is None else tokens
    if tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens} but must be at least {MIN_TOKENS}")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; make it, or leave it out")
    suite = Suite(device, Path(results) / "score.csv")
    suite.say(f"{suite.name}; {suite.version}")
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=folder) as place:
        run = Run(suite, tokens, clusters, Path(place))
        for part in parts:
            before = len(suite.rows)
            PARTS[part](run)
            suite.release()
            for row in suite.rows[before:]:
                suite.say(one_line(row))
            suite.save()
    score_figures.draw(suite.rows, Path(results))
    return [asdict(row) for row in suite.rows]
