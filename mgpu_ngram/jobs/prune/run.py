"""Prune a model: a model in, a model file or an ARPA file with fewer n-grams out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_ngram.core.counts.counts import read_counts
from mgpu_ngram.core.inputs.corpus import open_list
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.model_tools.prune import prune, prune_rare
from mgpu_ngram.engine.model_tools.rare_ngrams import check_rare_counts, rare_ngrams
from mgpu_ngram.engine.model_tools.restrict import read_allowed, restrict
from mgpu_ngram.engine.trie.row_sums import words_sum_to_one
from mgpu_ngram.engine.trie.write_model import write_model
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.estimate.from_counts import describe
from mgpu_ngram.jobs.one_model import ModelResult, absolute, listed_counts, open_on, open_target, run_alone
from mgpu_ngram.jobs.prune import multiple
from mgpu_ngram.jobs.prune.config import WAYS, PruneConfig
from mgpu_ngram.jobs.prune.multiple import MultipleResult

FORMAT = "mgpu_ngram pruned model"


@dataclass(frozen=True)
class PruneResult(ModelResult):
    """The pruned model of a run.

    before     number of n-grams of each order before pruning
    threshold  relative change of the perplexity below which n-grams were pruned; None for other ways of pruning
    overfull   number of histories after which probabilities sum to more than 1, so that no mass is left for backoff
    """

    before: list[int]
    threshold: float | None
    overfull: int


def plan(config: PruneConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run`."""
    ways = {way: getattr(config, way) for way in WAYS if getattr(config, way) not in (None, [])}
    if config.vocabulary is not None:
        ways["vocabulary_mode"] = config.vocabulary_mode
    return {"job": config.name, "model": config.model, **ways, "format": config.format, "device": context.device}


def changed_since(config: PruneConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by its settings and its inputs; "" if it does not."""
    return manifest_changes(manifest, _made_of(config))


def _made_of(config: PruneConfig) -> dict[str, Any]:
    """Return what an output depends on."""
    options = {name: value for name, value in asdict(config).items() if name not in ("model", "name")}
    made_of = {"model": {"path": config.model, "identity": identify(config.model)}, "options": options}
    if config.vocabulary is not None:
        return made_of | {"inputs": open_list(config.vocabulary).described}
    return made_of | ({"inputs": [describe(read_counts(config.counts))]} if config.counts is not None else {})


def run(config: PruneConfig, context: RunContext) -> PruneResult | MultipleResult:
    """Let one worker write the model; see `run_alone`. With the mode multiple, tasks write the models of lines."""
    made_of = _made_of(config)
    if config.vocabulary_mode == "multiple":
        return multiple.run(config, context, made_of, FORMAT)
    vocabulary, counts = (None if path is None else absolute(path) for path in (config.vocabulary, config.counts))
    config = replace(config, model=absolute(config.model), vocabulary=vocabulary, counts=counts)
    return run_alone(partial(build, config), context, config.format, FORMAT, made_of)


def build(config: PruneConfig, output: str | Path, device: str, threads: int, overwrite: bool) -> PruneResult:
    """Write the pruned model, which appears when it is complete.

    output     its path; parent folders are created
    device     "cpu" or "gpu", the device that prunes
    threads    threads that parse and write ARPA files
    overwrite  replace an output of the same kind
    """
    output = open_target(output, overwrite, config.format)
    watch = Stopwatch(device)
    with memory_guard("pruning", device, "prune where there is more, such as with --device cpu"):
        trie, words = open_on(config.model, device, threads, watch)
        before, limit, overfull = listed_counts(trie), None, 0
        is_normal = config.vocabulary is None and words_sum_to_one(trie, words)
        if config.vocabulary is not None:
            allowed = read_allowed(config.vocabulary, words, config.phrases)
            trie, words = restrict(trie, words, allowed, config.vocabulary_mode, config.context)
        elif config.counts is not None:
            counts, least = read_counts(config.counts), config.least(trie.order)
            check_rare_counts(counts, least)
            trie, overfull = prune_rare(trie, rare_ngrams(trie, words, counts, least))
        else:
            begin, end = words.id("<s>"), words.id("</s>")
            trie, overfull, limit = prune(trie, begin, end, config.entropy, config.max_ngrams)
        watch.lap("prune")
    is_normal &= not overfull
    size_bytes, fingerprint = write_model(output, trie, words, config.format, threads, is_normal=is_normal)
    watch.lap("write")
    after = listed_counts(trie)
    return PruneResult(
        path=output, counts=after, fingerprint=fingerprint, size_bytes=size_bytes, seconds=watch.seconds,
        before=before, threshold=limit, overfull=overfull,
    )  # fmt: skip
