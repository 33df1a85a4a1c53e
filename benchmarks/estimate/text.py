"""Text in the page cache to a queryable model on the device: the whole job but writing, by one worker or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.cluster.words import FILE_TOKENS, ZipfCorpus
from mgpu_ngram.benchmarks.estimate.checks import check_entries, check_sums, entries_of
from mgpu_ngram.benchmarks.estimate.ids import ORACLE_TOKENS, ORDER, ROUNDS
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.inputs import oracles
from mgpu_ngram.cluster.executor import Executor, Handle
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.ngrams.kneser_ney_discounts import FALLBACK
from mgpu_ngram.core.ngrams.smoothing import KNESER_NEY
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as job
from mgpu_ngram.jobs.estimate.assemble import Estimate
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.run import EstimateResult
from mgpu_ngram.stages.run_file import ClusterConfig

TARGET = 750e6  # tokens/s on one H200
TARGET_SPEEDUP = {2: 1.8, 4: 3.4}  # over one H200
LARGE_TOKENS, LARGE_WORKERS, LARGE_SECONDS = 1_000_000_000, 4, 4.0  # a target by itself
ENOUGH_SECONDS = 45.0  # no further round starts after this time
TEXT_TO_MODEL, BY_WORKERS = "estimate/text to model", "estimate/text to model by workers"
AS_LMPLZ = "estimate/text to model as lmplz"
EXACT: dict[str, Any] = {"discount_fallback": [], "exact_discounts": True}  # settings of modified Kneser-Ney
SMOOTHINGS: dict[str, dict[str, Any]] = {
    "witten-bell": {},
    "absolute": {"discount": [0.7]},  # given, because a small text has no computable discount
    "good-turing": {},
    "additive": {},
}


@dataclass
class EstimateBench:
    """The rows, the numbers of workers, and a folder with a generated text, for all parts of the bench.

    real  a text that is not generated, for the part that compares with lmplz
    """

    suite: Suite
    tokens: int
    clusters: list[int]
    folder: Path
    real: Path | None = None

    @cached_property
    def corpus(self) -> ZipfCorpus:
        self.suite.say(f"writing a text of {self.tokens:,} words")
        return ZipfCorpus.generate(self.folder, self.tokens, FILE_TOKENS[self.suite.device])


def text(bench: EstimateBench) -> None:
    """Rows: the whole in this process, its stages, and the whole in the default mode, with lmplz's slip."""
    suite, corpus = bench.suite, bench.corpus
    suite.say("text to a model")
    executor = LocalExecutor(suite.device)
    try:
        results = _rounds(bench, executor)
        as_lmplz = _rounds(bench, executor, EXACT | {"exact_discounts": False})
    finally:
        executor.close()
    row: dict[str, Any] = {"items": corpus.totals[0], "unit": TOKENS_PER_SECOND}
    suite.add(
        AS_LMPLZ, corpus.sizes, [result.wall_seconds for result in as_lmplz], baseline=TEXT_TO_MODEL,
        baseline_seconds=median(result.wall_seconds for result in results),
        notes=f"the default, with lmplz's slip; {_notes(as_lmplz[0], corpus.totals[0])}", **row,
    )  # fmt: skip
    suite.add(
        TEXT_TO_MODEL, corpus.sizes, [result.wall_seconds for result in results],
        target=TARGET if suite.device == "gpu" else None, notes=_notes(results[0], corpus.totals[0]), **row,
    )  # fmt: skip
    for stage in results[0].seconds:
        seconds = [result.seconds[stage] for result in results]
        notes = f"summed over {executor.workers} workers"
        suite.add(f"{TEXT_TO_MODEL}, {stage}", corpus.sizes, seconds, notes=notes, **row)


def smoothings(bench: EstimateBench) -> None:
    """Rows: models of plain counts, in this process, beside modified Kneser-Ney."""
    suite, corpus = bench.suite, bench.corpus
    row: dict[str, Any] = {"items": corpus.totals[0], "unit": TOKENS_PER_SECOND}
    executor = LocalExecutor(suite.device)
    try:
        suite.say("text to models by other smoothings")
        kneser_ney = median(result.wall_seconds for result in _rounds(bench, executor))
        for name, settings in SMOOTHINGS.items():
            results = _rounds(bench, executor, {"smoothing": name, **settings})
            suite.add(
                f"{TEXT_TO_MODEL} by {name} smoothing", corpus.sizes, [result.wall_seconds for result in results],
                baseline=KNESER_NEY, baseline_seconds=kneser_ney, notes=_notes(results[0], corpus.totals[0]), **row,
            )  # fmt: skip
    finally:
        executor.close()


def workers(bench: EstimateBench) -> None:
    """A row for each number of workers of a cluster on this host."""
    suite, corpus = bench.suite, bench.corpus
    statistics: list[Any] = []
    for G in bench.clusters:
        suite.say(f"text to a model by {G} workers")
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            results = _rounds(bench, executor)
        finally:
            executor.close()
        statistics.append(results[0].statistics)
        if statistics[-1] != statistics[0]:
            raise WrongResult(f"{G} workers make another model than {bench.clusters[0]}; not timed")
        _by_workers(suite, corpus, G, results)


def _by_workers(suite: Suite, corpus: ZipfCorpus, G: int, results: list[EstimateResult]) -> None:
    tokens = corpus.totals[0]
    one = next((r for r in suite.rows if r.kernel == BY_WORKERS and r.sizes == f"{corpus.sizes} workers=1"), None)
    target, notes = None, _notes(results[0], tokens)
    if suite.device == "gpu" and G in TARGET_SPEEDUP and one and one.rate:
        target = TARGET_SPEEDUP[G] * one.rate
        notes += f"; target {TARGET_SPEEDUP[G]}x over one"
    if suite.device == "gpu" and G == LARGE_WORKERS and tokens >= LARGE_TOKENS:
        target = max(target or 0, LARGE_TOKENS / LARGE_SECONDS)
        notes += f", and {LARGE_TOKENS:,} tokens in {LARGE_SECONDS:g} s"
    suite.add(
        BY_WORKERS, f"{corpus.sizes} workers={G}", [result.wall_seconds for result in results],
        items=tokens, unit=TOKENS_PER_SECOND, target=target, baseline="workers=1" if one else "",
        baseline_seconds=one.median_seconds if one else None, notes=notes,
    )  # fmt: skip


def _notes(result: EstimateResult, tokens: int) -> str:
    notes = f"{sum(result.statistics.kept.values()):,} n-grams; transport {result.transport}"
    if result.peak_device_bytes:
        notes += f"; at most {result.peak_device_bytes / tokens:.0f} bytes of a device for each token"
    return notes


def _rounds(bench: EstimateBench, executor: Executor, settings: dict[str, Any] = EXACT) -> list[EstimateResult]:
    """Return the results of several rounds. First check a small Kneser-Ney model, and a whole model as warm-up."""
    if "smoothing" not in settings:
        _check_beginning(bench, executor)
    results: list[EstimateResult] = []
    while len(results) <= ROUNDS and (len(results) < 2 or sum(r.wall_seconds for r in results) < ENOUGH_SECONDS):
        use = None if results else check_sums_of
        result, _ = estimated(bench.corpus.paths, executor, bench.folder, use, settings)
        results.append(result)
        oracles.check_total(result.tokens, bench.corpus.totals[0], "words of a model's text")
    return results[1:]  # the first warms up


def estimated(
    paths: list[str],
    executor: Executor,
    folder: Path,
    use: Callable[[Estimate], Any] | None = None,
    settings: dict[str, Any] = EXACT,
) -> tuple[EstimateResult, Any]:
    """Return the result of a job that writes no model, and the result of `use`, called where the model was made."""
    config = EstimateConfig(paths, order=ORDER, **settings)
    source, place = open_corpus(paths), folder / "model"

    def used(model: Handle, result: EstimateResult) -> tuple[EstimateResult, Any]:
        [seconds] = executor.gather([executor.call(_seconds_of, model)])
        found = executor.fetch(executor.call(use, model)) if use else None
        return replace(result, seconds=add_seconds(result.seconds, seconds)), found

    return job.estimated(config, source, RunContext(executor, place), place, used)


def _seconds_of(model: Estimate) -> dict[str, float]:
    return model.seconds


def check_sums_of(model: Estimate) -> None:
    check_sums(model.trie)


def _entries_of(model: Estimate) -> Any:
    return entries_of(model.trie, model.words)


def _check_beginning(bench: EstimateBench, executor: Executor) -> None:
    """The first lines beside plain Python, n-gram by n-gram."""
    with open(bench.corpus.paths[0], "rb") as file:
        lines = file.readlines(6 * min(ORACLE_TOKENS, bench.tokens))
    head = bench.folder / "head.txt"
    head.write_bytes(b"".join(lines))
    _, found = estimated([str(head)], executor, bench.folder, _entries_of)
    expected = oracles.kneser_ney([line.split() for line in lines], ORDER, FALLBACK)
    check_entries(found, expected, "text")
