"""Adapt a model to more text: add the counts of the text to those of the model, and estimate the model again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mgpu_ngram.core.counts.counts import Counts, read_counts
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.storage.manifest_changes import what_changed
from mgpu_ngram.core.storage.output import Output, find_manifest, write_manifest
from mgpu_ngram.jobs.adapt.config import OWN, AdaptConfig
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.count.earlier import inputs_of, open_earlier
from mgpu_ngram.jobs.count.plan import plan as count_plan
from mgpu_ngram.jobs.count.run import CountResult, counted, without_checksums
from mgpu_ngram.jobs.estimate.config import EstimateConfig
from mgpu_ngram.jobs.estimate.from_counts import check_estimable
from mgpu_ngram.jobs.estimate.plan import model_file
from mgpu_ngram.jobs.estimate.run import EstimateResult, estimated, figures_of, saved, settings_of

FORMAT = "mgpu_ngram adapted model"
COUNTS_FOLDER = "counts"
BY_ORDER = (
    "orders",
    "kept",
    "passes",
    "device_bytes",
    "host_bytes",
    "spill_bytes",
)  # fields of a plan that depend on the orders


@dataclass(frozen=True)
class AdaptResult:
    """The adapted model of a run, and its counts.

    before     number of words of the earlier text, without sentence markers
    added      number of words of the new text
    smoothing  smoothing of the model
    """

    path: Path
    before: int
    added: int
    smoothing: str
    count: CountResult
    estimate: EstimateResult

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        parts = {"count": self.count.as_json(), "estimate": self.estimate.as_json()}
        return {"path": str(self.path), "before": self.before, "added": self.added, "smoothing": self.smoothing} | parts


def earlier_counts(config: AdaptConfig) -> tuple[Counts, dict[str, Any]]:
    """Return (the earlier counts, the settings of the model before; none for counts alone). Raises InputError if no
    model can be made of them.
    """
    path = os.path.abspath(config.earlier)
    manifest = find_manifest(path)
    before: dict[str, Any] = {}
    if manifest is not None and manifest.get("format") == FORMAT:
        before = {name: value for name, value in manifest["options"].items() if name not in (*OWN, "format")}
        path = os.path.join(path, COUNTS_FOLDER)
    counts = read_counts(path)
    check_estimable(counts, config.estimating(path, before))
    return counts, before


def settings(config: AdaptConfig) -> tuple[Counts, CountConfig, EstimateConfig]:
    """Return (the earlier counts, the settings for counting, and those for the model). Raises InputError for counts
    that the new text cannot be added to.
    """
    counts, before = earlier_counts(config)
    estimating = config.estimating(str(counts.path), before)
    order = counts.max_order if estimating.order is None else estimating.order
    counting = config.counting(str(counts.path), order, counts.manifest["options"]["lowercase"])
    open_earlier(counting)
    return counts, counting, replace(estimating, order=order)


def open_inputs(config: AdaptConfig) -> Corpus:
    """Return the new text. Raises InputError if it cannot be used."""
    return open_corpus(config.corpus, "word", text_column=config.text_column)


def plan(config: AdaptConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run`: the plan of counting and the name of the model. Bytes of memory are those of counting.

    Counts that an earlier job makes may have any order; then the plan lacks the strategies of the orders and their
    memory.
    """
    if os.path.exists(config.earlier):
        _, counting, estimating = settings(config)
        counted_by = count_plan(counting, context)
    else:
        estimating = config.estimating(config.earlier, {})
        order = estimating.order or CountConfig.order
        counting = replace(config.counting(config.earlier, order, False), add=[])
        counted_by = {key: value for key, value in count_plan(counting, context).items() if key not in BY_ORDER}
    return counted_by | {"job": config.name, "earlier": config.earlier, "model": model_file(estimating)}


def changed_since(config: AdaptConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings and names and sizes of inputs; "" if it does not."""
    counts, _, estimating = settings(config)
    given = without_checksums(inputs_of([counts])) + open_inputs(config).described
    found = {"inputs": without_checksums(manifest.get("inputs", ())), "options": manifest.get("options")}
    return what_changed(found, {"inputs": given, "options": settings_of(estimating)})


def run(config: AdaptConfig, context: RunContext, inputs: Corpus | None = None) -> AdaptResult:
    """Write OUT/counts, OUT/model.safetensors or OUT/model.arpa, and OUT/manifest.json.

    inputs  an open corpus instead of config.corpus

    An interrupted run resumes from its saved counts: those of chunks, or written files of shards.
    """
    corpus = inputs or open_inputs(config)
    counts, counting, estimating = settings(config)
    with Output.create(context.target, context.overwrite) as out:
        folder = out.folder / COUNTS_FOLDER
        folder.mkdir()
        with counted(counting, context, corpus, folder, out.path) as count:
            made = replace(estimating, counts=str(folder))
            path = out.folder / model_file(estimating)
            within = replace(context, resume=False, overwrite=True)
            start = time.perf_counter()
            try:
                result = estimated(
                    made, read_counts(folder), within, path,
                    lambda model, result: saved(made, context.executor, model, result, path),
                )  # fmt: skip
            except InputError as error:  # the folder does not remain
                raise InputError(str(error).replace(str(folder), f"{config.earlier} and of the new text")) from None
            result = replace(result, wall_seconds=time.perf_counter() - start, path=out.path / path.name)
            made_of = {"inputs": count.manifest["inputs"], "options": settings_of(estimating)}
            write_manifest(out.folder, made_of | figures_of(result), FORMAT)
            out.commit()
    count = replace(count, path=out.path / COUNTS_FOLDER)
    before = counts.manifest["tokens"] - 2 * counts.manifest["lines"]
    return AdaptResult(out.path, before, result.tokens - before, estimating.smoothing, count, result)
