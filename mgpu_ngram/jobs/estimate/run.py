"""Estimate a model, as KenLM's lmplz or SRILM's ngram-count does: text or counts in, a model or ARPA file out."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mgpu_ngram.cluster.executor import Executor, Handle, ResultLost
from mgpu_ngram.core.counts.counts import Counts
from mgpu_ngram.core.counts.shards import PartLimits
from mgpu_ngram.core.counts.srilm_counts import SrilmCounts
from mgpu_ngram.core.errors import InputError, RunError, warn
from mgpu_ngram.core.inputs.corpus import Chunk, Corpus, open_corpus, open_list
from mgpu_ngram.core.models.model_file import BackoffModel, check_free_file
from mgpu_ngram.core.ngrams.smoothing import METHODS
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.model_layout import FORMAT
from mgpu_ngram.core.storage.output import Output, clear_temporaries, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.memory.budget import Budget, peak_bytes
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.budget import limited
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count.passes import CountPasses
from mgpu_ngram.jobs.count.plan import (
    chunk_bytes,
    count_budget,
    guess,
    num_streams,
)
from mgpu_ngram.jobs.count.run import UNRESERVED_BYTES
from mgpu_ngram.jobs.estimate.assemble import Resources, in_host_memory, save
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.estimation import Estimate, Estimation, Statistics, read_word_file
from mgpu_ngram.jobs.estimate.from_counts import describe, open_counts, parts_of_counts
from mgpu_ngram.jobs.estimate.plan import (
    KEPT_TOKEN_BYTES,
    limits_of_parts,
    model_file,
    most_in_group,
    plan_budgets,
)
from mgpu_ngram.jobs.estimate.text_parts import PartCheckpoint, TextParts

T = TypeVar("T")
MAX_LOSSES = 10  # of workers, with results that Dask cannot make again, between two saves: then the run ends
COUNTED_BY = ("order", "unit", "dtype", "separator_id", "skip_symbols", "text_column")  # settings


@dataclass(frozen=True)
class EstimateResult:
    """An estimated model and its statistics.

    path        path of the model file or the ARPA file
    tokens      number of words of the text, without sentence markers
    types       number of words of the vocabulary, including <unk>, <s> and </s>
    statistics  statistics by order
    seconds     seconds by step, summed over workers
    """

    path: Path | None
    order: int
    tokens: int
    types: int
    statistics: Statistics
    size_bytes: int
    fingerprint: str
    seconds: dict[str, float]
    wall_seconds: float
    workers: int
    device: str
    transport: str
    peak_device_bytes: int
    peak_host_bytes: int
    resumed_chunks: int  # chunks whose words an earlier run had saved
    resumed_parts: int  # parts that an earlier run had made

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.wall_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": str(self.path), "tokens_per_second": self.tokens_per_second}


def open_inputs(config: EstimateConfig) -> Corpus | None:
    """Return the corpus that a config names; None for counts, which an earlier job may make. Raises InputError if it
    cannot be used.
    """
    return None if config.counts else open_corpus(config.corpus, config.unit, config.dtype, config.text_column)


def _opened(
    config: EstimateConfig, inputs: Corpus | None = None
) -> tuple[EstimateConfig, Corpus | Counts | SrilmCounts]:
    """Return (the config with its order, its corpus or counts); `inputs` is an open corpus instead of config.corpus."""
    if config.counts:
        counts = open_counts(config)
        return replace(config, order=config.order or counts.max_order), counts
    corpus = inputs or open_corpus(config.corpus, config.unit, config.dtype, config.text_column)
    return replace(config, order=config.highest), corpus


def run(config: EstimateConfig, context: RunContext, inputs: Corpus | None = None) -> EstimateResult:
    """Write OUT/model.safetensors or OUT/model.arpa, and OUT/manifest.json; only the model for a single file.

    inputs  an open corpus instead of config.corpus
    """
    if context.single_file:
        return _run_to_file(config, context, inputs)
    config, source = _opened(config, inputs)
    with Output.create(context.target, context.overwrite) as out:
        context.executor.check_folder(str(out.folder))
        path = out.folder / model_file(config)

        def save_all(model: Handle, result: EstimateResult) -> EstimateResult:
            result = saved(config, context.executor, model, result, path)
            write_manifest(out.folder, _made_of(config, source) | figures_of(result), FORMAT)
            out.commit()
            return result

        result = estimated(config, source, context, out.path, save_all)
    return replace(result, path=out.path / path.name)


def _run_to_file(config: EstimateConfig, context: RunContext, inputs: Corpus | None) -> EstimateResult:
    """Write the model alone."""
    path = check_free_model(config, context.target, context.overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make folder {path.parent}: {error.strerror}; give another output path") from error
    context.executor.check_folder(str(path.parent))
    config, source = _opened(config, inputs)

    def save_alone(model: Handle, result: EstimateResult) -> EstimateResult:
        clear_temporaries(path)  # no other process writes it while this run has its checkpoint
        return saved(config, context.executor, model, result, path)

    return estimated(config, source, context, path, save_alone)


def check_free_model(config: EstimateConfig, output: str | Path, overwrite: bool) -> Path:
    """Return the absolute path of the model to write. Raises InputError unless it may be created or replaced."""
    check_free_file(output, overwrite, config.format)
    return Path(output).absolute()


def run_to_model(config: EstimateConfig, context: RunContext, inputs: Corpus | None = None) -> BackoffModel:
    """Return the model in host memory. Workers spill to the context's output, a folder; no checkpoint is kept."""
    config, source = _opened(config, inputs)
    context = replace(context, checkpoint_seconds=math.inf, resume=False)

    def fetched(model: Handle, _: EstimateResult) -> BackoffModel:
        task = context.executor.call(in_host_memory, model, config.is_normal)
        found: BackoffModel = context.executor.fetch(task)
        return found

    return estimated(config, source, context, Path(context.target) / "model", fetched)


def estimated(
    config: EstimateConfig, source: Corpus | Counts | SrilmCounts, context: RunContext, path: Path,
    use: Callable[[Handle, EstimateResult], T],
) -> T:  # fmt: skip
    """Return use(the handle of the model, the result without its path and size). Deletes the checkpoint of `path` when
    `use` ends without an error.

    use  called once, or again if workers are lost meanwhile

    Estimation from counts saves no work, so it cannot be resumed.
    """
    executor, memory, start = context.executor, context.memory, time.perf_counter()
    resume, overwrite = context.resume, context.overwrite
    limit = read_word_file(config.limit_vocab_file, "limit_vocab_file")  # before work begins
    tokens, symbols = guess(config.counting(), source) if isinstance(source, Corpus) else (0, math.inf)
    budget = count_budget(memory, executor, KEPT_TOKEN_BYTES * tokens)
    budget, part_budget = plan_budgets(budget, tokens, executor.workers)
    executor = limited(executor, budget)
    executor.reserve(budget.device_bytes - UNRESERVED_BYTES)
    part_limits = limits_of_parts(executor, part_budget, symbols, config.highest)
    chosen: dict[str, Any] = {"parts": asdict(part_limits)}
    if not isinstance(source, Corpus):
        resume, overwrite = False, overwrite or resume
        part_limits = replace(part_limits, least=executor.workers)  # each worker reads the files of its parts
    else:
        chosen["chunk_bytes"] = chunk_bytes(config.counting(), source, executor.workers, budget)
    identity = _identity(config, source)
    with Checkpoint.open(path, identity, resume, overwrite, memory.spill_dir, chosen) as checkpoint:
        folder = str(checkpoint.entries_folder)
        executor.check_folder(folder)
        resources = Resources(executor, part_budget, folder, context.progress)

        def made() -> T:
            if not isinstance(source, Corpus):
                estimation, parts, estimate = parts_of_counts(config, limit, source, resources, part_limits)
            else:
                how = replace(context, executor=executor), budget, resources, checkpoint
                estimation, parts, estimate = _parts_of_text(config, limit, source, *how)
            model, statistics = estimation.finish(parts, estimate)
            of_device, of_host = map(max, zip(*executor.everywhere(peak_bytes, executor.device), strict=True))
            context.progress.finish()
            result = EstimateResult(
                path=None, order=config.highest, tokens=estimation.tokens, types=estimation.symbols,
                statistics=statistics, size_bytes=0, fingerprint="", seconds=add_seconds(*estimation.seconds),
                wall_seconds=time.perf_counter() - start, workers=executor.workers, device=executor.device,
                transport=executor.transport, peak_device_bytes=of_device, peak_host_bytes=of_host,
                resumed_chunks=estimation.resumed_chunks, resumed_parts=estimation.resumed_parts,
            )  # fmt: skip
            return use(model, result)

        found = _in_spite_of_losses(made, checkpoint, executor)
        checkpoint.discard()
    return found


def _in_spite_of_losses(make: Callable[[], T], checkpoint: Checkpoint, executor: Executor) -> T:
    """Return make(), called again when a worker was lost whose results Dask cannot make again: `make` goes on from the
    checkpoint. Ends after `MAX_LOSSES` losses between which nothing was saved.
    """
    losses = saved = 0
    while True:
        try:
            return make()
        except ResultLost as error:
            saved, before = checkpoint.num_entries(), saved
            losses = 1 if saved > before else losses + 1
            if losses == MAX_LOSSES:
                raise RunError(
                    f"the estimate lost workers {losses} times and saved nothing between; look at their logs, then run "
                    f"again {executor.resume_hint}".rstrip()
                ) from error
        # Not in the except block: there the error keeps handles, and so memory of workers.
        warn(f"a worker was lost with its results; the run goes on from its checkpoint, which has {saved} entries")


def _parts_of_text(
    config: EstimateConfig, limit: Words | None, corpus: Corpus, context: RunContext, budget: Budget,
    resources: Resources, checkpoint: Checkpoint,
) -> tuple[Estimation, list[Handle], Estimate]:  # fmt: skip
    """Number the words of a text, and make its parts. Return (the remaining steps, handles of the parts, what estimates
    them).

    budget     until words are numbered
    resources  of the tasks after that
    """
    counting = config.counting()
    inside = read_word_file(config.vocabulary, "vocabulary")
    chosen = checkpoint.chosen
    chunks = corpus.chunks(chosen["chunk_bytes"]) or [Chunk(0, (), 0)]
    part_limits = PartLimits(**chosen["parts"])  # the same as in saved runs
    text = LmplzText(config.skip_symbols, part_limits, config.like_srilm, inside)
    job = CountPasses(counting, context, chunks, budget, checkpoint, text)
    counted = job.count(num_streams(counting, corpus, len(chunks)))
    totals = counted.totals
    if not totals.tokens:
        raise InputError("the text is empty; give text with one sentence per line")
    options = config.options(config.highest)
    estimation = Estimation(config, options, limit, resources, counted.vocabulary, totals.symbols, totals.split)
    texts = job.texts(counted, resources.budget)
    shards = totals.num_shards if config.highest > 1 else 0
    saved = PartCheckpoint(checkpoint, _name_of_settings(config), context.checkpoint_seconds, job.verify)
    group = most_in_group(resources.executor, resources.budget, totals.tokens // max(1, shards))
    parts = TextParts(
        resources=resources, estimation=estimation, texts=texts, lexicon=counted.lexicon, shards=shards, group=group,
        counting=job.counting, saved=saved,
    )  # fmt: skip
    context.progress.start("adjust", shards, "parts")
    made = parts.adjust(lambda: job.report(counted))
    estimation.resumed_chunks = len(job.resumed_words)
    estimation.seconds += [totals.seconds, *job.saving, *counted.seconds]
    return estimation, made, parts.estimate


def _name_of_settings(config: EstimateConfig) -> str:
    """Return a name that differs for settings that give parts other values."""
    settings = settings_of(config) | {"limit": _described(config.limit_vocab_file)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def saved(
    config: EstimateConfig, executor: Executor, model: Handle, result: EstimateResult, path: Path
) -> EstimateResult:
    """Write the model, and return the result with its path, its size and the total seconds."""
    header = None
    if config.verbose_header:
        names = config.counts or ", ".join(config.corpus)
        header = [f"Input file: {names}", f"Token count: {result.tokens}", f"Smoothing: {METHODS[config.smoothing]}"]
    threads = executor.threads * executor.tasks_per_host  # no other task runs
    write = partial(save, closed=config.closed, is_normal=config.is_normal)
    saving = executor.call(write, model, path, config.format, header, threads, label=f"writing {path}")
    start = time.perf_counter()
    executor.wait([saving])
    [(size_bytes, fingerprint, seconds)] = executor.gather([saving])
    wall = result.wall_seconds + time.perf_counter() - start
    return replace(
        result, path=path, size_bytes=size_bytes, fingerprint=fingerprint, wall_seconds=wall,
        seconds=add_seconds(result.seconds, seconds),
    )  # fmt: skip


def settings_of(config: EstimateConfig) -> dict[str, Any]:
    """Return the settings that affect the result."""
    settings = asdict(config)
    for key in ("corpus", "counts", "chunk_bytes", "name"):
        del settings[key]
    return settings


def _identity(config: EstimateConfig, source: Corpus | Counts | SrilmCounts) -> dict[str, Any]:
    """Return what a run must have in common with the run that it resumes: what its counts depend on.

    Later settings may change, such as discounts after an error that none could be computed.
    """
    inputs = source.states if isinstance(source, Corpus) else describe(source)
    settings = {name: value for name, value in settings_of(config).items() if name in COUNTED_BY}
    if config.like_srilm:
        settings |= {"smoothing": "not kneser-ney", "vocabulary": _described(config.vocabulary)}
    return {"corpus": {"inputs": inputs}, "settings": settings, "versions": {"mgpu-ngram": VERSION}}


def figures_of(result: EstimateResult) -> dict[str, Any]:
    """Return the manifest's entries about the model itself."""
    return {
        "order": result.order,
        "tokens": result.tokens,
        "types": result.types,
        "statistics": asdict(result.statistics),
        "fingerprint": result.fingerprint,
        "versions": {"mgpu-ngram": VERSION},
    }


def _made_of(config: EstimateConfig, source: Corpus | Counts | SrilmCounts) -> dict[str, Any]:
    """Return what an output depends on; the file of a vocabulary is among its inputs."""
    inputs = source.described if isinstance(source, Corpus) else describe(source)
    inputs = inputs + _described(config.limit_vocab_file or config.vocabulary)
    return {"inputs": inputs, "options": settings_of(config)}


def _described(path: str | None) -> list[Any]:
    """Return the description of a file of words; [] without one."""
    return [] if path is None else open_list(path).described


def changed_since(config: EstimateConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings and names and sizes of inputs; "" if it does not."""
    config, source = _opened(config)
    return manifest_changes(manifest, _made_of(config, source))
