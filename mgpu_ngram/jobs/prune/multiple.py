"""Prune a model by the words of each line of a text: one model for each line, as KenLM's `filter multiple`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.cluster.executor import Handle, windowed
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_list
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch, add_seconds
from mgpu_ngram.engine.model_tools.backoff_nodes import BackoffNodes, nodes_of
from mgpu_ngram.engine.model_tools.restrict import LINES_AT_ONCE, AllowedWords, by_line, read_allowed
from mgpu_ngram.engine.trie.replicas import held_replica
from mgpu_ngram.engine.trie.write_model import write_model
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.one_model import absolute
from mgpu_ngram.jobs.prune.config import MODELS_OF_LINES, PruneConfig

LESS_MEMORY = "prune where there is more, such as with --device cpu, or use fewer workers"


@dataclass(frozen=True)
class MultipleResult:
    """The models of a run.

    path     their folder; the model of line k, from 0, is k.arpa or k.safetensors
    models   number of models
    ngrams   number of n-grams of all models; bytes likewise
    seconds  seconds by step, summed over workers
    """

    path: Path
    models: int
    ngrams: int
    size_bytes: int
    seconds: dict[str, float]
    wall_seconds: float
    workers: int
    device: str
    transport: str

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class _Source:
    """The model and the text of a run, and where a worker prunes. Picklable.

    identity  the result of `identify` for the model's file
    text      the state of the text, which a process compares before it reuses the text's words
    """

    config: PruneConfig
    identity: str
    text: str
    device: str
    threads: int


@dataclass(frozen=True)
class _DeviceModel:
    """A model on a device, its nodes, and the lines of a text."""

    nodes: BackoffNodes
    trie: Trie
    words: Words
    allowed: AllowedWords


def run(config: PruneConfig, context: RunContext, made_of: dict[str, Any], kind: str) -> MultipleResult:
    """Write OUT/0.arpa, OUT/1.arpa, ... and OUT/manifest.json; tasks make the models of 64 lines each.

    made_of  the settings and inputs that determine the output, for the manifest
    kind     the format of the manifest

    Not resumable: two cores write the models of 640 lines from one of 1 M n-grams in 2.4 s.
    """
    executor, progress, start = limited_to(context.executor, context.memory), context.progress, time.perf_counter()
    config = replace(config, model=absolute(config.model), vocabulary=absolute(str(config.vocabulary)))
    text = json.dumps(open_list(str(config.vocabulary)).states)
    source = _Source(config, identify(config.model), text, executor.device, executor.threads)
    seconds: list[dict[str, float]] = []
    ngrams = size_bytes = 0
    with Output.create(context.target, context.overwrite) as out:
        executor.check_folder(str(out.folder))
        opening = executor.call(count_lines, source, label="the model")
        executor.wait([opening])
        [lines] = executor.gather([opening])
        if not lines:
            raise InputError(f"vocabulary {config.vocabulary} is empty; give a text with one line or more")
        groups = range(0, lines, LINES_AT_ONCE)
        progress.start("prune", len(groups), "groups of lines")

        def calls() -> Iterator[Handle]:
            for first in groups:
                last = min(first + LINES_AT_ONCE, lines)
                label = f"the models of lines {first} to {last - 1}"
                yield executor.call(write_lines, source, first, last, str(out.folder), label=label)

        def done(handle: Handle) -> None:
            nonlocal ngrams, size_bytes
            [(counted, written, spent)] = executor.gather([handle])
            ngrams, size_bytes = ngrams + counted, size_bytes + written
            seconds.append(spent)
            progress.advance(1)

        windowed(executor, calls(), 2 * executor.workers, done)
        progress.finish()
        found = {"lines": lines, "ngrams": ngrams, "versions": {"mgpu-ngram": VERSION}}
        write_manifest(out.folder, made_of | found, kind)
        out.commit()
    return MultipleResult(
        path=out.path, models=lines, ngrams=ngrams, size_bytes=size_bytes, seconds=add_seconds(*seconds),
        wall_seconds=time.perf_counter() - start, workers=executor.workers, device=executor.device,
        transport=executor.transport,
    )  # fmt: skip


def count_lines(source: _Source) -> int:
    """Open the model, keep it for later tasks, and return the number of lines of the text."""
    return _opened(source).allowed.lines


def write_lines(source: _Source, first: int, last: int, folder: str) -> tuple[int, int, dict[str, float]]:
    """Write the models of some lines; return (numbers of their n-grams and bytes, seconds by step)."""
    config, device, threads = source.config, source.device, source.threads
    watch = Stopwatch(device)
    opened = _opened(source)
    watch.lap("read")
    ngrams = size_bytes = 0
    with memory_guard("pruning", device, LESS_MEMORY):
        some = opened.allowed.some(first, last)
        made = by_line(opened.nodes, opened.trie, opened.words, some, config.context)
        for line, (trie, words) in enumerate(made, first):
            watch.lap("prune")
            path = Path(folder) / MODELS_OF_LINES[config.format].format(line)
            size_bytes += write_model(path, trie, words, config.format, threads)[0]
            ngrams += len(trie) - (0 if trie.filled_F is None else len(trie.filled_F))
            watch.lap("write")
    return ngrams, size_bytes, watch.seconds


def _opened(source: _Source) -> _DeviceModel:
    config, device = source.config, source.device
    key = ("multiple", source.text, config.phrases)
    make = partial(_open, config, device)
    return held_replica(key, make, config.model, source.identity, device, source.threads, True, LESS_MEMORY)


def _open(config: PruneConfig, device: str, model: BackoffModel) -> _DeviceModel:
    model.check_scores(config.model)
    _ = model.words.offsets_V  # refuses hashes of words
    trie = model.trie.map_arrays(partial(to_device_fast, device=device)).decoded()
    allowed = read_allowed(str(config.vocabulary), model.words, config.phrases)
    return _DeviceModel(nodes_of(trie), trie, model.words, allowed)
