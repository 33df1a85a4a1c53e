"""Convert a model to a model file with the requested index and precision, an ARPA file or a KenLM binary model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm.trie import Packing
from mgpu_ngram.core.models.arpa import Arpa, read_arpa, write_arpa
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie.build import FANOUT, edges_of, with_fanout
from mgpu_ngram.engine.trie.levels import levels_of
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.engine.trie.quantize import quantize
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.convert.config import ConvertConfig
from mgpu_ngram.jobs.one_model import ModelResult, open_target, run_alone
from mgpu_ngram.kernels.dispatch import to_host

FORMAT = "mgpu_ngram trie"  # the older name of the stage, which manifests keep


def plan(config: ConvertConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run`."""
    index = {"index": config.index or "auto"} if config.format == "safetensors" else {}
    return {"job": config.name, "model": config.model, "format": config.format, "device": context.device} | index


def changed_since(config: ConvertConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by its settings and its model; "" if it does not."""
    return manifest_changes(manifest, _made_of(config))


def _made_of(config: ConvertConfig) -> dict[str, Any]:
    """Return what an output depends on."""
    return {
        "model": {"path": config.model, "identity": identify(config.model)},
        "rest": [identify(path) for path in config.rest],
        "options": {name: value for name, value in asdict(config).items() if name not in ("model", "name")},
    }


def run(config: ConvertConfig, context: RunContext) -> ModelResult:
    """Let one worker write the model; see `run_alone`."""
    made_of = _made_of(config)
    paths = [os.path.abspath(path) for path in config.rest]
    config = replace(config, model=os.path.abspath(config.model), rest=paths)  # workers may have other working folders
    return run_alone(partial(build, config), context, config.format, FORMAT, made_of)


def build(
    config: ConvertConfig, output: str | Path, device: str = "cpu", threads: int = 1, overwrite: bool = False
) -> ModelResult:
    """Write a model file, or a file of another format, which appears when it is complete.

    output     its path; parent folders are created
    device     "cpu" or "gpu", the device that builds trie and index; both give the same file
    threads    threads that parse an ARPA file
    overwrite  replace a model file; any other file is never replaced
    """
    output = open_target(output, overwrite, config.format)
    watch = Stopwatch(device)
    unk_added = None  # of an ARPA file

    def read(path: str | Path, threads: int) -> Arpa:
        nonlocal unk_added
        arpa = _reader(config)(path, threads)
        unk_added = arpa.unk_added
        return arpa

    with memory_guard("building a trie", device, "build it where there is more, such as with --device cpu"):
        model = open_model(config.model, device, threads, config.fanout or FANOUT, watch=watch, read=read)
        if config.format == "safetensors":
            model = _changed(model, config, device, watch)
    size_bytes = _save(model, config, output, threads, unk_added)
    watch.lap("write")
    counts = [end - begin for begin, end in pairwise(model.trie.starts)]
    return ModelResult(output, counts, model.fingerprint, size_bytes, watch.seconds)


def _save(model: BackoffModel, config: ConvertConfig, output: Path, threads: int, unk_added: bool | None) -> int:
    """Write a model in the format of the settings; return its size in bytes."""
    if config.format == "safetensors":
        return save_model(output, model)
    model.check_scores(config.model)
    if config.format == "arpa":
        write_arpa(output, model.words, levels_of(model.trie.decoded()), threads=threads)
        return output.stat().st_size
    packing = Packing(config.quantize or 0, config.backoff_bits, config.pointer_bits)
    lower = [open_model(path, threads=threads, read=_reader(config)) for path in config.rest]
    return write_kenlm(output, model, config.format, config.multiplier, config.words, packing, lower, unk_added)


def _reader(config: ConvertConfig) -> Callable[[str | Path, int], Arpa]:
    return partial(
        read_arpa,
        unk_log10=config.unk_log10,
        need_markers=config.need_markers,
        positive_to_zero=config.positive_to_zero,
    )


def _changed(model: BackoffModel, config: ConvertConfig, device: str, watch: Stopwatch) -> BackoffModel:
    """Return the model with the index, fanout and precision of the settings."""
    trie = with_fanout(model.trie, config.fanout or model.trie.fanout).map_arrays(partial(to_device, device=device))
    if not config.backoff:
        trie = replace(trie, backoff_M=trie.backoff_M[:0])
    if config.quantize:
        if trie.quantized:
            raise InputError(f"{config.model} is already quantised; leave quantize out, or give the original model")
        trie = quantize(trie, config.quantize)
    watch.lap("build")
    edges, index = None, config.index or ("edge" if model.edges and config.backoff else "btree")
    if index != "btree":
        model.check_scores(config.model)
        edges = edges_of(trie).map_arrays(to_host)
    model = BackoffModel.of(trie.map_arrays(to_host), model.words, edges)
    watch.lap("index")
    return model
