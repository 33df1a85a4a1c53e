"""Filter documents by perplexity: shards in; shards out with new fields and without the dropped documents."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mgpu_ngram.cluster.executor import Executor, Handle, windowed
from mgpu_ngram.core.documents.buckets import NO_BUCKET, Rules, read_cutoffs
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.models.model_head import check_models, identify
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import COPY_BYTES, Output, check_not_input, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.filter.cutoffs import find_cutoffs
from mgpu_ngram.engine.filter.files import open_shards, output_name
from mgpu_ngram.engine.filter.page import filter_page
from mgpu_ngram.engine.filter.shard import (
    SCORES_ENTRY,
    SHARD_ENTRY,
    DocumentModel,
    FilterOptions,
    rejects_name,
    score_shard,
    shard_name,
    write_shard,
)
from mgpu_ngram.engine.filter.stats import FilterStats
from mgpu_ngram.engine.filter.subwords import identify_subwords, open_subwords
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.score.score_chunk import ScoreOptions
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.filter.config import FilterConfig
from mgpu_ngram.jobs.filter.models import ModelPaths, model_paths
from mgpu_ngram.jobs.score.run import model_options

FORMAT = "mgpu_ngram filtered documents"
DOCUMENTS_FOLDER, REJECTS_FILE, REPORT_FILE = "documents", "rejects.jsonl", "report.html"  # names in a run's folder
BLOCK_BYTES = {"cpu": 4 << 20, "gpu": 16 << 20}
AHEAD = 2  # shards per worker that wait or are filtered


@dataclass(frozen=True)
class FilterResult:
    """The result of a run.

    cutoffs  cut-offs of each language; the key "" stands for all languages
    """

    path: Path
    stats: FilterStats
    cutoffs: dict[str, tuple[float, ...]]
    input_bytes: int
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str
    resumed: int  # shards that an earlier run had finished

    @property
    def bytes_per_second(self) -> float:
        """Stored bytes of the inputs per second."""
        return self.input_bytes / self.wall_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        values = {name: value for name, value in vars(self).items() if name not in ("stats", "path")}
        values["cutoffs"] = _finite(self.cutoffs)
        return {"path": str(self.path)} | self.stats.summary() | values | {"bytes_per_second": self.bytes_per_second}


def _finite(cutoffs: dict[str, tuple[float, ...]]) -> dict[str, list[float | None]]:
    """Return cut-offs for JSON, where infinity becomes null."""
    return {name: [value if math.isfinite(value) else None for value in values] for name, values in cutoffs.items()}


def open_inputs(config: FilterConfig) -> Corpus:
    """Return the documents that a config names. Raises InputError if they cannot be used."""
    return open_shards(config.text, config.text_column, config.language)


def check(config: FilterConfig, made: Collection[str] = ()) -> None:
    """Raise InputError unless the models, the tokeniser and the table of cut-offs can be used.

    made  models that an earlier job writes
    """
    for paths in model_paths(config).values():
        check_models([path for path in (paths.model, paths.contrast_model) if path], made)
        if paths.tokenizer:
            open_subwords(os.path.abspath(paths.tokenizer))
    if config.cutoffs:
        read_cutoffs(config.cutoffs, list(config.bucket_ends.values()))


def plan(config: FilterConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    corpus, paths = open_inputs(config), model_paths(config)
    return {
        "job": config.name,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "passes": 2 if _from_documents(config) else 1,
        "workers": context.workers,
        "device": context.device,
        "model": config.model,
        "tokenizer": config.tokenizer,
        "contrast_model": config.contrast_model,
        "fields": config.fields(_has_contrast(paths)),
        "bucket_by": config.bucket_by,
        "percentiles": config.bucket_ends if config.buckets else {},
        "limits": config.bucket_ends if config.fixed_buckets else {},
        "sample": config.sample,
    }


def changed_since(config: FilterConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, files, and names and sizes of inputs."""
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: FilterConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    left_out = ("text", "model", "tokenizer", "contrast_model", "cutoffs", "name", "block_bytes", "verify")
    identity: dict[str, dict[str, str]] = {"model": {}, "tokenizer": {}, "contrast_model": {}}
    for name, paths in model_paths(config).items():
        for kind, path in vars(paths).items():
            if path:
                identity[kind][name] = identify_subwords(path) if kind == "tokenizer" else identify(path)
    ends = list(config.bucket_ends.values())
    table = config.cutoffs and {"path": config.cutoffs, "cutoffs": read_cutoffs(config.cutoffs, ends)}
    return {
        "inputs": corpus.described,
        **{kind: {"path": getattr(config, kind), "identity": found} for kind, found in identity.items()},
        "table": table,
        "options": {name: value for name, value in asdict(config).items() if name not in left_out},
    }


def _files_of(config: FilterConfig, corpus: Corpus) -> list[str]:
    """Return the local files that a run reads."""
    models = [path for paths in model_paths(config).values() for path in vars(paths).values() if path]
    return [*corpus.local_files, *models, *filter(None, [config.cutoffs])]


def _has_contrast(paths: dict[str, ModelPaths]) -> bool:
    return any(some.contrast_model for some in paths.values())


def _from_documents(config: FilterConfig) -> bool:
    """Return whether cut-offs are percentiles of the documents, which takes a pass of its own."""
    return bool(config.buckets) and not config.cutoffs


def run(config: FilterConfig, context: RunContext, inputs: Corpus | None = None) -> FilterResult:
    """Write the kept documents to OUT/documents, a file for each shard, and a report beside them.

    inputs  open documents instead of config.text

    OUT gets rejects.jsonl, report.html and manifest.json. Finished shards are kept in OUT.checkpoint until all are
    finished; an interrupted run can be resumed.
    """
    start = time.perf_counter()
    corpus = inputs or open_inputs(config)
    check(config)
    check_not_input(context.target, _files_of(config, corpus))
    made_of = _made_of(config, corpus)
    identity = made_of | {"inputs": corpus.states, "versions": {"mgpu-ngram": VERSION}}
    with (
        Output.create(context.target, context.overwrite) as out,
        Checkpoint.open(out.path, identity, context.resume, context.overwrite) as checkpoint,
    ):
        job = _Shards(config, context, corpus, checkpoint)
        job.write()
        job.collect(out.folder)
        if config.language and job.stats.documents and not job.stats.languages:
            checkpoint.discard()  # of no use for another field
            raise InputError(
                f"no document has a text in the field {config.language!r}; "
                "name the field of the language with language_column"
            )
        names = {key or "": values for key, values in job.rules.cutoffs.items()}
        if config.report:
            title = f"{config.name}: {config.model}"
            page = filter_page(job.stats, list(config.bucket_ends), names, title, config.bucket_by)
            with new_file(out.folder / REPORT_FILE) as sink:
                sink.write(page.encode())
        made = {"totals": job.stats.summary(), "cutoffs": _finite(names), "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | made, FORMAT)
        out.commit()
        checkpoint.discard()
    context.progress.finish()
    if job.stats.rejects:
        records = job.stats.rejects + job.stats.documents
        reasons = out.path / REJECTS_FILE
        warn(f"{job.stats.rejects:,} of {records:,} records could not be read; {reasons} has the reasons")
    _warn_of_no_figures(config, job.stats, names)
    executor = context.executor
    return FilterResult(
        path=out.path, stats=job.stats, cutoffs=names, input_bytes=corpus.size_bytes, seconds=job.seconds,
        wall_seconds=time.perf_counter() - start, workers=executor.workers, device=executor.device,
        transport=executor.transport, resumed=job.resumed,
    )  # fmt: skip


def _warn_of_no_figures(config: FilterConfig, stats: FilterStats, cutoffs: Mapping[str, Any]) -> None:
    """Warn if all documents lack percentiles, a model or cut-offs."""
    if _from_documents(config) and not cutoffs:
        figure = f"a {config.bucket_by}" + " and a language" * bool(config.language)
        warn(f"no document has {figure}, so there are no percentiles; all documents have the bucket 'all'")
    elif config.by_language and stats.documents and not stats.words:
        known = ", ".join(sorted(model_paths(config)))
        warn(f"no document has a perplexity: none has words and a language with a model, {known}")
    elif config.cutoffs and stats.words and set(stats.buckets) == {NO_BUCKET}:
        known = ", ".join(sorted(cutoffs))
        warn(f"all documents have the bucket 'all': none has words and a language of {config.cutoffs}, {known}")


class _Shards:
    """The shards of a run.

    stats    of the shards that are done, all of them after `collect`
    resumed  shards that an earlier run had finished
    """

    def __init__(self, config: FilterConfig, context: RunContext, corpus: Corpus, checkpoint: Checkpoint):
        self.config, self.corpus, self.progress = config, corpus, context.progress
        self.executor: Executor = limited_to(context.executor, context.memory)
        self.checkpoint, self.folder = checkpoint, str(checkpoint.entries_folder)
        self.executor.check_folder(self.folder)
        device, paths = self.executor.device, model_paths(config)
        text_bytes = corpus.text_bytes // len(paths)
        self.options = FilterOptions(
            models={name: self._model(some, text_bytes) for name, some in paths.items()}, language=config.language,
            fields=config.fields(_has_contrast(paths)), normalize=config.normalize, sentences=config.unit,
            block_bytes=config.block_bytes or BLOCK_BYTES[device], device=device,
            threads=self._threads(len(corpus.sources)),
        )  # fmt: skip
        self.seconds: dict[str, float] = {}
        self.stats, self.resumed = FilterStats(), 0
        self.rules = Rules()

    def _threads(self, shards: int) -> int:
        """Return the threads of a shard's task: with few shards, a task also gets the threads of idle tasks."""
        busy = max(1, min(shards, self.executor.tasks_per_process))
        return max(1, self.executor.threads * self.executor.tasks_per_process // busy)

    def _model(self, paths: ModelPaths, text_bytes: int) -> DocumentModel:
        def scoring(path: str) -> ScoreOptions:
            return model_options(path, text_bytes, self.executor, self.config.verify)

        tokenizer = os.path.abspath(paths.tokenizer) if paths.tokenizer else ""
        return DocumentModel(
            scoring(paths.model), tokenizer, scoring(paths.contrast_model) if paths.contrast_model else None
        )

    def write(self) -> None:
        """Write all shards that an earlier run has not finished."""
        done = self._done()
        self.resumed = len(done)
        scores: dict[int, str] = {}
        config, cutoffs = self.config, dict[str | None, tuple[float, ...]]()
        ends = tuple(config.bucket_ends.values())
        if config.fixed_buckets:
            cutoffs = {None: ends}
        elif config.cutoffs:
            cutoffs = read_cutoffs(config.cutoffs, ends)
        elif _from_documents(config):
            scores = self._score()
            cutoffs = self._percentiles(scores)
            if config.sample:
                scores = {}  # of some documents only
        self.rules = config.rules(cutoffs)
        left = [i for i in range(len(self.corpus.sources)) if i not in done]

        def call(i: int) -> Handle:
            source = self.corpus.sources[i]
            arguments = (i, source, self.options, self.rules, self.folder, scores.get(i))
            return self.executor.call(write_shard, *arguments, label=f"filtering {source.name}")

        self._each("filter", left, call, lambda i, made: made.stats.documents)

    def collect(self, folder: Path) -> None:
        """Move the finished shards into the folder of the output, and join their rejects and stats."""
        (folder / DOCUMENTS_FOLDER).mkdir()
        stats = self._done()
        here = Path(self.folder)
        with new_file(folder / REJECTS_FILE) as sink:
            for i, name in enumerate(_names([output_name(source) for source in self.corpus.sources])):
                with open(here / rejects_name(i), "rb") as rejects:
                    while part := rejects.read(COPY_BYTES):
                        sink.append(part)
                os.rename(here / shard_name(i), folder / DOCUMENTS_FOLDER / name)
                self.stats.add(stats[i])

    def _done(self) -> dict[int, FilterStats]:
        """Return the stats of the finished shards whose files are whole."""
        found = {}
        for entry in self.checkpoint.entries(SHARD_ENTRY):
            i, stats = entry.items[0], FilterStats.of(entry.metadata["stats"])
            sizes = {shard_name(i): stats.size_bytes, rejects_name(i): stats.rejects_bytes}
            paths = {os.path.join(self.folder, name): size for name, size in sizes.items()}
            if all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths.items()):
                found[i] = stats
        return found

    def _score(self) -> dict[int, str]:
        """Score the shards that an earlier run has not scored, or a sample of each; return the paths of the scores."""
        scores = {entry.items[0]: entry.path for entry in self.checkpoint.entries(SCORES_ENTRY)}
        left = [i for i in range(len(self.corpus.sources)) if i not in scores]
        sample = self.config.sample
        most = sample and -(-sample // max(len(self.corpus.sources), 1))

        def call(i: int) -> Handle:
            source = self.corpus.sources[i]
            arguments = (i, source, self.options, self.folder, most)
            return self.executor.call(score_shard, *arguments, label=f"scoring {source.name}")

        def done(i: int, made: Any) -> int:
            scores[i] = made.path
            return int(made.documents)

        self._each("score", left, call, done)
        return scores

    def _percentiles(self, scores: dict[int, str]) -> dict[str | None, tuple[float, ...]]:
        """Return the exact percentiles of all documents, by language if the settings name its field."""
        config, paths = self.config, [path for _, path in sorted(scores.items())]
        ends = list(config.bucket_ends.values())
        arguments = (paths, ends, config.bucket_by, bool(config.language), self.executor.device)
        finding = self.executor.call(find_cutoffs, *arguments, label="finding percentiles")
        cutoffs: dict[str | None, tuple[float, ...]] = self.executor.gather([finding])[0]
        return cutoffs

    def _each(
        self, phase: str, shards: list[int], call: Callable[[int], Handle], done: Callable[[int, Any], int]
    ) -> None:
        """Run a task for each shard; done(shard, value) returns its documents."""
        self.progress.start(phase, len(shards), "shards", "documents")
        number: dict[Handle, int] = {}

        def calls() -> Iterator[Handle]:
            for i in shards:
                handle = call(i)
                number[handle] = i
                yield handle

        def finished(handle: Handle) -> Iterable[Handle]:
            made = self.executor.gather([handle])[0]
            self.seconds = add_seconds(self.seconds, made.seconds)
            self.progress.advance(1, done(number.pop(handle), made))
            return ()

        windowed(self.executor, calls(), AHEAD * self.executor.workers, finished)


def _names(names: list[str]) -> list[str]:
    """Return a file name for each input: the one given, after its number if inputs share one."""
    return names if len(set(names)) == len(names) else [f"{i:05d}-{name}" for i, name in enumerate(names)]
