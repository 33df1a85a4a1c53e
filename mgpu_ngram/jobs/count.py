"""Count n-grams: a corpus in, sorted Parquet tables of every order out."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow

from mgpu_ngram.cluster.executor import Executor, Handle, reduce_tasks, windowed
from mgpu_ngram.core.checkpoint import Checkpoint, damage_of
from mgpu_ngram.core.corpus import Chunk, Corpus, open_corpus
from mgpu_ngram.core.crc import combine_crc32
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.memory import MemoryConfig, free_host_bytes
from mgpu_ngram.core.output import Output, write_manifest
from mgpu_ngram.core.settings import Bytes
from mgpu_ngram.core.shards import num_shards
from mgpu_ngram.core.sources import Source
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.core.vocabulary import HashCollision, LocalVocabulary, Vocabulary
from mgpu_ngram.engine.count import CountOptions, count_chunk, dense_orders, plan_orders, shard_bins
from mgpu_ngram.engine.device import RING_SLOTS, Stopwatch, add_seconds, free_bytes
from mgpu_ngram.engine.memory import (
    AUTO_DEVICE_SHARE,
    AUTO_HOST_SHARE,
    KEPT_BESIDE_SHARE,
    KEPT_SHARE,
    Budget,
    peak_device_bytes,
)
from mgpu_ngram.engine.plan import OrderPlan, choose
from mgpu_ngram.engine.runs import RUN, Run, StoredRun, bins_of, bundle_runs, store_run, take_part
from mgpu_ngram.engine.tokenise import SMALL_BYTES, TokenisedChunk, TokeniseOptions, tokenise, without_words
from mgpu_ngram.engine.vocabulary import (
    VOCABULARY,
    Lexicon,
    load_vocabulary,
    merge_vocabularies,
    move_vocabulary,
    number_symbols,
    store_vocabulary,
)
from mgpu_ngram.engine.write import WriteOptions, WrittenFile, write_part, write_symbols
from mgpu_ngram.jobs.progress import Progress
from mgpu_ngram.jobs.saver import Saver
from mgpu_ngram.kernels import check

HASH_SEEDS = 8
UNRESERVED_BYTES = 1 << 30  # of a device's budget, for what other streams allocate
TOP = 5  # n-grams per order in the summary
ARITY = 8  # vocabularies that are merged at once
STORED = 64  # stored runs whose dense histograms one task adds up
CHECKPOINT_SECONDS = 120.0
WORTH_SAVING_SECONDS = 10.0  # of pass 1: what took less is done again when a run is resumed
BYTES_PER_TOKEN = {"word": 5.5, "byte": 1.0}  # of text; a guess for plans
CODE_BITS = {"word": 21, "byte": 9}  # a guess for words
MOST_READ_THREADS = 16  # 26 GB/s from the page cache; 32 read no faster
BLOCK_BYTES, LEAST_BLOCK_BYTES = 64 << 20, 1 << 16  # of text, brought to the device at once


@dataclass(frozen=True)
class CountConfig:
    """Settings of a count job; the keys of its YAML."""

    corpus: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line
    order: int = 5  # highest n-gram order; all orders from 1 are counted
    unit: Literal["word", "byte", "id"] = "word"
    dtype: Literal["uint16", "uint32"] = "uint16"  # of raw token ids
    separator_id: int | None = None  # token id that no n-gram crosses or holds
    sentence_markers: bool = False  # one <s> and one </s> per line
    lowercase: bool = False  # ASCII letters only
    min_count: int = 1  # n-grams that occur less often are not written
    strategy: Literal["auto", "global", "private", "sort", "hash"] = "auto"
    histograms: int = 1  # copies of the histogram in device memory, strategy private
    text_column: str = "text"  # of Parquet inputs
    chunk_bytes: Bytes | None = None  # text per task; auto: by corpus, workers and memory
    name: str = "count"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        if self.order < 1 or (self.unit == "byte" and self.order > 8):
            most = "from 1 to 8 for unit byte" if self.unit == "byte" else "at least 1"
            raise InputError(f"order is {self.order} but must be {most}")
        if self.min_count < 1:
            raise InputError(f"min_count is {self.min_count} but must be at least 1")
        if self.histograms < 1:
            raise InputError(f"histograms is {self.histograms} but must be at least 1")
        if self.chunk_bytes is not None and self.chunk_bytes < 1:
            raise InputError(f"chunk_bytes is {self.chunk_bytes} but must be at least 1")
        if self.separator_id is not None and self.unit != "id":
            raise InputError(f"separator_id needs unit id but unit is {self.unit}; leave it out")
        if self.separator_id is not None and not 0 <= self.separator_id <= np.iinfo(self.dtype).max:
            raise InputError(
                f"separator_id is {self.separator_id} but {self.dtype} holds 0 to {np.iinfo(self.dtype).max}"
            )
        if self.sentence_markers and self.unit != "word":
            raise InputError(f"sentence_markers needs unit word but unit is {self.unit}; leave it out")
        if self.lowercase and self.unit == "id":
            raise InputError("lowercase needs unit word or byte but unit is id; leave it out")
        if not self.name or "/" in self.name or self.name in (".", ".."):
            raise InputError(f"name is {self.name!r} but must be a plain folder name")


@dataclass(frozen=True)
class CountResult:
    """What a run did. `manifest` is also in the output; the rest depends on the cluster and the clock."""

    path: Path
    manifest: dict[str, Any]
    plans: list[OrderPlan]
    top: dict[int, list[tuple[str, int]]]
    seconds: dict[str, float]  # by stage, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str  # how arrays cross from worker to worker
    worker_rates: dict[str, float]  # tokens per second of each worker's share, while chunks were counted
    peak_device_bytes: int  # the most that one worker took of its GPU
    resumed_chunks: int  # that a run before this one had counted

    @property
    def tokens_per_second(self) -> float:
        return self.manifest["tokens"] / self.wall_seconds


def run(
    config: CountConfig,
    executor: Executor,
    output: str | Path,
    overwrite: bool = False,
    progress: Progress | None = None,
    inputs: Any = None,
    memory: MemoryConfig | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    resume: bool = False,
) -> CountResult:
    """Count a corpus and write OUT/order=N/part-*.parquet, OUT/vocabulary.parquet, OUT/manifest.json.

    inputs              an in-memory corpus in place of config.corpus
    memory              what the run may take of each GPU and host, and where it spills
    checkpoint_seconds  how often finished work is saved beside the output, in OUT.checkpoint
    resume              go on from there; the result is that of an uninterrupted run
    """
    progress, memory = progress or Progress(), memory or MemoryConfig()
    start = time.perf_counter()
    corpus = open_corpus(config.corpus if inputs is None else inputs, config.unit, config.dtype, config.text_column)
    with Output.create(output, overwrite) as out:
        executor.check_folder(str(out.folder))
        budget = make_budget(memory, executor)
        executor.reserve(budget.device_bytes - UNRESERVED_BYTES)
        chosen = {"chunk_bytes": chunk_bytes(config, corpus, executor.workers, budget)}
        identity = _identity(config, corpus)
        with Checkpoint.open(out.path, identity, resume, overwrite, memory.spill_dir, chosen) as checkpoint:
            executor.check_folder(str(checkpoint.entries_folder))
            chunks = corpus.chunks(checkpoint.chosen["chunk_bytes"]) or [Chunk(0, (), 0)]
            job = Job(config, executor, chunks, budget, checkpoint, checkpoint_seconds, progress)
            counted = job.count(num_streams(config, corpus, len(chunks)))
            runs = job.merge(counted)
            seconds = [counted.totals["seconds"], *counted.seconds]
            for n in range(1, config.order + 1):
                (out.folder / f"order={n}").mkdir()
            results = job.write(counted, runs, str(out.folder))
            workers = range(executor.workers)
            peaks = executor.gather([executor.call(peak_device_bytes, executor.device, near=k) for k in workers])
            progress.finish()

            files = sorted((file for part, _ in results for file in part), key=lambda file: file.name)
            manifest = _manifest(config, corpus, counted.totals, files)
            write_manifest(out.folder, manifest)
            out.commit()
            checkpoint.discard()
    wall = time.perf_counter() - start
    return CountResult(
        out.path,
        manifest,
        counted.totals["plans"],
        _top(files, config.order),
        add_seconds(*seconds, *(run.seconds for run in counted.stored), *(s for _, s in results)),
        wall,
        executor.workers,
        executor.device,
        executor.transport,
        job.worker_rates(manifest["tokens"]),
        max(peaks),
        len(job.resumed),
    )


def chunk_bytes(config: CountConfig, corpus: Corpus, workers: int, budget: Budget) -> int:
    """Text per chunk: what was asked for, else that of M x G chunks for G workers, M as small as memory allows."""
    if config.chunk_bytes is not None:
        return config.chunk_bytes
    most = budget.text_bytes()
    if budget.device == "cpu":  # a GPU that runs out goes on in smaller parts
        most = max(1, min(most, int(budget.host_working_bytes() / _bytes_per_text_byte(config))))
    M = -(-corpus.size_bytes // (workers * most))
    return max(min(most, 1 << 20), -(-corpus.size_bytes // max(1, M * workers)))


def _bytes_per_text_byte(config: CountConfig) -> float:
    """Of the tables of a chunk when all its n-grams are distinct: in parts, and summed."""
    itemsize = np.dtype(config.dtype).itemsize
    bits = CODE_BITS.get(config.unit, 8 * itemsize)
    row_bytes = sum(8 * (check.num_columns(n, bits) + 1) for n in range(2, config.order + 1))
    return max(1.0, 2 * row_bytes / BYTES_PER_TOKEN.get(config.unit, itemsize))


def make_budget(memory: MemoryConfig, executor: Executor) -> Budget:
    """What each process of the run may take."""
    free = executor.gather([executor.call(_free_bytes, executor.device, near=k) for k in range(executor.workers)])
    device_bytes, host_bytes = map(min, zip(*free, strict=True))
    host_bytes = memory.host_bytes or int(AUTO_HOST_SHARE * host_bytes)
    per_process = host_bytes * executor.tasks_per_process // executor.sharers
    device_bytes = memory.device_bytes or int(AUTO_DEVICE_SHARE * device_bytes)
    budget = Budget(executor.device, device_bytes, per_process, executor.tasks_per_process)
    text_bytes = RING_SLOTS * min(BLOCK_BYTES, budget.text_bytes())  # buffers of text, which are not the pool's
    return replace(budget, device_bytes=max(0, device_bytes - text_bytes))


def _free_bytes(device: str) -> tuple[int, int]:
    return free_bytes(device) if device == "gpu" else 0, free_host_bytes()


def _identity(config: CountConfig, corpus: Corpus) -> dict[str, Any]:
    """What a run must share with the one that it resumes."""
    inputs = [
        {"name": s.name, "size_bytes": s.size_bytes, "modified": _modified(s), "crc32": zlib.crc32(s.data)}
        for s in corpus.sources
    ]
    return {"corpus": {"inputs": inputs}, "settings": _settings(config), "versions": {"mgpu-ngram": VERSION}}


def _modified(source: Source) -> int:
    """When a local file was changed last, in nanoseconds; 0 for others."""
    return os.stat(source.location).st_mtime_ns if source.is_local and source.location else 0


def _settings(config: CountConfig) -> dict[str, Any]:
    """Those that the result depends on."""
    settings = asdict(config)
    for key in ("corpus", "strategy", "histograms", "chunk_bytes", "name"):
        del settings[key]
    return settings


def num_streams(config: CountConfig, corpus: Corpus, chunks: int) -> int:
    """About how many streams are counted one by one: lines are joined by chunk, and so are small files."""
    if config.unit == "word":
        return chunks
    return max(chunks, sum(source.size_bytes >= SMALL_BYTES for source in corpus.sources))


@dataclass
class _Counted:
    """The end of pass 2: a corpus in runs that wait to be merged."""

    runs: list[Handle]  # in memory, and
    reports: list[Handle]  # of each
    stored: list[Run]  # in files
    lexicon: Handle
    vocabulary: Handle
    totals: dict[str, Any]
    seconds: list[dict[str, float]] = field(default_factory=list)  # of the runs in memory, and
    table_bytes: int = 0  # of their tables, once they are merged


class Job:
    """One run: its chunks, and what is known of them so far."""

    def __init__(
        self,
        config: CountConfig,
        executor: Executor,
        chunks: Sequence[Chunk],
        budget: Budget,
        checkpoint: Checkpoint,
        checkpoint_seconds: float,
        progress: Progress,
    ):
        self.config, self.executor, self.chunks, self.budget = config, executor, chunks, budget
        self.checkpoint, self.checkpoint_seconds, self.progress = checkpoint, checkpoint_seconds, progress
        self.folder = str(checkpoint.entries_folder)
        entries = checkpoint.entries(RUN, self._verify)
        self.stored = [Run({}, stored=(StoredRun(e.path, e.items),), chunks=e.items) for e in entries]
        self.resumed = {item for run in self.stored for item in run.chunks}
        self.bytes_of_worker: Counter[str] = Counter()  # text that each has counted
        self.counting_seconds = 0.0

    def _verify(self, paths: list[str]) -> list[str | None]:
        """What is damaged of each file of the checkpoint, if anything: all workers read at once."""
        handles = [self.executor.call(damage_of, path, label=f"verifying {path}") for path in paths]
        self.progress.start("verify", len(handles), "files")
        self.executor.wait(handles, lambda _: self.progress.advance(1))
        return self.executor.gather(handles)

    def count(self, streams: int) -> _Counted:
        """Both passes over all chunks; again with another hash should two words collide."""
        for seed in range(HASH_SEEDS):
            try:
                return self._passes(streams, seed)
            except HashCollision:
                continue
        raise RunError(f"words collided under each of {HASH_SEEDS} hash functions; please report this corpus")

    def _passes(self, streams: int, seed: int) -> _Counted:
        """Call all tasks of both passes at once, so that no worker waits for this process; then watch them."""
        config, executor, device = self.config, self.executor, self.executor.device
        block_bytes = max(LEAST_BLOCK_BYTES, min(BLOCK_BYTES, self.budget.text_bytes()))
        reading = TokeniseOptions(
            config.unit, config.order, config.dtype, config.separator_id, config.lowercase, device, block_bytes,
            min(MOST_READ_THREADS, executor.threads), self.budget, seed,
        )  # fmt: skip
        counting = CountOptions(
            self.budget, config.order, config.strategy, config.histograms, config.sentence_markers, streams,
            -(-len(self.chunks) // executor.workers), self.folder,
        )  # fmt: skip
        known = self.checkpoint.entries(f"{VOCABULARY}_{seed}", self._verify)
        have = {item for entry in known for item in entry.items}
        tokenised = {
            c.index: executor.call(tokenise, c, reading, label=f"tokenising {c}")
            for c in self.chunks
            if c.index not in have
        }
        found = {executor.call(_vocabulary_of, handle, first=True): chunk for chunk, handle in tokenised.items()}
        streams_of = {chunk: executor.call(without_words, handle, first=True) for chunk, handle in tokenised.items()}
        vocabularies = [executor.call(load_vocabulary, entry.path, device) for entry in known] + list(found)
        while len(vocabularies) > ARITY:
            groups = (vocabularies[i : i + ARITY] for i in range(0, len(vocabularies), ARITY))
            vocabularies = [executor.call(_merge_vocabularies, group, device, first=True) for group in groups]
        numbered = executor.call(_number, vocabularies, config.unit, config.sentence_markers, seed, device, near=0)
        lexicon, vocabulary = executor.call(_lexicon_of, numbered), executor.call(_vocabulary_of, numbered)
        totals = executor.call(_totals, numbered, counting)
        running = {
            executor.call(count_chunk, c, streams_of.get(c.index), lexicon, reading, counting, label=f"counting {c}"): c
            for c in self.chunks
            if c.index not in self.resumed
        }
        reports = {handle: executor.call(_report_of, handle, first=True) for handle in running}
        del tokenised, streams_of, vocabularies, numbered  # workers free what nobody asks for any more
        saves = self._watch_vocabularies(found, seed)
        known_totals = executor.gather([totals])[0]
        runs = self._watch_runs(running, known_totals["tokens"], saves)
        return _Counted(runs, [reports[run] for run in runs], self.stored, lexicon, vocabulary, known_totals)

    def _watch_vocabularies(self, found: dict[Handle, int], seed: int) -> list[Handle]:
        """Pass 1, until every chunk has its vocabulary; returns the last saves. Runs are of no use without these."""
        sizes = {c.index: c.size_bytes for c in self.chunks}
        saver = Saver(self.executor, self.checkpoint_seconds, save_vocabularies, self.folder, seed)
        start = time.monotonic()
        self.progress.start("tokenise", len(sizes), "chunks", "bytes")
        self.progress.advance(len(sizes) - len(found))

        def done(handle: Handle) -> list[Handle]:
            if handle not in found:
                return []  # a save
            chunk = found.pop(handle)
            self.progress.advance(1, sizes[chunk])
            return saver.add(handle, chunk)

        self.executor.wait(iter(list(found)), done)
        worth_saving = time.monotonic() - start >= min(self.checkpoint_seconds, WORTH_SAVING_SECONDS)
        return saver.flush() if worth_saving else []

    def _watch_runs(self, running: dict[Handle, Chunk], tokens: int, saves: list[Handle]) -> list[Handle]:
        """Pass 2, until every chunk is in a run and `saves` are done; returns the runs in memory."""
        text_bytes = sum(c.size_bytes for c in self.chunks) or 1
        self.progress.start("count", len(self.chunks), "chunks", "tokens")
        self.progress.advance(len(self.resumed))
        saver = Saver(self.executor, self.checkpoint_seconds, save_runs, self.folder, self.budget)
        start = time.perf_counter()

        def done(handle: Handle) -> list[Handle]:
            if handle not in running:  # a save: what it saved is in its file from now on
                saved = self.executor.gather([handle])[0]
                if isinstance(saved, Run):
                    self.stored.append(saved)
                return []
            chunk = running.pop(handle)
            self.bytes_of_worker[self.executor.worker_of(handle)] += chunk.size_bytes
            self.progress.advance(1, tokens * chunk.size_bytes // text_bytes)
            return saver.add(handle, chunk.index)

        self.executor.wait(iter([*running, *saves]), done)
        self.counting_seconds = time.perf_counter() - start
        return list(saver.waiting)

    def merge(self, counted: _Counted) -> list[Handle]:
        """The runs of a worker become one handle; dense histograms are added up in a tree and cut into shards."""
        executor, runs, reports = self.executor, counted.runs, counted.reports
        counted.runs = []
        if executor.transport != "memory":
            groups = executor.groups(runs)
            runs = [executor.call(bundle_runs, *g, beside=g[0]) if len(g) > 1 else g[0] for g in groups]
        if counted.totals["dense"] or counted.stored:  # what a resumed run stored may be dense, whatever this one does
            stored = [bundle_runs(*counted.stored[i : i + STORED]) for i in range(0, len(counted.stored), STORED)]
            bins = [executor.call(bins_of, r) for r in [*runs, *stored]]
            total = reduce_tasks(executor, bundle_runs, bins, arity=2)
            runs = [*runs, executor.call(shard_bins, total, counted.lexicon)]
            reports = [*reports, executor.call(_report_of, runs[-1])]
        self.progress.start("reduce", len(runs), "runs")
        executor.wait(iter(list(runs)), lambda _: self.progress.advance(1))
        seconds, sizes = zip(*executor.gather(reports), strict=True) if reports else ((), ())
        counted.seconds, counted.table_bytes = list(seconds), sum(sizes)
        return runs

    def write(
        self, counted: _Counted, runs: list[Handle], folder: str
    ) -> list[tuple[list[WrittenFile], dict[str, float]]]:
        """Shuffle runs to the parts that own their shards; every part is merged and written by one task."""
        config, executor = self.config, self.executor
        parts = self.parts(counted)
        threads = executor.threads * executor.workers // min(executor.workers, len(parts))
        # of chunks that another run counted, order 1 is there or not, by the strategy of that run
        first_order = 2 if config.strategy == "auto" or self.resumed else 1
        options = WriteOptions(folder, self.budget, config.min_count, TOP, threads, first_order)
        written = executor.call(_write_symbols, counted.vocabulary, options)
        results = []

        def call(part: int, pieces: list[Handle | Run]) -> Handle:
            first, last = parts[part]
            return executor.call(
                write_part, pieces, first, last, counted.vocabulary, options,
                label=f"writing shards {first} to {last - 1}", near=part,
            )  # fmt: skip

        def done(handle: Handle) -> None:
            results.append(executor.gather([handle])[0])
            self.progress.advance(1)

        self.progress.start("write", len(parts), "parts")
        self.shuffle(runs, parts, call, done)
        return [*results, *executor.gather([written])]

    def parts(self, counted: _Counted) -> list[tuple[int, int]]:
        """(first, last) shards of each part: as many parts as workers, or more so that two fit in memory."""
        S, workers = counted.totals["num_shards"], self.executor.workers
        stored_bytes = sum(os.path.getsize(s.path) for run in counted.stored for s in run.stored)
        rounds = -(
            -(counted.table_bytes + stored_bytes) // (workers * self.budget.part_bytes(counted.table_bytes // workers))
        )
        P = min(S, workers * max(1, rounds))
        return [(p * S // P, (p + 1) * S // P) for p in range(P)]

    def shuffle(
        self,
        runs: list[Handle],
        parts: list[tuple[int, int]],
        call: Callable[[int, list[Handle | Run]], Handle],
        done: Callable[[Handle], None],
    ) -> None:
        """call(part, what all runs hold of it), two parts a worker at a time. Empties `runs`, to free their memory."""
        if len(parts) == 1:
            taken = [list(runs)]
        else:
            by_run = [[self.executor.call(take_part, run, *shards, beside=run) for shards in parts] for run in runs]
            taken = [list(pieces) for pieces in zip(*by_run, strict=True)] or [[] for _ in parts]
        runs.clear()
        stored = self.executor.call(bundle_runs, *self.stored)  # once: it may name thousands of files
        calls = (partial(call, part, [*taken.pop(0), stored]) for part in range(len(parts)))
        windowed(self.executor, calls, 2 * self.executor.workers, done)

    def worker_rates(self, tokens: int) -> dict[str, float]:
        """Tokens per second that each worker has counted."""
        text_bytes = sum(c.size_bytes for c in self.chunks) or 1
        seconds = self.counting_seconds or 1.0
        return {w: tokens * b / text_bytes / seconds for w, b in sorted(self.bytes_of_worker.items())}


def save_runs(runs: list[Run], items: list[int], folder: str, budget: Budget) -> Run:
    """Sum runs into a file of the checkpoint, or into several when there is no memory to merge all at once."""
    start = time.perf_counter()
    groups: list[list[Run]] = [[]]
    for run in runs:
        if groups[-1] and sum(r.nbytes for r in groups[-1]) + run.nbytes > budget.block_bytes():
            groups.append([])
        groups[-1].append(run)
    run = bundle_runs(*(store_run(bundle_runs(*group), folder) for group in groups))
    run.seconds = add_seconds(run.seconds, {"checkpoint": time.perf_counter() - start})
    return run


def save_vocabularies(vocabularies: list[LocalVocabulary], items: list[int], folder: str, seed: int) -> None:
    """Merge vocabularies of chunks into a file of the checkpoint."""
    store_vocabulary(_merge_vocabularies(vocabularies, "cpu"), f"{VOCABULARY}_{seed}", items, folder)


def _merge_vocabularies(vocabularies: list[LocalVocabulary], device: str) -> LocalVocabulary:
    return merge_vocabularies(*(move_vocabulary(v, device) for v in vocabularies))


def _number(
    vocabularies: list[LocalVocabulary], unit: str, sentence_markers: bool, seed: int, device: str
) -> _Numbered:
    watch = Stopwatch(device)
    merged = _merge_vocabularies(vocabularies, device)
    lexicon, vocabulary = number_symbols(merged, unit, sentence_markers, seed, device)
    watch.lap("vocabulary")
    return _Numbered(lexicon, vocabulary, merged.lines, merged.checksums, add_seconds(merged.seconds, watch.seconds))


@dataclass
class _Numbered:
    """The end of pass 1."""

    lexicon: Lexicon
    vocabulary: Vocabulary
    lines: int
    checksums: list
    seconds: dict[str, float]


def _vocabulary_of(made: TokenisedChunk | _Numbered) -> LocalVocabulary | Vocabulary:
    return made.vocabulary


def _report_of(run: Run) -> tuple[dict[str, float], int]:
    return run.seconds, run.nbytes


def _lexicon_of(numbered: _Numbered) -> Lexicon:
    return numbered.lexicon


def _totals(numbered: _Numbered, counting: CountOptions) -> dict[str, Any]:
    lexicon = numbered.lexicon
    plans = plan_orders(lexicon, counting)
    return {
        "tokens": lexicon.tokens,
        "lines": numbered.lines,
        "symbols": lexicon.symbols,
        "num_shards": lexicon.num_shards,
        "checksums": numbered.checksums,
        "seconds": numbered.seconds,
        "plans": plans,
        "dense": dense_orders(lexicon, counting),
    }


def _table_bytes(tokens: int, symbols: int, order: int, chunks: int) -> int:
    """Bytes of the tables of all chunks if all n-grams of a chunk are distinct."""
    bits = check.code_bits(symbols)
    return sum(min(tokens, chunks * symbols**n) * 8 * (check.num_columns(n, bits) + 1) for n in range(2, order + 1))


def _write_symbols(vocabulary: Vocabulary, options: WriteOptions) -> tuple[list[WrittenFile], dict[str, float]]:
    start = time.perf_counter()
    files = write_symbols(vocabulary, options, options.first_order == 2)
    return files, {"write": time.perf_counter() - start}


def _top(files: Sequence[WrittenFile], max_order: int) -> dict[int, list[tuple[str, int]]]:
    """The n-grams that occur most, by order; ties by ids."""
    top = {}
    for n in range(1, max_order + 1):
        best = sorted((-count, codes, text) for file in files if file.order == n for count, codes, text in file.top)
        top[n] = [(text, -negative) for negative, _, text in best[:TOP]]
    return top


def _manifest(
    config: CountConfig, corpus: Corpus, totals: dict[str, Any], files: Sequence[WrittenFile]
) -> dict[str, Any]:
    """What the result depends on and what it is: no word of chunks, workers or devices."""
    parts: list[list] = [[] for _ in corpus.sources]
    for part in totals["checksums"]:
        parts[part[0]].append(part)
    inputs = [
        {"name": source.name, "size_bytes": source.size_bytes, "crc32": f"{combine_crc32(mine):08x}"}
        for source, mine in zip(corpus.sources, parts, strict=True)
    ]
    orders = {}
    for n in range(1, config.order + 1):
        mine = [f for f in files if f.order == n]
        orders[str(n)] = {key: sum(getattr(f, key) for f in mine) for key in ("distinct", "rows", "total")}
    return {
        "files": {f.name: {"rows": f.rows, "size_bytes": f.size_bytes, "crc32": f"{f.crc32:08x}"} for f in files},
        "inputs": inputs,
        "lines": totals["lines"],
        "num_shards": totals["num_shards"],
        "options": _settings(config),
        "order": config.order,
        "orders": orders,
        "symbols": totals["symbols"],
        "tokens": totals["tokens"],
        "unit": config.unit,
        "versions": {"mgpu-ngram": VERSION, "pyarrow": pyarrow.__version__},
    }


def plan(
    config: CountConfig,
    workers: int,
    device: str,
    memory_bytes: int,
    memory: MemoryConfig | None = None,
    output: str | Path = ".",
) -> dict[str, Any]:
    """What `run` would do, from the sizes of the inputs alone: chunks, shards, strategies, bytes, spills.

    memory_bytes  free memory of a GPU, or of the host
    output        folder of the result, beside which runs are spilled unless `memory` says otherwise

    Raises InputError where the run could not fit.
    """
    memory = memory or MemoryConfig()
    host_bytes = memory.host_bytes or int(AUTO_HOST_SHARE * free_host_bytes())
    device_bytes = memory.device_bytes or int(AUTO_DEVICE_SHARE * memory_bytes)
    budget = Budget(device, device_bytes if device == "gpu" else 0, host_bytes // workers)
    corpus = open_corpus(config.corpus, config.unit, config.dtype, config.text_column)
    chunks = corpus.chunks(chunk_bytes(config, corpus, workers, budget))
    text_bytes = sum(c.size_bytes for c in chunks)
    per_token = BYTES_PER_TOKEN.get(config.unit, np.dtype(config.dtype).itemsize)
    tokens = int(text_bytes / per_token)
    most = 1 << 8 * np.dtype(config.dtype).itemsize if config.unit == "id" else tokens
    symbols = (
        256 if config.unit == "byte" else max(1, min(tokens, most, int(30 * tokens**0.55)))
    )  # Heaps' law, about English
    largest = int(max((c.size_bytes for c in chunks), default=0) / per_token)
    work_bytes = device_bytes if device == "gpu" else budget.host_bytes
    plans = choose(
        config.order, symbols, largest, config.strategy, config.histograms, device, work_bytes, config.unit, False
    )
    table_bytes = _table_bytes(tokens, symbols, config.order, len(chunks))  # all n-grams distinct
    held_bytes = table_bytes + tokens * (1 if config.unit == "byte" else 4)
    on_devices = int(KEPT_SHARE["gpu"] * workers * device_bytes) if device == "gpu" else 0
    on_host = int((KEPT_SHARE["cpu"] if device == "cpu" else KEPT_BESIDE_SHARE) * host_bytes)
    spill_bytes = max(0, table_bytes - on_devices - on_host)
    spill_folder = Path(memory.spill_dir or output).absolute()
    disk_bytes = shutil.disk_usage(next(p for p in [spill_folder, *spill_folder.parents] if p.exists())).free
    if spill_bytes > disk_bytes:
        raise InputError(
            f"{config.name}: up to {spill_bytes:,} bytes of sorted runs may be spilled to {spill_folder}, which has "
            f"{disk_bytes:,} free; give another memory.spill_dir, lower the order, or count parts of the corpus"
        )
    return {
        "job": config.name,
        "device": device,
        "workers": workers,
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "tokens_about": tokens,
        "symbols_about": symbols,
        "chunks": len(chunks),
        "chunks_per_worker": -(-len(chunks) // workers),
        "chunk_bytes": max((c.size_bytes for c in chunks), default=0),
        "shards": num_shards(tokens, config.unit),
        "orders": [asdict(p) for p in plans],
        "device_bytes": max(p.device_bytes for p in plans),
        "device_bytes_free": work_bytes,
        "host_bytes": min(on_host, max(0, held_bytes - on_devices)),
        "host_bytes_free": host_bytes,
        "spill_bytes": spill_bytes,
    }
