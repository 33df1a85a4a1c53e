"""Mix models by linear or log-linear interpolation: models in, one model file or ARPA file out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.read_text import whole_text
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.model_tools.mix import Tuned, mix, mix_log_linear, tune_weights
from mgpu_ngram.engine.model_tools.tune_log_linear import TextWords, tune_log_linear
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.row_sums import words_sum_to_one
from mgpu_ngram.engine.trie.write_model import write_model
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.mix.config import MixConfig
from mgpu_ngram.jobs.one_model import ModelResult, absolute, listed_counts, open_on, open_target, run_alone
from mgpu_ngram.kernels.dispatch import array_module

FORMAT = "mgpu_ngram mixed model"


@dataclass(frozen=True)
class MixResult(ModelResult):
    """The mixture of a run.

    weights   weights of the models
    before    number of n-grams of each order of each model
    overfull  number of histories after which probabilities sum to more than 1, so that no mass is left for backoff
    tuned     the search for the weights; None if they were given
    """

    weights: list[float]
    before: list[list[int]]
    overfull: int
    tuned: Tuned | None


def plan(config: MixConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run`."""
    weights = {"tune": config.tune} if config.tune is not None else {"weights": config.weights}
    way = {"log_linear": config.log_linear, "bayes": config.bayes, "format": config.format, "device": context.device}
    return {"job": config.name, "models": config.models, **weights, **way}


def changed_since(config: MixConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by its settings and its inputs; "" if it does not."""
    return manifest_changes(manifest, _made_of(config))


def _made_of(config: MixConfig) -> dict[str, Any]:
    """Return what an output depends on."""
    options = {name: value for name, value in asdict(config).items() if name not in ("models", "name")}
    models = [{"path": model, "identity": identify(model)} for model in config.models]
    inputs = {"inputs": open_corpus([config.tune]).described} if config.tune is not None else {}
    return {"models": models, "options": options, **inputs}


def run(config: MixConfig, context: RunContext) -> MixResult:
    """Let one worker write the model; see `run_alone`."""
    made_of = _made_of(config)
    tune = None if config.tune is None else absolute(config.tune)
    config = replace(config, models=list(map(absolute, config.models)), tune=tune)
    return run_alone(partial(build, config), context, config.format, FORMAT, made_of)


def build(config: MixConfig, output: str | Path, device: str, threads: int, overwrite: bool) -> MixResult:
    """Write the mixture, which appears when it is complete.

    output     its path; parent folders are created
    device     "cpu" or "gpu", the device that tunes and mixes
    threads    threads that parse and write ARPA files
    overwrite  replace an output of the same kind
    """
    output = open_target(output, overwrite, config.format)
    watch = Stopwatch(device)
    with memory_guard("mixing models", device, "mix where there is more, such as with --device cpu"):
        models = [open_on(model, device, threads, watch) for model in config.models]
        before = [listed_counts(trie) for trie, _ in models]
        are_normal = all(words_sum_to_one(*model) for model in models)
        weights, tuned = config.weights, None
        if config.tune is not None:
            tuned = _tuned(config.tune, models, device, config.log_linear)
            weights = tuned.weights[-1]
            watch.lap("tune")
        if config.log_linear:
            (trie, words), overfull = mix_log_linear(models, weights), 0
        else:
            trie, words, overfull = mix(models, weights, config.bayes, config.bayes_scale)
        del models
        watch.lap("mix")
    counts = listed_counts(trie)
    is_normal = config.log_linear or (are_normal and not overfull)
    size_bytes, fingerprint = write_model(output, trie, words, config.format, threads, is_normal=is_normal)
    watch.lap("write")
    return MixResult(
        path=output, counts=counts, fingerprint=fingerprint, size_bytes=size_bytes, seconds=watch.seconds,
        weights=weights, before=before, overfull=overfull, tuned=tuned,
    )  # fmt: skip


def _tuned(path: str, models: list[tuple[Trie, Words]], device: str, log_linear: bool) -> Tuned:
    """Return the best weights of sums, or of products, for the lines of a text."""
    text_B = to_device(np.frombuffer(whole_text(open_corpus([path])), np.uint8), device)
    codes, logs = [], []
    for trie, words in models:
        scores, positions_T = Replica(BackoffModel(trie, words, ""), device, "btree").score_text(text_B)
        codes.append(scores.codes_T)
        logs.append(scores.prob_T)
    xp = array_module(text_B)
    if log_linear:
        return tune_log_linear(models, xp.stack(logs), TextWords(text_B, positions_T))
    return tune_weights(xp.stack(codes), xp.stack(logs))
