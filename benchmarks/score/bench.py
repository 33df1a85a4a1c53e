"""`mgpu-ngram bench score`: the experiments of gLM (Bogoychev and Lopez, 2016) with this engine, and beyond them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, open_suite
from mgpu_ngram.benchmarks.inputs.scoring_subjects import TEXT_WORDS, Subject
from mgpu_ngram.benchmarks.score.ceilings import ceilings
from mgpu_ngram.benchmarks.score.drop_in import drop_in
from mgpu_ngram.benchmarks.score.effects import constants, figure9, figure10, stumps
from mgpu_ngram.benchmarks.score.rates import table3, table4, table5
from mgpu_ngram.benchmarks.score.sustained import sustained
from mgpu_ngram.benchmarks.score.text import load, text
from mgpu_ngram.benchmarks.score.workers import workers as several_workers

TOKENS = {"gpu": 8_800_000, "cpu": 300_000}  # tokens of the text; a GPU's model has as many n-grams as the peers'
MIN_TOKENS = 1_000
FLAGS = {"tokens", "workers", "only", "folder"}
INDEXES = "kernels.score.score_by_edges", "kernels.score.score_tokens"
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "score/": INDEXES,
    "score/bound": (),
    "score/drop-in": ("kenlm",),
    "score/kenlm": (),
    "score/load": ("engine.trie.open_model",),
    "score/on": ("engine.score.score_chunk", *INDEXES),
    "score/reads": (),
    "score/score": ("engine.score.score_chunk", *INDEXES),
    "score/short": ("engine.score.score_chunk", *INDEXES),
    "score/table3 kenlm": (),
    "score/text": ("jobs.score.run",),
}


class ScoreBench:
    """The rows, a folder for files, and a model that is made once, for all parts of the bench."""

    def __init__(self, suite: Suite, tokens: int, clusters: list[int], folder: Path):
        self.suite, self.tokens, self.clusters, self.folder = suite, tokens, clusters, folder

    @cached_property
    def subject(self) -> Subject:
        self.suite.say(f"a model of {self.tokens:,} words")
        return Subject.make(self.tokens, TEXT_WORDS[self.suite.device], self.suite.device)


PARTS: dict[str, Callable[[ScoreBench], None]] = {
    "table3": lambda bench: table3(bench.suite, bench.subject, bench.folder),
    "ceilings": lambda bench: ceilings(bench.suite, bench.subject),
    "text": lambda bench: text(bench.suite, bench.subject, bench.folder),
    "load": lambda bench: load(bench.suite, bench.subject, bench.folder),
    "table4": lambda bench: table4(bench.suite, bench.subject),
    "figure10": lambda bench: figure10(bench.suite, bench.subject),
    "figure9": lambda bench: figure9(bench.suite, bench.subject),
    "table5": lambda bench: table5(bench.suite, bench.subject),
    "stumps": lambda bench: stumps(bench.suite, bench.subject),
    "constants": lambda bench: constants(bench.suite, bench.subject),
    "sustained": lambda bench: sustained(bench.suite, bench.subject),
    "workers": lambda bench: several_workers(bench.suite, bench.tokens, bench.clusters),
    "drop-in": lambda bench: drop_in(bench.suite, bench.subject, bench.folder),
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure scoring, write score.csv and the figures to the folder of results, and return the rows.

    tokens  words of the text that the model is made from

    Scores are compared with those of plain array code before they are timed, and WrongResult is raised when one
    differs. Rows are printed and saved part by part.
    """
    parts, clusters = options.parts(PARTS), options.clusters()
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    suite = open_suite("score", options)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = ScoreBench(suite, tokens, clusters, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    from mgpu_ngram.benchmarks.score import figures as score_figures

    score_figures.draw(suite.rows, Path(options.results))
    return [asdict(row) for row in suite.rows]
