"""Write distributions: text in, the probabilities of all next words out, for each position and order."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.models.distributions import FORMAT
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.distribution.tasks import MAX_TEXT_BYTES
from mgpu_ngram.engine.memory.blocks import RING_SLOTS
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.budget import limited_to
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.distribution.config import DistributionConfig
from mgpu_ngram.jobs.distribution.passes import DistributionPasses
from mgpu_ngram.jobs.distribution.sizes import chunk_bytes, known_facts, row_bytes, rows_for, text_bytes

__all__ = [
    "FORMAT",
    "DistributionConfig",
    "DistributionResult",
    "changed_since",
    "open_inputs",
    "plan",
    "run",
]


@dataclass(frozen=True)
class DistributionResult:
    """The result of a run. `manifest` is also in the output; the other fields depend on the cluster and the clock."""

    path: Path
    manifest: dict[str, Any]
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str  # how arrays move between workers
    resumed_chunks: int  # chunks that an earlier run had written

    @property
    def histories_per_second(self) -> float:
        return float(self.manifest["histories"] / self.wall_seconds)

    @property
    def bytes_per_second(self) -> float:
        return float(self.manifest["size_bytes"] / self.wall_seconds)

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        rates = {"histories_per_second": self.histories_per_second, "bytes_per_second": self.bytes_per_second}
        return asdict(self) | {"path": str(self.path)} | rates


def open_inputs(config: DistributionConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    return open_corpus(config.text, "word", text_column=config.text_column)


def plan(config: DistributionConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs; without sizes if the model does not exist yet."""
    facts, corpus = known_facts(config), open_inputs(config)
    workers, device = context.workers, context.device
    histories = int(corpus.text_bytes / text_bytes(config))
    found = {
        "job": config.name,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "histories_about": histories,
        "workers": workers,
        "device": device,
        "model": config.model,
        "format": config.format,
    }
    if facts:
        size = row_bytes(config, rows_for(config, facts), facts.symbols)
        chunks = corpus.chunks(config.chunk_bytes or chunk_bytes(corpus, workers, device, size, text_bytes(config)))
        sizes = {"chunks": len(chunks), "chunk_bytes": max((c.size_bytes for c in chunks), default=0)}
        found |= sizes | {"output_bytes_about": histories * size}
    return found


def changed_since(config: DistributionConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, model, and names and sizes of inputs."""
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: DistributionConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    names = ("format", "positions", "sentence_markers", "text_column")
    options = {name: getattr(config, name) for name in names}
    if config.format != "compact":
        options |= {"orders": config.orders or "all", **config.how()}
    return {
        "inputs": corpus.described,
        "model": {"path": config.model, "identity": identify(config.model)},
        "options": options,
    }


def _identity(made_of: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Return what a run must have in common with the run that it resumes."""
    return {
        "text": {"inputs": corpus.states},
        "model": made_of["model"],
        "options": made_of["options"],
        "versions": {"mgpu-ngram": VERSION},
    }


def run(config: DistributionConfig, context: RunContext, inputs: Corpus | None = None) -> DistributionResult:
    """Write the distributions after every history of a text, in the layout of `core.models.distributions`.

    inputs  an open corpus instead of config.text

    The files grow in OUT.checkpoint, where finished chunks are recorded.
    """
    executor, progress, start = context.executor, context.progress, time.perf_counter()
    corpus = inputs or open_inputs(config)
    made_of = _made_of(config, corpus)
    with Output.create(context.target, context.overwrite) as out:
        executor.check_folder(str(out.folder))
        chosen = {"chunk_bytes": config.chunk_bytes, "workers": executor.workers, "device": executor.device}
        identity = _identity(made_of, corpus)
        with Checkpoint.open(out.path, identity, context.resume, context.overwrite, None, chosen) as checkpoint:
            executor.check_folder(str(checkpoint.entries_folder))
            held = limited_to(executor, context.memory, RING_SLOTS * MAX_TEXT_BYTES)
            job = DistributionPasses(config, held, corpus, made_of["model"]["identity"], checkpoint, progress)
            job.write(context.checkpoint_seconds)
            progress.finish()
            manifest = made_of | job.described()
            write_manifest(job.folder, manifest, FORMAT)
            os.rmdir(out.folder)
            os.rename(job.folder, out.folder)
            try:
                out.commit()
            finally:  # if commit fails after the rename, only the removal of the old output is unfinished
                if out.folder.exists():
                    os.rename(out.folder, job.folder)
                else:
                    checkpoint.discard()
    return DistributionResult(
        path=out.path, manifest=manifest, seconds=add_seconds(*job.seconds), wall_seconds=time.perf_counter() - start,
        workers=executor.workers, device=executor.device, transport=executor.transport, resumed_chunks=len(job.done),
    )  # fmt: skip
