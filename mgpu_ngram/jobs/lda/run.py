"""Train a topic model from files: documents in, a folder with the model and its metrics out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mgpu_ngram.cluster.executor import Executor, in_order
from mgpu_ngram.core.bags.seed_words import seeds_of_topics
from mgpu_ngram.core.bags.text_options import DEFAULT_PATTERN, TextOptions
from mgpu_ngram.core.bags.topic_model import MODEL_FILE, TopicModel, save_topic_model
from mgpu_ngram.core.errors import warn
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.memory_config import free_host_bytes
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.bags.local_bags import LocalBags
from mgpu_ngram.engine.bags.open_bags import columns_of, open_bags, states_of_inputs
from mgpu_ngram.engine.lda.rank import SNAPSHOT, TABLES_BYTES
from mgpu_ngram.engine.lda.sweep_figure import draw_sweeps
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.jobs.lda.train import Storage, Trained, corpus_of, train

FORMAT = "mgpu_ngram topics"
PERPLEXITY_FILE = "perplexity.png"
KEPT_BAGS_SHARE = 0.25  # share of the host memory for documents that need no files
AHEAD = 2  # chunks of text per worker that wait to be put in order


@dataclass(frozen=True)
class LdaResult:
    """The model of a run, and the speed of the training.

    tokens   number of tokens of the training documents; held_out_tokens: of the documents held out
    sweeps   number of sweeps of the model, including resumed runs
    seconds  seconds of reading the documents, and of training
    rejects  number of records and files that could not be read
    """

    path: Path
    documents: int
    tokens: int
    held_out_tokens: int
    words: int
    topics: int
    sweeps: int
    metrics: dict[str, float]
    seconds: dict[str, float]
    tokens_per_second: float
    workers: int
    device: str
    transport: str
    wall_seconds: float
    rejects: int

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": str(self.path)}


def text_options(config: LdaConfig) -> TextOptions:
    """Return the options for making bags of words from the documents of a config."""
    return TextOptions(
        config.lowercase,
        config.token_pattern or DEFAULT_PATTERN,
        config.stop_words,
        config.min_df,
        1.0 if config.max_df is None else config.max_df,
        config.max_features,
    )


def check(config: LdaConfig) -> None:
    """Raise InputError for a file of words that does not exist, and for options of text that cannot be used."""
    text_options(config)
    if config.vocabulary:
        find_files([config.vocabulary])


def _warn_of_limits(config: LdaConfig) -> None:
    """Warn of limits of documents that may be meant otherwise."""
    if config.max_df == 1 and isinstance(config.max_df, int):
        warn("max_df is 1, so only words of one document are kept; write 1.0 for words of any number of documents")
    if config.min_df == 1 and isinstance(config.min_df, float):
        warn("min_df is 1.0, so only words of all documents are kept; write 1 for words of one document and more")


def plan(config: LdaConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes and headers of the inputs alone."""
    files, words = find_files(config.corpus), columns_of(config.corpus)
    return {
        "job": config.name,
        "inputs": len(files),
        "topics": config.topics,
        "sweeps": config.sweeps,
        "words": words,
        "counts_bytes": TABLES_BYTES * words * config.topics if words else None,
        "workers": context.workers,
        "device": context.device,
        "transport": context.transport,
    }


def work_bytes(config: LdaConfig) -> int:
    """Return the approximate size of the work: the bytes that sweeps read."""
    return int(sum(state["size_bytes"] for state in states_of_inputs(config.corpus)) * config.sweeps)


def changed_since(config: LdaConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by its settings and inputs; "" if it does not."""
    return manifest_changes(manifest, _made_of(config, states_of_inputs(config.corpus)))


def _made_of(config: LdaConfig, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the inputs and options that an output depends on."""
    left_out = ("corpus", "name", "block_tokens")
    return {
        "inputs": list(inputs),
        "options": {name: value for name, value in asdict(config).items() if name not in left_out},
    }


def run(config: LdaConfig, context: RunContext) -> LdaResult:
    """Write OUT/model.safetensors, OUT/perplexity.png and OUT/manifest.json.

    A resumed run continues from its last snapshot and gives the result of an uninterrupted run.
    """
    begin = time.perf_counter()
    _warn_of_limits(config)
    executor = limited_to(context.executor, context.memory)
    made_of = _made_of(config, states_of_inputs(config.corpus))
    parts = {"block_tokens": config.part_tokens}  # snapshots are of parts
    of_checkpoint = made_of | {"options": made_of["options"] | parts}
    with ExitStack() as stack:
        out = stack.enter_context(Output.create(context.target, context.overwrite))
        spill = context.memory.spill_dir
        checkpoint = stack.enter_context(
            Checkpoint.open(out.path, of_checkpoint, context.resume, context.overwrite, spill and str(spill))
        )
        executor.check_folder(str(out.folder))
        opened = _open(config, executor)
        keep_bytes = 0  # workers of other processes read files
        if executor.transport == "memory":
            keep_bytes = int(KEPT_BAGS_SHARE * (context.memory.host_bytes or free_host_bytes()))
        folder = out.folder / "parts"
        seeds = seeds_of_topics(config.seeds or {}, config.topics)
        corpus = corpus_of(config, opened, seeds, folder, keep_bytes)
        read = time.perf_counter()
        if opened.damage.number:
            warn(opened.damage.said)
        storage = Storage(
            str(checkpoint.entries_folder),
            context.checkpoint_seconds,
            partial(checkpoint.newest_generation, SNAPSHOT, range(len(corpus.parts))),
            context.memory,
        )
        trained = train(config, corpus, executor, context.progress, storage=storage)
        shutil.rmtree(folder, ignore_errors=True)
        write_topic_model(out.folder, trained.model, config)
        metrics = trained.model.history[-1] if trained.model.history else {}
        about = {
            "documents": corpus.documents,
            "rejects": opened.damage.number,
            "tokens": trained.tokens,
            "held_out_tokens": corpus.held_out,
            "words": opened.num_words,
            "sweeps": trained.model.sweeps,
            "metrics": metrics,
            "history": list(trained.model.history),
            "versions": {"mgpu-ngram": VERSION},
        }
        write_manifest(out.folder, made_of | about, FORMAT)
        out.commit()
        checkpoint.discard()
    return LdaResult(
        path=out.path,
        documents=corpus.documents,
        tokens=trained.tokens,
        held_out_tokens=corpus.held_out,
        words=opened.num_words,
        topics=config.topics,
        sweeps=trained.model.sweeps,
        metrics=metrics,
        seconds={"read": read - begin, "train": trained.seconds},
        tokens_per_second=_speed(trained),
        workers=executor.workers,
        device=executor.device,
        transport=executor.transport,
        wall_seconds=time.perf_counter() - begin,
        rejects=opened.damage.number,
    )


def _speed(trained: Trained) -> float:
    """Return the tokens that were drawn in a second."""
    return trained.tokens * trained.swept / trained.seconds if trained.seconds else 0.0


def write_topic_model(folder: Path, model: TopicModel, config: LdaConfig) -> None:
    """Write the model, and a figure of its metrics if Matplotlib is installed."""
    save_topic_model(folder / MODEL_FILE, model)
    if find_spec("matplotlib"):
        draw_sweeps(model.history, folder / PERPLEXITY_FILE, config.name)


def _open(config: LdaConfig, executor: Executor) -> BagCorpus:
    """Return the corpus; the workers turn text into bags of words."""

    def spread(fn: Any, chunks: Sequence[Chunk]) -> Iterable[LocalBags]:
        calls = (executor.call(fn, chunk, label=str(chunk)) for chunk in chunks)
        return in_order(executor, calls, AHEAD * executor.workers)

    remote = executor.transport != "memory"
    return open_bags(
        config.corpus, config.vocabulary, text_options(config), config.text_column, executor.device,
        spread if remote else None,
    )  # fmt: skip
