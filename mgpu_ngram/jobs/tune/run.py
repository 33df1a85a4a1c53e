"""Tune the weights of features of n-best lists: lists and references in, the weights with the best metric out."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.executor import Handle, in_order
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.nbest.nbest import json_id
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, check_text_file, new_file, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.rescore.lines import check_once
from mgpu_ngram.engine.rescore.rescore_chunk import RescoreCounts, add_lists, score_lists
from mgpu_ngram.engine.rescore.text_metrics import import_package, measure_texts, quality, shown_quality
from mgpu_ngram.engine.rescore.tune_weights import Lists, grid, search
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.decode.text import lines_of
from mgpu_ngram.jobs.rescore.config import TOTAL
from mgpu_ngram.jobs.rescore.run import (
    RescoreTotals,
    check_found,
    check_inputs,
    inputs_of,
    lists_plan,
    open_inputs,
    prepare,
    totals_of,
    weights_of,
    with_weights,
)
from mgpu_ngram.jobs.tune.config import TuneConfig

FORMAT = "mgpu_ngram weights"
WEIGHTS_FILE = "weights.yaml"
TASK_TEXTS = 2_000  # texts of a task that measures quality; sacrebleu takes 0.1 ms a text, RapidFuzz 0.5 µs
AHEAD = 2  # tasks per worker in flight or buffered


@dataclass(frozen=True)
class TuneResult:
    """The result of a run; `path` is None if it wrote no file.

    weights        weights by name
    before, after  quality with the given and with the found weights, as in `engine.rescore.text_metrics.quality`
    """

    path: Path | None
    weights: dict[str, float | list[float]]
    metric: str
    before: float
    after: float
    totals: RescoreTotals
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines; error rates are not negated."""
        shown = {name: abs(getattr(self, name)) for name in ("before", "after")}
        return asdict(self) | shown | {"path": self.path and str(self.path)}


def plan(config: TuneConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    more = {"metric": config.metric, "grid": config.grid, "restarts": config.restarts}
    return {"job": config.name} | lists_plan(config, context) | more


def check(config: TuneConfig, made: Collection[str] = ()) -> None:
    """Raise InputError for a file that cannot be used, and for a metric whose package is not installed.

    made  models and weights that an earlier job writes
    """
    import_package(config.metric)
    check_inputs(config, made)
    open_corpus(config.references)


def changed_since(config: TuneConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, models, and names and sizes of inputs."""
    config = with_weights(config)
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: TuneConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    made_of = inputs_of(config, corpus)
    own = {name: getattr(config, name) for name in ("metric", "grid", "restarts", "seed")}
    references = open_corpus(config.references).described
    return made_of | {"references": references, "options": made_of["options"] | own}


def check_file(path: str | Path, overwrite: bool) -> None:
    """Raise InputError unless weights may be written to the path."""
    check_text_file(path, overwrite, (".yaml", ".yml"))


def run(config: TuneConfig, context: RunContext, inputs: Corpus | None = None) -> TuneResult:
    """Tune weights and write OUT/weights.yaml and OUT/manifest.json; only the weights for a single file.

    inputs  open lists instead of config.text

    Not resumable.
    """
    config, corpus = with_weights(config), inputs or open_inputs(config)
    if context.output is None:
        return tune(config, context, corpus)
    if context.single_file:
        check_file(context.output, context.overwrite)
        path = Path(os.path.realpath(context.output))
        result = tune(config, context, corpus)
        _write(path, result)
        return replace(result, path=path)
    made_of = _made_of(config, corpus)
    with Output.create(context.output, context.overwrite) as out:
        result = tune(config, context, corpus)
        _write(out.folder / WEIGHTS_FILE, result)
        made = {name: result.as_json()[name] for name in ("totals", "before", "after", "weights")}
        write_manifest(out.folder, made_of | made | {"versions": {"mgpu-ngram": VERSION}}, FORMAT)
        out.commit()
    return replace(result, path=out.path)


def _write(path: Path, result: TuneResult) -> None:
    with new_file(path) as sink:
        sink.append(weights_text(result.weights).encode())


def weights_text(weights: dict[str, float | list[float]]) -> str:
    """Return weights as YAML, a line for each number."""
    import yaml

    return yaml.safe_dump(weights, sort_keys=False, allow_unicode=True)


def tune(config: TuneConfig, context: RunContext, corpus: Corpus) -> TuneResult:
    """Search the weights. The driver holds the texts of all lists and the values of their features."""
    start, executor, progress = time.perf_counter(), context.executor, context.progress
    reference_lines = read_references(config.references)  # first: a wrong file must not cost the scores
    work = prepare(config, context, corpus)
    counts, seconds = RescoreCounts.none(len(config.lm)), dict[str, float]()
    ids, lengths, texts = list[bytes](), list[int](), list[str]()
    values: list[np.ndarray] = []
    progress.start("score", len(work.corpus.chunks(work.chunk_bytes)), "chunks", "hypotheses")
    for made in work.results(score_lists, "scoring", progress):
        add_lists(ids, lengths, made.ids, made.lengths_L)
        values.append(made.values_NC)
        texts += made.texts
        counts, seconds = counts.plus(made.counts), add_seconds(seconds, made.seconds)
    progress.finish()
    if not texts:
        raise InputError("the n-best lists are empty; give lists to tune on")
    check_found(config, counts)
    is_json = work.options.format.json
    check_once(ids, is_json)
    references = references_of(config, reference_lines, list(map(json_id, ids)) if is_json else ids)
    first_L = np.cumsum([0, *lengths[:-1]])
    begun = time.perf_counter()
    stats_NK = _measure(config, context, texts, references, lengths)
    measured = time.perf_counter()
    lists = Lists(np.concatenate(values), first_L, stats_NK, partial(quality, config.metric))
    before, found = _search(config, lists, context)
    seconds = add_seconds(seconds, {"measure": measured - begun, "search": time.perf_counter() - measured})
    wall = time.perf_counter() - start
    return TuneResult(
        path=None, weights=_by_name(config, found[1]), metric=config.metric, before=before, after=found[0],
        totals=totals_of(config, len(ids), counts, work.rejects), seconds=seconds, wall_seconds=wall,
        workers=executor.workers, device=executor.device, transport=executor.transport,
    )  # fmt: skip


def read_references(paths: Sequence[str]) -> list[list[bytes]]:
    """Return the lines of each file. Raises InputError for a file that is not text."""
    files = [list(lines_of(open_corpus([path]))) for path in paths]
    for path, lines in zip(paths, files, strict=True):
        number = next((number for number, line in enumerate(lines, 1) if b"\0" in line), 0)
        if number:
            raise InputError(
                f"references {path!r}, line {number:,}, has NUL bytes, so it is not text; give lines of text"
            )
    return files


def references_of(config: TuneConfig, files: Sequence[list[bytes]], ids: Sequence[bytes]) -> list[list[str]]:
    """Return the references of each list, one from the lines of each file."""
    columns = []
    for path, lines in zip(config.references, files, strict=True):
        texts = _by_key(lines, path, ids) if config.of_utterances else _by_number(lines, path, ids)
        columns.append([text.decode("utf-8", "replace") for text in texts])
    return [list(several) for several in zip(*columns, strict=True)]


def _by_key(lines: list[bytes], path: str, ids: Sequence[bytes]) -> list[bytes]:
    texts: dict[bytes, bytes] = {}
    for line in lines:
        key, text = [*line.split(maxsplit=1), b"", b""][:2]
        if key and texts.setdefault(key, text) != text:
            raise InputError(f"references {path!r} have two texts for list {_shown(key)}; remove one of them")
    missing = next((name for name in ids if name not in texts), None)
    if missing is not None:
        raise InputError(f"references {path!r} lack list {_shown(missing)}; add a line 'ID word word' for it")
    return [texts[name] for name in ids]


def _by_number(lines: list[bytes], path: str, ids: Sequence[bytes]) -> list[bytes]:
    wrong = next((name for name in ids if not name.isdigit()), None)
    if wrong is not None:
        raise InputError(f"list {_shown(wrong)} has no number, so its reference is unknown; number lists from 0")
    numbers = list(map(int, ids))
    if max(numbers) >= len(lines):
        raise InputError(
            f"references {path!r} have {len(lines):,} lines but the lists go up to {max(numbers)}; lists are numbered "
            "from 0, give a line for each"
        )
    return [lines[number] for number in numbers]


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "replace"))


def _measure(
    config: TuneConfig, context: RunContext, texts: list[str], references: list[list[str]], lengths: list[int]
) -> np.ndarray:
    """Return the rows of the metric of all texts."""
    executor, progress = context.executor, context.progress
    several = [found for found, length in zip(references, lengths, strict=True) for _ in range(length)]
    cuts = [*range(0, len(texts), TASK_TEXTS), len(texts)]

    def calls() -> Iterator[Handle]:
        for begin, end in pairwise(cuts):
            label = f"measuring hypotheses {begin + 1:,} to {end:,}"
            yield executor.call(measure_texts, config.metric, texts[begin:end], several[begin:end], label=label)

    rows = []
    progress.start("measure", len(texts), "hypotheses")
    for stats in in_order(executor, calls(), AHEAD * executor.workers):
        rows.append(stats)
        progress.advance(len(stats))
    progress.finish()
    stats_NK = np.concatenate(rows)
    if config.metric != "bleu" and not stats_NK[:, 1].any():
        raise InputError("the references are empty, so no error rate is defined; give correct texts")
    return stats_NK


def _search(config: TuneConfig, lists: Lists, context: RunContext) -> tuple[float, tuple[float, list[float]]]:
    """Return (quality of the weights given, (quality, weights) of the best ones)."""
    progress = context.progress
    start = [weight for values in weights_of(config).values() for weight in values]
    columns = _columns(config)
    before = lists.quality_of(start)

    def tell(best: float) -> None:
        progress.note(shown_quality(config.metric, best))
        progress.advance(1)

    if config.grid:
        values = {}
        for name, several in config.grid.items():
            if len(columns.get(name, ())) != 1:
                known = ", ".join(columns)
                raise InputError(f"the grid has {name!r}, which is not a weight of a single value; these are {known}")
            values[columns[name][0]] = several
        progress.start("tune", int(np.prod([len(several) for several in values.values()])), "points")
        found = grid(lists, start, values, tell)
    else:
        given = {TOTAL} if TOTAL in config.weights else set()
        searched = [c for name, several in columns.items() if name != TOTAL or name in given for c in several]
        progress.start("tune", config.restarts + 1, "searches")
        found = search(lists, start, searched, config.restarts, config.seed, tell)
    progress.finish()
    return before, found


def _columns(config: TuneConfig) -> dict[str, range]:
    """Return the columns of each weight."""
    ends = np.cumsum([0, *map(len, weights_of(config).values())]).tolist()
    return {name: range(begin, end) for name, (begin, end) in zip(weights_of(config), pairwise(ends), strict=True)}


def _by_name(config: TuneConfig, weights: list[float]) -> dict[str, float | list[float]]:
    """Return weights by name; several of a feature as a list."""
    several = {name: [weights[c] for c in columns] for name, columns in _columns(config).items()}
    return {name: found if len(found) > 1 else found[0] for name, found in several.items()}
