"""Rescore n-best lists: lines in, lines with new features and totals out, each list sorted by total."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.models.model_head import check_models, identify
from mgpu_ngram.core.nbest.files import kaldi_lists, open_lattices, open_lists
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, check_text_file, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.core.yaml_file import read_yaml
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.rescore.lines import ListJoiner, NBestFormat
from mgpu_ngram.engine.rescore.rescore_chunk import RescoreCounts, RescoreOptions, rescore_chunk
from mgpu_ngram.engine.score.score_chunk import BYTES_PER_TEXT_BYTE
from mgpu_ngram.jobs.budget import chunks_ahead, limited_to, make_budget, text_within
from mgpu_ngram.jobs.chunk_tasks import results_of
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.rescore.config import ListsConfig, RescoreConfig
from mgpu_ngram.jobs.rescore.lattices import lattice_lists
from mgpu_ngram.jobs.score.run import AHEAD, model_options, text_per_task

FORMAT = "mgpu_ngram rescored lists"
NBEST_FILE, BEST_FILE = "nbest", "best.txt"  # names in the folder of a run; lists have the suffix of their format
RESULT_BYTES = 2  # for each byte of text, about

TakeBytes = Callable[[np.ndarray], None]
L = TypeVar("L", bound=ListsConfig)


@dataclass(frozen=True)
class RescoreTotals:
    """Totals of all lists.

    words    number of words of all hypotheses, each with its end
    oovs     number of unknown words by name of the model
    rejects  number of lattices and files of lattices that could not be read
    """

    lists: int
    hypotheses: int
    words: int
    oovs: dict[str, int]
    rejects: int


@dataclass(frozen=True)
class RescoreResult:
    """The result of a run; `path` is None if it wrote no file."""

    path: Path | None
    totals: RescoreTotals
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str

    @property
    def hypotheses_per_second(self) -> float:
        return self.totals.hypotheses / self.wall_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        rate = {"hypotheses_per_second": self.hypotheses_per_second}
        return asdict(self) | {"path": self.path and str(self.path)} | rate


def open_inputs(config: ListsConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    if config.lattices != "no":
        return open_lattices(config.text, config.text_column)
    return open_lists(config.text, config.text_column)


def check_inputs(config: ListsConfig, made: Collection[str] = ()) -> None:
    """Raise InputError for a file of models, costs or weights that cannot be used.

    made  models and weights that an earlier job writes
    """
    check_models(config.lm, made)
    for path in config.costs.values():
        find_files([path])
    if config.weights not in made:
        with_weights(config)


def with_weights(config: L) -> L:
    """Return the settings with the weights of the file that they name."""
    if not isinstance(config.weights, str):
        return config
    weights = read_yaml(config.weights, "a mapping from names of features to weights")
    try:
        return replace(config, weights=weights)
    except InputError as error:
        raise InputError(f"{config.weights}: {error}") from None


def plan(config: RescoreConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    return {"job": config.name} | lists_plan(config, context) | {"best": config.best}


def lists_plan(config: ListsConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of a job that scores lists."""
    corpus = open_inputs(config)
    size = config.chunk_bytes or text_per_task(corpus, context.workers, context.device)
    return {
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "chunks": len(corpus.chunks(size)),
        "workers": context.workers,
        "device": context.device,
        "lm": config.lm,
        "weights": weights_of(config) if isinstance(config.weights, dict) else config.weights,
    }


def weights_of(config: ListsConfig) -> dict[str, tuple[float, ...]]:
    """Return the weights of the total, of the features of the lists and of the models' features, in this order."""
    return config.list_weights | {n: (w,) for n, w in zip(config.feature_names, config.model_weights, strict=True)}


def changed_since(config: RescoreConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, models, and names and sizes of inputs."""
    config = with_weights(config)
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: RescoreConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    made_of = inputs_of(config, corpus)
    return made_of | {"options": made_of["options"] | {"best": config.best}}


def inputs_of(config: ListsConfig, corpus: Corpus) -> dict[str, Any]:
    """Return the inputs and options of a job that scores lists."""
    return {
        "inputs": corpus.described,
        "models": [{"path": path, "identity": identify(path)} for path in config.lm],
        "options": {
            "names": list(config.feature_names),
            "weights": config.weights,
            "kaldi": config.kaldi,
            "costs": config.costs,
            "lattices": config.lattices,
            "n_best": config.n_best,
        },
    }


def check_file(path: str | Path, overwrite: bool) -> None:
    """Raise InputError unless lists may be written to the path."""
    check_text_file(path, overwrite, (".jsonl",))


def run(
    config: RescoreConfig, context: RunContext, inputs: Corpus | None = None, take: TakeBytes | None = None
) -> RescoreResult:
    """Rescore lists and write OUT/nbest.txt (for JSON lines nbest.jsonl) or OUT/best.txt, and OUT/manifest.json.

    For a single file, it writes only the lines.

    inputs  an open corpus instead of config.text
    take    called with lines, in order, when the context has no output

    Not resumable.
    """
    config, corpus = with_weights(config), inputs or open_inputs(config)
    if context.output is None:
        return rescore(config, context, corpus, take or (lambda lines: None))
    if context.single_file:
        check_file(context.output, context.overwrite)
        path = Path(os.path.realpath(context.output))
        with new_file(path) as sink:
            return replace(rescore(config, context, corpus, sink.append), path=path)
    made_of = _made_of(config, corpus)
    with Output.create(context.output, context.overwrite) as out:
        name = BEST_FILE if config.best else f"{NBEST_FILE}.{'jsonl' if _is_json(corpus) else 'txt'}"
        with new_file(out.folder / name) as sink:
            result = rescore(config, context, corpus, sink.append)
        made = {"totals": asdict(result.totals), "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | made, FORMAT)
        out.commit()
    return replace(result, path=out.path)


@dataclass(frozen=True)
class ListTasks:
    """The tasks of a run that read and score lists: a task for each chunk of a corpus, at most `ahead` in flight.

    rejects  number of lattices and files of lattices that could not be read; the corpus is made of the others
    """

    executor: Executor
    corpus: Corpus
    chunk_bytes: int
    ahead: int
    options: RescoreOptions
    rejects: int

    def results(self, task: Callable[[Chunk, RescoreOptions], Any], doing: str, progress: Progress) -> Iterator[Any]:
        """Yield the result of task(chunk, options) for each chunk, in order. Results have `lines`, a number."""
        chunks = self.corpus.chunks(self.chunk_bytes)
        given = chunks, self.chunk_bytes, self.ahead
        for made, chunks_done in results_of(self.executor, *given, doing, task, self.options):
            yield made
            progress.advance(chunks_done, made.counts.lines)


def prepare(config: ListsConfig, context: RunContext, corpus: Corpus, best: bool = False) -> ListTasks:
    """Return the tasks of a run. Reads archives of Kaldi, and searches lattices."""
    executor = context.executor
    if config.kaldi:
        corpus = kaldi_lists(corpus, config.costs)
    chunk_bytes = config.chunk_bytes or text_per_task(corpus, executor.workers, executor.device)
    ahead = AHEAD * executor.workers
    if context.memory != MemoryConfig():
        budget = make_budget(context.memory, executor)
        chunk_bytes = config.chunk_bytes or text_within(budget, BYTES_PER_TEXT_BYTE, chunk_bytes)
        ahead = chunks_ahead(budget, executor.workers, RESULT_BYTES * chunk_bytes, AHEAD)
        executor = limited_to(executor, context.memory)
    device, threads, text_bytes = executor.device, executor.threads, corpus.text_bytes
    models = tuple(model_options(path, text_bytes, executor, config.verify) for path in config.lm)
    rejects = 0
    if config.lattices != "no":
        corpus, rejects = lattice_lists(config, corpus, executor, context.progress, models)
        chunk_bytes = config.chunk_bytes or text_per_task(corpus, executor.workers, device)
    options = RescoreOptions(
        models=models, names=config.feature_names, weights=config.list_weights, model_weights=config.model_weights,
        format=NBestFormat(_is_json(corpus), best, config.of_utterances), device=device, block_bytes=chunk_bytes,
        threads=threads,
    )  # fmt: skip
    return ListTasks(executor, corpus, chunk_bytes, ahead, options, rejects)


def missing_features(config: ListsConfig, counts: RescoreCounts) -> list[str]:
    """Return the features that have a weight but are in no line so far."""
    return [name for name in list(config.list_weights)[1:] if name not in counts.found]


def check_found(config: ListsConfig, counts: RescoreCounts) -> None:
    """Raise InputError for a feature that has a weight but is in no line."""
    missing = missing_features(config, counts)
    if missing and counts.lines:
        raise InputError(f"no line has the feature {missing[0]}, which has a weight; correct its name or leave it out")


def totals_of(config: ListsConfig, lists: int, counts: RescoreCounts, rejects: int) -> RescoreTotals:
    """Return the totals of a run."""
    oovs = dict(zip(config.feature_names, counts.oovs.tolist(), strict=True))
    return RescoreTotals(lists, counts.lines, counts.words, oovs, rejects)


def rescore(config: RescoreConfig, context: RunContext, corpus: Corpus, take: TakeBytes) -> RescoreResult:
    """Rescore a corpus; call `take` with the lines, in order.

    The driver holds a few chunks at once, and the lines of a list until the list ends. Until every feature with a
    weight has occurred, it holds all lines.
    """
    start = time.perf_counter()
    work = prepare(config, context, corpus, config.best)
    joiner = ListJoiner(config.best, work.options.format.json)
    counts, progress = RescoreCounts.none(len(config.lm)), context.progress
    seconds: dict[str, float] = {}
    waiting: list[np.ndarray] = []
    progress.start("rescore", len(work.corpus.chunks(work.chunk_bytes)), "chunks", "hypotheses")
    for made in work.results(rescore_chunk, "rescoring", progress):
        counts, seconds = counts.plus(made.counts), add_seconds(seconds, made.seconds)
        for part in made.parts:
            waiting += joiner.add(part)
        if not missing_features(config, counts):
            _take_all(waiting, take)
    waiting += joiner.close()
    progress.finish()
    check_found(config, counts)
    _take_all(waiting, take)
    executor, wall = context.executor, time.perf_counter() - start
    totals = totals_of(config, joiner.lists, counts, work.rejects)
    return RescoreResult(None, totals, seconds, wall, executor.workers, executor.device, executor.transport)


def _take_all(waiting: list[np.ndarray], take: TakeBytes) -> None:
    for lines in waiting:
        take(lines)
    waiting.clear()


def _is_json(corpus: Corpus) -> bool:
    """Return whether lists are JSON lines."""
    return any(source.column and source.format != "parquet" for source in corpus.sources)
