"""Decode text: lines in, their translations out, in order."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.cluster.executor import Handle, in_order
from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, check_text_file, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.decode.lines import DecodeCounts, DecodedLines, decode_lines
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.budget import TEXT_WORD_BYTES, limited_to
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.jobs.decode.options import batching_of, files_of, options_of, sentences_of_task
from mgpu_ngram.jobs.decode.saved import SavedResults
from mgpu_ngram.jobs.decode.text import TextSize, batched, lines_of, measure_text, open_beside

FORMAT = "mgpu_ngram translations"
TRANSLATIONS = "translations.txt"  # name in the folder of a run
AHEAD = 2  # tasks per worker in flight or buffered


@dataclass(frozen=True)
class DecodeResult:
    """The result of a run; `path` is None if it wrote no file.

    source_words  number of words that the models read
    words         number of words of the best results
    cut           number of sentences with more than max_length words, which were read up to max_length
    """

    path: Path | None
    sentences: int
    source_words: int
    words: int
    cut: int
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str

    @property
    def sentences_per_second(self) -> float:
        return self.sentences / self.wall_seconds

    @property
    def words_per_second(self) -> float:
        """Source words per second."""
        return self.source_words / self.wall_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        rates = {name: getattr(self, name) for name in ("sentences_per_second", "words_per_second")}
        return asdict(self) | {"path": self.path and str(self.path)} | rates


TakeText = Callable[[bytes], None]


def open_inputs(config: DecodeConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    return open_corpus(config.text, "word", text_column=config.text_column)


def plan(config: DecodeConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    corpus = open_inputs(config)
    return {
        "job": config.name,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "words_about": int(corpus.text_bytes / TEXT_WORD_BYTES),
        "workers": context.workers,
        "device": context.device,
        "models": config.models,
        "lm": config.lm,
        "beam_size": config.beam_size,
        "mini_batch": batching_of(config, context.device).sentences,
        "batching": config.batching,
    }


def changed_since(config: DecodeConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, files and text; "" if it does not."""
    corpus = open_inputs(config)
    return manifest_changes(manifest, _made_of(config, _opened(config, corpus)))


class _RunInputs(NamedTuple):
    """The inputs of a run: the text, its size, and what identifies the contents of the other files."""

    corpus: Corpus
    size: TextSize
    identity: dict[str, str]


def _opened(config: DecodeConfig, corpus: Corpus) -> _RunInputs:
    return _RunInputs(corpus, measure_text(corpus), files_of(config).identity())


def _made_of(config: DecodeConfig, opened: _RunInputs) -> dict[str, Any]:
    """Return what an output depends on."""
    beside = {
        name: measure_text(open_corpus([path])).crc32
        for name in ("prefixes", "targets")
        if (path := getattr(config, name))
    }
    left_out = ("text", "prefixes", "targets", "chunk_sentences", "name")
    settings = {f.name: getattr(config, f.name) for f in fields(DecodeConfig)}
    return {
        "inputs": opened.corpus.described,
        "text": asdict(opened.size),
        "files": opened.identity,
        "beside": beside,
        "options": {name: value for name, value in settings.items() if name not in left_out},
    }


def run(
    config: DecodeConfig, context: RunContext, inputs: Corpus | None = None, take: TakeText | None = None
) -> DecodeResult:
    """Decode a text and write OUT/translations.txt and OUT/manifest.json; only the text file for a single file.

    inputs  an open corpus instead of config.text
    take    called with the lines of each task, in order, when the context has no output

    With an output, finished work is saved, and an interrupted run can be resumed.
    """
    start = time.perf_counter()
    opened = _opened(config, inputs or open_inputs(config))
    if context.output is None:
        if context.resume:
            raise InputError("there is no output to resume; give -o FILE")
        total = _decode(config, context, opened, take or (lambda text: None))
        return _result(None, total, config, context, start)
    if context.single_file:
        check_text_file(context.output, context.overwrite)
    made_of = _made_of(config, opened)
    chosen = {"chunk_sentences": sentences_of_task(config, opened.size.lines, context.executor.device)}
    with Checkpoint.open(context.output, made_of, context.resume, context.overwrite, chosen=chosen) as checkpoint:
        if context.single_file:
            path = Path(os.path.realpath(context.output))
            with new_file(path) as sink:
                total = _decode(config, context, opened, sink.append, checkpoint)
        else:
            with Output.create(context.output, context.overwrite) as out:
                with new_file(out.folder / TRANSLATIONS) as sink:
                    total = _decode(config, context, opened, sink.append, checkpoint)
                made = {"totals": total.counts._asdict(), "versions": {"mgpu-ngram": VERSION, "numpy": np.__version__}}
                write_manifest(out.folder, made_of | made, FORMAT)
                out.commit()
            path = out.path
        checkpoint.discard()
    return _result(path, total, config, context, start)


def _result(
    path: Path | None, total: DecodedLines, config: DecodeConfig, context: RunContext, start: float
) -> DecodeResult:
    if total.counts.cut:
        warn(
            f"sentences with more than {config.max_length} words were cut: {total.counts.cut:,} of "
            f"{total.counts.sentences:,}; --max-length 0 (in YAML max_length: 0) reads all of their words"
        )
    executor, wall = context.executor, time.perf_counter() - start
    return DecodeResult(
        path, *total.counts, total.seconds, wall, executor.workers,
        executor.device, executor.transport,
    )  # fmt: skip


def _decode(
    config: DecodeConfig, context: RunContext, opened: _RunInputs, take: TakeText, checkpoint: Checkpoint | None = None
) -> DecodedLines:
    """Decode a text; call `take` with the lines of each task, in order. Return the totals, without the text."""
    executor, progress = limited_to(context.executor, context.memory), context.progress
    sentences = opened.size.lines
    chunk_sentences = sentences_of_task(config, sentences, executor.device)
    if checkpoint:
        chunk_sentences = checkpoint.chosen["chunk_sentences"]
    options = options_of(config, opened.identity, executor.device, executor.threads)
    saved = SavedResults(checkpoint, context.checkpoint_seconds)
    with saved.kept_after_errors():
        done = saved.found()
        start = time.perf_counter()
        progress.start("decode", sentences, "sentences", "words")
        pending: deque[int] = deque()  # numbers of the tasks in flight
        totals = DecodedLines(b"", DecodeCounts())

        def collect(decoded: DecodedLines) -> None:
            nonlocal totals
            take(decoded.text)
            totals = DecodedLines(b"", totals.counts.plus(decoded.counts), add_seconds(totals.seconds, decoded.seconds))
            progress.note(f"sentences, {totals.counts.sentences / (time.perf_counter() - start):,.0f}/s")
            progress.advance(decoded.counts.sentences, decoded.counts.source_words)

        def calls() -> Iterator[Handle]:
            beside = [_batches_beside(path, sentences, name, chunk_sentences) for name, path in _beside(config)]
            columns = zip(batched(lines_of(opened.corpus), chunk_sentences), *beside, strict=True)
            for number, (lines, prefixes, targets) in enumerate(columns):
                if number in done:
                    continue
                pending.append(number)
                first = number * chunk_sentences
                label = f"the translation of lines {first + 1:,} to {first + len(lines):,}"
                yield executor.call(decode_lines, first, lines, prefixes, targets, options, label=label)

        at = 0
        for decoded in in_order(executor, calls(), AHEAD * executor.workers):
            number = pending.popleft()
            for before in range(at, number):
                collect(saved.read(before))
            collect(decoded)
            saved.add(number, decoded)
            at = number + 1
        for rest in range(at, -(-sentences // chunk_sentences)):
            collect(saved.read(rest))
        progress.finish()
    return totals


def _beside(config: DecodeConfig) -> list[tuple[str, str | None]]:
    return [("prefixes", config.prefixes), ("targets", config.targets)]


def _batches_beside(path: str | None, lines: int, name: str, size: int) -> Iterator[list[bytes] | None]:
    """Yield the lines of a file beside the text; None for each task without a file."""
    if path is None:
        yield from [None] * -(-lines // size)
    else:
        yield from batched(lines_of(open_beside(path, lines, name)), size)
