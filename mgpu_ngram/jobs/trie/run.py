"""Make a model file: an ARPA file or a model file in, one with the index and the precision that are asked for out."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.checkpoint import what_changed
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import BackoffModel, check_free_file, identify, save_model
from mgpu_ngram.core.output import Output, check_suffix, write_manifest
from mgpu_ngram.core.typed_config import check_name
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.device import Stopwatch, memory_guard, to_device
from mgpu_ngram.engine.open_model import open_model
from mgpu_ngram.engine.trie import FANOUT, edges_of, quantize, with_fanout
from mgpu_ngram.kernels.dispatch import to_host

FORMAT = "mgpu_ngram trie"
MODEL = "model.safetensors"  # in the folder of a run


@dataclass(frozen=True)
class TrieConfig:
    """Settings of a trie job; the keys of its YAML."""

    model: str  # an ARPA file, plain or compressed, or a model file
    index: Literal["btree", "edge", "both"] | None = None  # edge adds the edge table: faster to score with, and larger.
    # The trie, which has the other index in it, is always there, so both says the same as edge. auto: as the model
    # file has it; btree of an ARPA file
    fanout: int | None = None  # words that a search of the trie looks at in one step; auto: as the model file has it;
    # 32 of an ARPA file
    quantize: int | None = None  # bits of a code for each log10 probability and backoff from order 2 on; auto: floats
    backoff: bool = True  # false leaves the backoffs out, for what never reads them: stored distributions
    name: str = "trie"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        if self.fanout is not None and not 4 <= self.fanout <= 128:
            raise InputError(f"fanout is {self.fanout} but must be 4 to 128")
        if self.quantize is not None and not 2 <= self.quantize <= 16:
            raise InputError(f"quantize is {self.quantize} bits but must be 2 to 16; leave it out for floats")
        if not self.backoff and self.index in ("edge", "both"):
            raise InputError(f"index {self.index} holds backoffs but backoff is false; make index btree, or keep them")
        check_name(self.name)


CONFIG = TrieConfig


@dataclass(frozen=True)
class TrieResult:
    """A model file that was made.

    counts   n-grams of each order
    seconds  that it took to `read`, to `build` the trie, to add the `index`, to `write`
    """

    path: Path
    counts: list[int]
    fingerprint: str
    size_bytes: int
    seconds: dict[str, float]

    @property
    def order(self) -> int:
        return len(self.counts)

    @property
    def bytes_per_ngram(self) -> float:
        """Of the file, its words among them."""
        return self.size_bytes / sum(self.counts)

    def as_json(self) -> dict[str, Any]:
        """For machines: all of it by name."""
        return asdict(self) | {"path": str(self.path), "order": self.order, "bytes_per_ngram": self.bytes_per_ngram}


def model_file(config: TrieConfig) -> str:
    """The name of the model in the folder of a run."""
    return MODEL


def open_inputs(config: TrieConfig) -> None:
    """Nothing: the model may be what an earlier job makes."""


def plan(config: TrieConfig, workers: int, device: str, *_: Any) -> dict[str, Any]:
    """What `run` would do."""
    return {"job": config.name, "model": config.model, "index": config.index or "auto", "device": device}


def changed_since(config: TrieConfig, manifest: dict[str, Any]) -> str:
    """How an output differs from what this job would make, by its settings and its model; "" if it does not."""
    made_of = _made_of(config)
    return what_changed({name: manifest.get(name) for name in made_of}, made_of)


def _made_of(config: TrieConfig) -> dict[str, Any]:
    """What an output depends on."""
    return {
        "model": {"path": config.model, "identity": identify(config.model)},
        "options": {name: value for name, value in asdict(config).items() if name not in ("model", "name")},
    }


def run(config: TrieConfig, executor: Executor, output: str | Path, overwrite: bool = False, *_: Any) -> TrieResult:
    """Write OUT/model.safetensors and OUT/manifest.json, by one worker. A run that ended early is not gone on with."""
    with Output.create(output, overwrite) as out:
        executor.check_folder(str(out.folder))
        there = replace(config, model=os.path.abspath(config.model))  # workers may stand elsewhere
        # True: the model may be there already if a worker died that had made it
        asked = there, out.folder / MODEL, executor.device, executor.threads, True
        task = executor.call(build, *asked, label="the trie")
        executor.wait([task])
        [result] = executor.gather([task])
        manifest = _made_of(config) | {
            "orders": result.counts,
            "fingerprint": result.fingerprint,
            "versions": {"mgpu-ngram": VERSION},
        }
        write_manifest(out.folder, manifest, FORMAT)
        out.commit()
    return replace(result, path=out.path / MODEL)


def build(
    config: TrieConfig, output: str | Path, device: str = "cpu", threads: int = 1, overwrite: bool = False
) -> TrieResult:
    """Write a model file, which appears when it is whole.

    output     its path; folders on the way are made
    device     "cpu" or "gpu", where trie and index are built; they are the same
    threads    that parse an ARPA file
    overwrite  replace a model file; nothing else is replaced
    """
    check_free_file(output, overwrite)
    check_suffix(output, "a model file", ".safetensors")
    output = Path(output)
    try:  # at once, for a large model takes its time
        output.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise InputError(f"cannot write in {output.parent}: {error.strerror}; give another output path") from error
    watch = Stopwatch(device)
    with memory_guard("building a trie", device, "build it where there is more, such as with --device cpu"):
        model = open_model(config.model, device, threads, config.fanout or FANOUT, watch=watch)
        model = _changed(model, config, device, watch)
    size_bytes = save_model(output, model)
    watch.lap("write")
    counts = [end - begin for begin, end in pairwise(model.trie.starts)]
    return TrieResult(output, counts, model.fingerprint, size_bytes, watch.seconds)


def _changed(model: BackoffModel, config: TrieConfig, device: str, watch: Stopwatch) -> BackoffModel:
    """The model as the settings want it."""
    trie = with_fanout(model.trie, config.fanout or model.trie.fanout).moved(partial(to_device, device=device))
    if not config.backoff:
        trie = replace(trie, backoff_M=trie.backoff_M[:0])
    if config.quantize:
        if trie.quantized:
            raise InputError(f"{config.model} is quantised already; leave quantize out, or give what it was made from")
        trie = quantize(trie, config.quantize)
    watch.lap("build")
    edges, index = None, config.index or ("edge" if model.edges and config.backoff else "btree")
    if index != "btree":
        model.check_scores(config.model)
        edges = edges_of(trie).moved(to_host)
    model = BackoffModel.of(trie.moved(to_host), model.words, edges)
    watch.lap("index")
    return model
