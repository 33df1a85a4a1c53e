"""One device of a training: its sweeps, with metrics, estimated priors and snapshots."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mgpu_ngram.core.bags.bags import Bags, join_bags
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import AUTO_DEVICE_SHARE, AUTO_HOST_SHARE, MemoryConfig, free_host_bytes
from mgpu_ngram.core.storage.checkpoint_entries import delete_older, save_entry
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.core.storage.scratch import SCRATCH_PREFIX
from mgpu_ngram.engine.lda.blocks import Room
from mgpu_ngram.engine.lda.documents import CorpusPart
from mgpu_ngram.engine.lda.hold_out import HeldOut, hold_out
from mgpu_ngram.engine.lda.metrics import coherences, held_out_perplexity, joint, plugin
from mgpu_ngram.engine.lda.priors import optimised
from mgpu_ngram.engine.lda.sweep import Group, Sampler, make_sampler, start_topics, sweep, total
from mgpu_ngram.engine.memory.device import free_bytes

TABLES_BYTES = 8  # for each word and topic: two tables of counts
COUNTS_BYTES = 14  # for each word and topic: those tables, and that of a metric or a sum now and then
WORK_BYTES = 3 << 29  # bytes of a GPU for metrics: places of PLACES entries, or BLOCK_WEIGHTS of held-out documents
MIN_THREAD_TOKENS = 1 << 14  # tokens of a CPU thread: handing over fewer takes longer than sweeping them
SNAPSHOT = "topics"  # kind of the entries of a checkpoint
AS_CONFIGURED = (  # fields of Training that have the name and the value of an `LdaConfig`'s
    "seed", "exclude_self", "held_out", "evaluate_every", "optimise_every", "tolerance", "coherence",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """Options of the training; the same on every device.

    run               name of the run, for `progress_of` and `close_rank`
    seed ... coherence  the settings in AS_CONFIGURED
    last              the sweep to stop after
    folder            folder of the snapshots; "" for no snapshots
    snapshot_seconds  seconds between snapshots
    memory            memory limits of each device and host
    threads           threads of a device that is a CPU
    """

    run: str
    num_words: int
    num_topics: int
    seed: int
    exclude_self: bool
    held_out: float
    evaluate_every: int
    optimise_every: int
    tolerance: float
    coherence: bool
    last: int
    folder: str
    snapshot_seconds: float
    memory: MemoryConfig
    device: str
    threads: int


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after a sweep, without the topics."""

    sweep: int
    priors: Priors
    history: tuple[dict[str, float], ...] = ()
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        priors = {
            "alpha": self.priors.alpha_Z.tolist(),
            "beta": self.priors.beta,
            "seeds": [[word, prior_Z.tolist()] for word, prior_Z in self.priors.seeds.items()],
        }
        return {"sweep": self.sweep, "priors": priors, "history": list(self.history), "stopped": self.stopped}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Snapshot:
        priors = values["priors"]
        seeds = {word: np.array(prior_Z, np.float32) for word, prior_Z in priors["seeds"]}
        known = Priors(np.array(priors["alpha"], np.float64), priors["beta"], seeds)
        return cls(values["sweep"], known, tuple(values["history"]), values["stopped"])


@dataclass(eq=False)
class Rank:
    """One device of a run: `open_rank` makes it, `sweep_rank` sweeps.

    held_out  the two halves of its held-out documents
    tokens    number of tokens that a sweep draws, over all devices
    folder    folder for documents that do not fit memory, deleted with the rank
    progress  sweeps done here, and their last metrics
    """

    in_process: ClassVar[weakref.WeakValueDictionary[str, Rank]] = weakref.WeakValueDictionary()  # newest of a run

    sampler: Sampler
    held_out: HeldOut
    state: Snapshot
    tokens: int = 0
    folder: Path | None = None
    progress: tuple[int, dict[str, float]] = (0, {})
    snapshot_time: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        """Delete the files of its documents."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_rank(
    group: Group,
    parts: Sequence[CorpusPart],
    training: Training,
    state: Snapshot,
    topics: dict[int, str] | None = None,
    earlier: TopicModel | None = None,
) -> Rank:
    """Return the rank that holds these parts of the corpus.

    topics   the file of each part's topics, by its number, when a run is resumed; None: topics are drawn
    earlier  the model of earlier documents, whose counts stay; one rank of the run has it

    Raises InputError if the counts of words are larger than the free memory, and if no tokens are left to train on.
    """
    _check_counts(training)
    held = [hold_out(part.load_all(), part.first, *part.held_out) for part in parts] if training.held_out else []
    size = training.num_words, training.num_topics
    threads = min(training.threads, max(1, sum(part.tokens for part in parts) // MIN_THREAD_TOKENS))
    nothing = Bags(np.zeros(1, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint32), training.num_words)
    halves = HeldOut(*(join_bags([nothing, *(getattr(h, half) for h in held)]) for half in ("observed", "target")))
    loaded = None if topics is None else {number: load_topics(path, number) for number, path in topics.items()}
    folder = Path(
        training.memory.spill_dir or tempfile.gettempdir(), f"{SCRATCH_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    )
    try:
        sampler = make_sampler(parts, *size, training.device, threads, _room(training, folder))
        start_topics(sampler, group, training.seed, loaded, earlier)
        sampler.sweep = state.sweep
        tokens = total(sampler, group, sampler.tokens)
        if not tokens:
            raise InputError(f"held_out is {training.held_out:g}, which leaves no tokens to train on; lower it")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    rank = Rank(sampler, halves, state, tokens, folder)
    weakref.finalize(rank, shutil.rmtree, folder, ignore_errors=True)  # if nobody closes it
    return rank


def _check_counts(training: Training) -> None:
    """Raise InputError if the counts of words cannot be in memory: Linux would end the process without a word."""
    V, Z, free = training.num_words, training.num_topics, free_bytes(training.device)
    if TABLES_BYTES * V * Z > free:
        raise InputError(
            f"the counts of {V:,} words and {Z:,} topics take {TABLES_BYTES * V * Z:,} bytes but {free:,} are free; "
            "lower topics, or keep fewer words (max_features, min_df)"
        )


def _room(training: Training, folder: Path) -> Room:
    """Return the memory for blocks: the limits, or the free memory, less the memory of counts and metrics."""
    counts_bytes = COUNTS_BYTES * training.num_words * training.num_topics
    host_bytes = training.memory.host_bytes or int(AUTO_HOST_SHARE * free_host_bytes())
    device_bytes = training.memory.device_bytes
    if device_bytes is None and training.device == "gpu":
        device_bytes = int(AUTO_DEVICE_SHARE * free_bytes("gpu"))
    if training.device == "cpu":
        return Room(None, max(0, host_bytes - counts_bytes), folder)
    return Room(max(0, (device_bytes or 0) - counts_bytes - WORK_BYTES), host_bytes, folder)


def sweep_rank(group: Group, rank: Rank, training: Training) -> Rank:
    """Sweep until `training.last`, or until the perplexity stops improving; return the rank."""
    Rank.in_process[training.run] = rank
    sampler = rank.sampler
    while sampler.sweep < training.last and not rank.state.stopped:
        changed = sweep(sampler, group, rank.state.priors, training.seed, training.exclude_self)
        state = replace(rank.state, sweep=sampler.sweep)
        if training.optimise_every and sampler.sweep % training.optimise_every == 0:
            state = replace(state, priors=optimised(sampler, group, state.priors))
        if sampler.sweep == training.last or (training.evaluate_every and sampler.sweep % training.evaluate_every == 0):
            metrics = _metrics(rank, group, training, state.priors, changed)
            history = (*state.history, metrics)
            state = replace(state, history=history, stopped=_stays(history, training.tolerance))
        rank.state = state
        rank.progress = sampler.sweep, dict(state.history[-1]) if state.history else {}
        if training.folder:
            _save_in_time(rank, group, training)
    return rank


def _metrics(rank: Rank, group: Group, training: Training, priors: Priors, changed: int) -> dict[str, float]:
    """Return the metrics after a sweep.

    joint, plugin        log-likelihoods of the training tokens: see `engine.lda.metrics`; natural, for each token
    perplexity           exp(-plugin)
    changed              share of the tokens whose topic changed
    held_out_perplexity  by document completion, if documents are held out
    u_mass, c_npmi, c_uci, c_v  mean coherence over topics, if `coherence` is set
    """
    sampler, tokens = rank.sampler, rank.tokens
    plugged = plugin(sampler, group, priors) / tokens
    metrics = {
        "sweep": sampler.sweep,
        "joint": joint(sampler, group, priors) / tokens,
        "plugin": plugged,
        "perplexity": math.exp(-plugged),
        "changed": total(sampler, group, changed) / tokens,
    }
    held_out = held_out_perplexity(sampler, group, priors, rank.held_out) if training.held_out else math.nan
    if not math.isnan(held_out):  # some document is held out
        metrics["held_out_perplexity"] = held_out
    return metrics | (coherences(sampler, group) if training.coherence else {})


def _stays(history: Sequence[dict[str, float]], tolerance: float) -> bool:
    """Return whether the perplexity, of held-out documents if there are any, fell by less than the tolerance."""
    if not tolerance or len(history) < 2:
        return False
    before, now = (m.get("held_out_perplexity", m["perplexity"]) for m in history[-2:])
    return before - now < tolerance * before


def progress_of(run: str) -> tuple[int, dict[str, float]]:
    """Return (sweeps done, last metrics) of a run in this process; (0, {}) if no such run is known."""
    rank = Rank.in_process.get(run)
    return rank.progress if rank else (0, {})


def close_rank(run: str) -> None:
    """Delete the files of a run in this process, and forget its progress."""
    if rank := Rank.in_process.pop(run, None):
        rank.close()


def _save_in_time(rank: Rank, group: Group, training: Training) -> None:
    """Write a snapshot when it is time by the clock of rank 0."""
    due = group.rank == 0 and time.monotonic() - rank.snapshot_time >= training.snapshot_seconds
    if total(rank.sampler, group, int(due)):
        save_snapshot(rank, group, training.folder)
        rank.snapshot_time = time.monotonic()


def save_snapshot(rank: Rank, group: Group, folder: str) -> None:
    """Write the topics of all devices to the entries of a checkpoint; delete older entries when all are written."""
    state = rank.state.as_json()
    for block in rank.sampler.blocks.stored():
        topics = {str(number): topics for number, topics in block.topics().items()}
        generation = rank.sampler.sweep
        save_entry(folder, SNAPSHOT, [*block.tokens], topics, state, generation=generation, keep_older=True)
    total(rank.sampler, group, 0)  # a barrier: the older snapshot is whole until the new one is
    if group.rank == 0:
        delete_older(folder, SNAPSHOT, rank.sampler.sweep)


def load_topics(path: str, number: int) -> np.ndarray:
    """Return the topics of a part of the corpus from the entry of a snapshot."""
    return load_arrays(path, verify=False)[0][str(number)]


def model_of(rank: Rank) -> TopicModel:
    """Return the model, without its words."""
    state = rank.state
    return TopicModel.of_counts(rank.sampler.counts_VZ, state.priors, sweeps=state.sweep, history=state.history)


def state_of(rank: Rank) -> Snapshot:
    return rank.state
