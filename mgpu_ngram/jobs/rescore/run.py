"""Rescore n-best lists: lines in, lines with new features and totals out, each list in order of total."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.executor import Executor, Handle, in_order
from mgpu_ngram.core.checkpoint import what_changed
from mgpu_ngram.core.corpus import Corpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.model_file import identify
from mgpu_ngram.core.nbest_files import kaldi_lists, open_lists
from mgpu_ngram.core.output import Output, check_text_file, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.device import add_seconds
from mgpu_ngram.engine.rescore import RescoredChunk, RescoreOptions, rescore_chunk
from mgpu_ngram.engine.rescore_lines import LineFormat, ListJoiner
from mgpu_ngram.engine.score import BYTES_PER_TEXT_BYTE, ScoreOptions
from mgpu_ngram.jobs.budget import chunks_ahead, limited_to, make_budget, text_within
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.parts import in_parts
from mgpu_ngram.jobs.rescore.config import RescoreConfig
from mgpu_ngram.jobs.score.run import AHEAD, fastest_index, text_per_task

FORMAT = "mgpu_ngram rescored lists"
NBEST, BEST = "nbest", "best.txt"  # names in the folder of a run; lists have the suffix of their format
RESULT_BYTES = 2  # for each byte of text, about

Take = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class Totals:
    """Totals of all lists.

    words  of all hypotheses, each with its end
    oovs   words that a model does not know, by its name
    """

    lists: int
    hypotheses: int
    words: int
    oovs: dict[str, int]


@dataclass(frozen=True)
class RescoreResult:
    """The result of a run; `path` is None if it wrote no file."""

    path: Path | None
    totals: Totals
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


def open_inputs(config: RescoreConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    return open_lists(config.text, config.text_column)


def plan(config: RescoreConfig, context: PlanContext) -> dict[str, Any]:
    """Return what `run` would do, from the sizes of the inputs alone."""
    corpus = open_inputs(config)
    size = config.chunk_bytes or text_per_task(corpus, context.workers, context.device)
    return {
        "job": config.name,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "chunks": len(corpus.chunks(size)),
        "workers": context.workers,
        "device": context.device,
        "lm": config.lm,
        "weights": config.list_weights
        | {n: (w,) for n, w in zip(config.feature_names, config.model_weights, strict=True)},
        "best": config.best,
    }


def changed_since(config: RescoreConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, models, and names and sizes of inputs."""
    made_of = _made_of(config, open_inputs(config))
    return what_changed({name: manifest.get(name) for name in made_of}, made_of)


def _made_of(config: RescoreConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    return {
        "inputs": corpus.described,
        "models": [{"path": path, "identity": identify(path)} for path in config.lm],
        "options": {
            "names": list(config.feature_names),
            "weights": config.weights,
            "kaldi": config.kaldi,
            "costs": config.costs,
            "best": config.best,
        },
    }


def check_file(config: RescoreConfig, path: str | Path, overwrite: bool) -> None:
    """Raise InputError unless lists may be written there."""
    check_text_file(path, [*config.text, *config.lm, *config.costs.values()], overwrite, (".jsonl",))


def run(
    config: RescoreConfig, context: RunContext, inputs: Corpus | None = None, take: Take | None = None
) -> RescoreResult:
    """Rescore lists and write OUT/nbest.txt (of JSON lines nbest.jsonl) or OUT/best.txt, and OUT/manifest.json.

    For a single file, it writes only the lines.

    inputs  an open corpus in place of config.text
    take    called with lines, in order, when the context has no output

    Not resumable.
    """
    corpus = inputs or open_inputs(config)
    if context.output is None:
        return rescore(config, context, corpus, take or (lambda lines: None))
    if context.single_file:
        check_file(config, context.output, context.overwrite)
        path = Path(os.path.realpath(context.output))
        with new_file(path) as sink:
            return replace(rescore(config, context, corpus, sink.append), path=path)
    made_of = _made_of(config, corpus)
    with Output.create(context.output, context.overwrite) as out:
        name = BEST if config.best else f"{NBEST}.{'jsonl' if _is_json(corpus) else 'txt'}"
        with new_file(out.folder / name) as sink:
            result = rescore(config, context, corpus, sink.append)
        made = {"totals": asdict(result.totals), "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | made, FORMAT)
        out.commit()
    return replace(result, path=out.path)


def rescore(config: RescoreConfig, context: RunContext, corpus: Corpus, take: Take) -> RescoreResult:
    """Rescore a corpus; call `take` with the lines, in order.

    The driver holds a few chunks at once, and the lines of a list until it ends.
    """
    executor, progress, start = context.executor, context.progress, time.perf_counter()
    if config.kaldi:
        corpus = kaldi_lists(corpus, config.costs)
    chunk_bytes = config.chunk_bytes or text_per_task(corpus, executor.workers, executor.device)
    ahead = AHEAD * executor.workers
    if context.memory != MemoryConfig():
        budget = make_budget(context.memory, executor)
        chunk_bytes = config.chunk_bytes or text_within(budget, BYTES_PER_TEXT_BYTE, chunk_bytes)
        ahead = chunks_ahead(budget, executor.workers, RESULT_BYTES * chunk_bytes, AHEAD)
        executor = limited_to(executor, context.memory)
    options = options_of(config, corpus, executor, chunk_bytes)
    chunks = corpus.chunks(chunk_bytes)
    joiner, whole = ListJoiner(config.best), RescoredChunk(oovs=np.zeros(len(config.lm), np.int64))
    counts: deque[int] = deque()  # number of chunks that each call completes

    def calls() -> Iterator[Handle]:
        for chunk, chunks_done in in_parts(chunks, chunk_bytes):
            counts.append(chunks_done)
            yield executor.call(rescore_chunk, chunk, options, label=f"rescoring {chunk}")

    progress.start("rescore", len(chunks), "chunks", "hypotheses")
    for made in in_order(executor, calls(), ahead):
        for part in made.parts:
            for lines in joiner.add(part):
                take(lines)
        whole.lines, whole.words, whole.oovs = (
            whole.lines + made.lines,
            whole.words + made.words,
            whole.oovs + made.oovs,
        )
        whole.found |= made.found
        whole.seconds = add_seconds(whole.seconds, made.seconds)
        progress.advance(counts.popleft(), made.lines)
    for lines in joiner.close():
        take(lines)
    progress.finish()
    missing = [name for name in list(config.list_weights)[1:] if name not in whole.found]
    if missing and whole.lines:
        raise InputError(f"no line has the feature {missing[0]}, which has a weight; correct its name or leave it out")
    totals = Totals(
        joiner.lists, whole.lines, whole.words, dict(zip(config.feature_names, whole.oovs.tolist(), strict=True))
    )
    wall = time.perf_counter() - start
    return RescoreResult(None, totals, whole.seconds, wall, executor.workers, executor.device, executor.transport)


def _is_json(corpus: Corpus) -> bool:
    """Return whether lists are JSON lines."""
    return any(source.column and source.format != "parquet" for source in corpus.sources)


def options_of(config: RescoreConfig, corpus: Corpus, executor: Executor, block_bytes: int) -> RescoreOptions:
    """Return the options of tasks."""
    device, threads = executor.device, executor.threads

    def model(path: str) -> ScoreOptions:
        index = fastest_index(path, corpus.text_bytes, device)
        whole = os.path.abspath(path)  # workers may have another current directory
        return ScoreOptions(whole, identify(path), index, device=device, read_threads=threads, verify=config.verify)

    return RescoreOptions(
        tuple(map(model, config.lm)), config.feature_names, config.list_weights, config.model_weights,
        LineFormat(_is_json(corpus), config.best, config.kaldi),
        device, block_bytes, threads,
    )  # fmt: skip
