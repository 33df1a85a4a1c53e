"""Train a topic model from a corpus on all workers of an executor, and restart when workers are lost."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.cluster.executor import MAX_DEATHS, Executor, Handle
from mgpu_ngram.cluster.gang import GangError
from mgpu_ngram.core.bags.bag_files import save_bags
from mgpu_ngram.core.bags.bags import Bags, empty_corpus
from mgpu_ngram.core.bags.topic_model import Priors, TopicModel
from mgpu_ngram.core.errors import InputError, RunError, warn
from mgpu_ngram.core.memory_config import MemoryConfig, free_host_bytes
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.checkpoint_entries import Entry
from mgpu_ngram.core.storage.scratch import scratch_folder
from mgpu_ngram.engine.bags.bag_corpus import BagCorpus
from mgpu_ngram.engine.lda import rank as lda_rank
from mgpu_ngram.engine.lda.documents import CorpusPart
from mgpu_ngram.engine.lda.hold_out import held_out_tokens
from mgpu_ngram.engine.lda.rank import AS_CONFIGURED, Snapshot, Training
from mgpu_ngram.engine.lda.seed_priors import seed_priors
from mgpu_ngram.jobs.lda.config import LdaConfig
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.kernels.lda.limits import MAX_DOCUMENT_TOKENS, MAX_WORD_TOKENS

WAIT_SECONDS = 60.0  # for lost workers to come back
WORD_BYTES = 24  # for each word: its total, its tokens in a part, and their sum
POLL_SECONDS = 0.2  # between looks at the progress of the workers
Callback = Callable[[int, dict[str, float]], object]


@dataclass(frozen=True)
class TrainingCorpus:
    """Documents to train on.

    parts      parts of the corpus, in order
    num_words  V
    words      the V words; None if only ids are known
    priors     initial priors
    tokens     number of tokens of all documents
    held_out   number of these tokens that are held out
    earlier    model of earlier documents, whose counts are added to the new model
    """

    parts: Sequence[CorpusPart]
    num_words: int
    words: Words | None
    priors: Priors
    documents: int
    tokens: int
    held_out: int = 0
    earlier: TopicModel | None = None


def corpus_of(
    config: LdaConfig,
    bags: BagCorpus,
    seeds: Mapping[Any, Any],
    folder: Path | None = None,
    keep_bytes: int = 0,
    earlier: TopicModel | None = None,
) -> TrainingCorpus:
    """Return the corpus of bags of words, in parts of `config.part_tokens` tokens.

    seeds       special priors of words, as in `seed_priors`; the earlier model has its own
    folder      folder for documents that do not stay in memory; None: all stay
    keep_bytes  bytes of documents that stay in memory; 0 if workers are other processes
    earlier     model of earlier documents, whose counts are added to the new model

    Raises InputError for seed words that `seed_priors` refuses, a document with over MAX_DOCUMENT_TOKENS tokens, a word
    with over MAX_WORD_TOKENS tokens, more words than fit memory, and, without an earlier model, no tokens.
    """
    num_words, how = bags.num_words, (config.held_out, config.seed)
    own = seed_priors(seeds, bags.words, num_words, config.topics, config.beta) if seeds and not earlier else {}
    priors = earlier.priors if earlier else Priors(np.array(config.alphas), config.beta, own)
    _refuse_many_words(num_words)
    parts, documents, tokens, held, kept = list[CorpusPart](), 0, 0, 0, 0
    totals_V = np.zeros(num_words, np.int64) if earlier is None else earlier.word_totals_V()
    for number, block in enumerate(bags.blocks(config.part_tokens)):
        _refuse_long(block, documents)
        totals_V += np.bincount(block.words_P, block.counts_P, minlength=num_words).astype(np.int64)
        path = None
        if folder and kept + block.nbytes > keep_bytes:
            folder.mkdir(exist_ok=True)
            path = str(folder / f"part-{number:06}.safetensors")
            save_bags(path, block, durable=False)
        else:
            kept += block.nbytes
        parts.append(CorpusPart.of(number, documents, block, path, how))
        held += held_out_tokens(block, documents, *how) if config.held_out else 0
        documents += block.documents
        tokens += block.tokens
    if totals_V.max(initial=0) > MAX_WORD_TOKENS:
        word = int(totals_V.argmax())
        raise InputError(
            f"word {word:,} of the vocabulary occurs {totals_V[word]:,} times but may occur at most "
            f"{MAX_WORD_TOKENS:,} times; "
            "leave it out"
        )
    if not tokens and not earlier:
        raise empty_corpus(bags.name, documents)
    if config.held_out and tokens and not held:
        warn(
            f"held_out is {config.held_out:g} but no token of the {documents:,} documents is held out, so there is no "
            "held-out perplexity; raise held_out, or change the seed"
        )
    return TrainingCorpus(
        parts, num_words, bags.words, priors, documents=documents, tokens=tokens, held_out=held, earlier=earlier
    )


def _refuse_many_words(num_words: int) -> None:
    """Raise InputError if the totals of words cannot be in memory: a damaged header may give any number of words."""
    need, free = WORD_BYTES * num_words, free_host_bytes()
    if need > free:
        raise InputError(
            f"the totals of {num_words:,} words take {need:,} bytes but {free:,} are free; give documents with fewer "
            "words, or correct the number of columns"
        )


def _refuse_long(bags: Bags, first: int) -> None:
    """Raise InputError for a document that is too long; `first` is the number of document 0."""
    lengths_D = bags.lengths_D()
    if lengths_D.max(initial=0) > MAX_DOCUMENT_TOKENS:
        d = int(lengths_D.argmax())
        raise InputError(
            f"document {first + d:,} has {lengths_D[d]:,} tokens but a document may have at most "
            f"{MAX_DOCUMENT_TOKENS:,}; "
            "cut it into several"
        )


@dataclass(frozen=True)
class Trained:
    """A trained model.

    tokens   number of tokens that a sweep draws, without those held out
    seconds  seconds of the training
    swept    number of sweeps of this run, without sweeps before a resume
    """

    model: TopicModel
    tokens: int
    seconds: float
    swept: int


def train(
    config: LdaConfig,
    corpus: TrainingCorpus,
    executor: Executor,
    progress: Progress | None = None,
    callback: Callback | None = None,
    storage: Storage | None = None,
) -> Trained:
    """Return the trained model. Raises RunError if too many workers are lost.

    callback  called with the sweep and its metrics every `evaluate_every` sweeps; training stops when it returns True
    """
    return _Run(config, corpus, executor, progress or Progress(), storage or Storage()).train(callback)


@dataclass(frozen=True)
class Storage:
    """The place of the snapshots of a run, and the memory for its documents.

    folder    folder of the entries; "" for no snapshots
    seconds   seconds between snapshots
    entries   function that returns the entries of the newest complete snapshot, or []
    memory    memory limits of each device and host; documents that do not fit go to files in its spill_dir
    """

    folder: str = ""
    seconds: float = 0.0
    entries: Callable[[], list[Entry]] = list
    memory: MemoryConfig = field(default_factory=MemoryConfig)


class _Run:
    def __init__(
        self, config: LdaConfig, corpus: TrainingCorpus, executor: Executor, progress: Progress, storage: Storage
    ):
        self.config, self.corpus, self.executor = config, corpus, executor
        self.progress, self.storage = progress, storage
        self.name = secrets.token_hex(8)
        self.ranks: list[Handle] = []
        self.state = Snapshot(0, corpus.priors)
        self.started: int | None = None  # sweeps before those of this run

    def train(self, callback: Callback | None) -> Trained:
        config, begin, deaths = self.config, time.perf_counter(), 0
        self.progress.start("sweep", config.sweeps, rate="tokens")
        try:
            with _ProgressWatch(self):
                while True:
                    try:
                        if not self.ranks:
                            self._open(WAIT_SECONDS if deaths else 0)
                            self.started = self.state.sweep if self.started is None else self.started
                        while self.state.sweep < config.sweeps and not self.state.stopped:
                            self._segment(callback)
                        [model] = self._ask(lda_rank.model_of, self.ranks[:1])
                        break
                    except GangError as error:
                        if not error.lost:
                            raise
                        deaths += 1
                        self.ranks = []
                        if deaths >= MAX_DEATHS:
                            raise RunError(
                                f"the training lost workers {deaths} times, the last time {', '.join(error.lost)}; "
                                f"look at their logs, then run again {self.executor.resume_hint}".rstrip()
                            ) from error
                        goes_on = "goes on from its last snapshot" if self.storage.entries() else "starts again"
                        warn(f"the training lost worker {', '.join(error.lost)}; it {goes_on}")
        finally:
            self.progress.finish()
            self.executor.everywhere(lda_rank.close_rank, self.name)
        seconds = time.perf_counter() - begin
        tokens = self.corpus.tokens - self.corpus.held_out
        model = replace(model, words=self.corpus.words, settings=config.model_settings)
        return Trained(model, tokens, seconds, self.state.sweep - (self.started or 0))

    def _open(self, wait_seconds: float) -> None:
        """Start the ranks, from the newest snapshot if there is one.

        wait_seconds  for workers that are missing
        """
        entries = self.storage.entries()
        state = Snapshot.of_json(entries[0].metadata) if entries else Snapshot(0, self.corpus.priors)
        files = {item: entry.path for entry in entries for item in entry.items} if entries else None
        size = max(1, self.executor.gang_size(wait_seconds) // self.executor.tasks_per_process)
        training = self._training(state.sweep)
        arguments = [
            (
                of_rank,
                training,
                state,
                files and {part.number: files[part.number] for part in of_rank},
                None if rank else self.corpus.earlier,
            )
            for rank, of_rank in enumerate(split_parts(self.corpus.parts, size))
        ]
        self.ranks = self.executor.gang(lda_rank.open_rank, arguments, label="the start of the training")
        self.state = state

    def _segment(self, callback: Callback | None) -> None:
        """Sweep to the end, or to the next metrics if somebody waits for them."""
        last = self.config.sweeps
        if callback and self.config.evaluate_every:
            last = min(last, (self.state.sweep // self.config.evaluate_every + 1) * self.config.evaluate_every)
        training = self._training(last)
        arguments = [(rank, training) for rank in self.ranks]
        self.ranks = self.executor.gang(lda_rank.sweep_rank, arguments, label="the sweeps")
        [self.state] = self._ask(lda_rank.state_of, self.ranks[:1])
        history = self.state.history
        if callback and history and history[-1]["sweep"] == self.state.sweep:
            metrics = {name: value for name, value in history[-1].items() if name != "sweep"}
            if callback(self.state.sweep, metrics):
                self.state = replace(self.state, stopped=True)

    def _ask(self, fn: Callable[..., Any], ranks: Sequence[Handle]) -> list[Any]:
        tasks = [self.executor.call(fn, rank, colocate_with=rank) for rank in ranks]
        self.executor.wait(tasks)
        return [self.executor.fetch(task) for task in tasks]

    def _training(self, last: int) -> Training:
        config, executor = self.config, self.executor
        return Training(
            run=self.name,
            num_words=self.corpus.num_words,
            num_topics=config.topics,
            last=last,
            folder=self.storage.folder,
            snapshot_seconds=self.storage.seconds,
            memory=self.storage.memory,
            device=executor.device,
            threads=executor.threads * executor.tasks_per_process,
            **{name: getattr(config, name) for name in AS_CONFIGURED},
        )


def split_parts(parts: Sequence[CorpusPart], size: int) -> list[list[CorpusPart]]:
    """Return `size` lists of consecutive parts; with fewer parts, as many lists as parts."""
    size = min(size, len(parts))
    cuts = [len(parts) * i // size for i in range(size + 1)]
    return [list(parts[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]


class _ProgressWatch:
    """Reports the sweeps of the workers as progress while the block runs."""

    def __init__(self, run: _Run):
        self.run, self._end = run, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._shown = 0

    def _watch(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            try:
                found = self.run.executor.everywhere(lda_rank.progress_of, self.run.name)
            except Exception:  # a worker is being lost: the training itself will tell
                continue
            self._show(*max(found, key=lambda each: each[0]))

    def _show(self, sweep: int, metrics: dict[str, float] | None = None) -> None:
        if metrics:
            perplexity = metrics.get("held_out_perplexity", metrics["perplexity"])
            self.run.progress.note(f"perplexity {perplexity:,.1f}")
        if sweep > self._shown:
            drawn = max(0, sweep - max(self._shown, self.run.started or 0))
            tokens = self.run.corpus.tokens - self.run.corpus.held_out
            self.run.progress.advance(sweep - self._shown, drawn * tokens)
            self._shown = sweep

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._show(self.run.state.sweep)


def shared_folder(executor: Executor) -> Path | None:
    """Return a folder for documents that all workers see; None: documents are sent with the tasks."""
    folder = scratch_folder()
    try:
        executor.check_folder(folder)
        return Path(folder)
    except (InputError, RuntimeError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
