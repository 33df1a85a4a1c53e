"""The tasks of a count run: both passes over the chunks, and the merge of each worker's results."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mgpu_ngram.cluster.executor import Handle, reduce_tasks
from mgpu_ngram.core.counts.vocabulary import HashCollision, LocalVocabulary, SpecialInText, Vocabulary
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.inputs.corpus import Chunk
from mgpu_ngram.core.inputs.streams import place_in
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.checkpoint import Checkpoint
from mgpu_ngram.core.storage.checkpoint_entries import damage_of
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.engine.count.count_chunk import CountOptions, dense_orders, plan_orders, shard_bins
from mgpu_ngram.engine.count.earlier_counts import NONE_EARLIER, Earlier, count_earlier, earlier_vocabulary, new_ids
from mgpu_ngram.engine.count.lexicon import Lexicon
from mgpu_ngram.engine.count.merge_vocabularies import (
    VOCABULARY_ENTRY,
    load_vocabulary,
    merge_vocabularies,
    move_vocabulary,
    store_vocabulary,
)
from mgpu_ngram.engine.count.sentence_markers import LmplzText
from mgpu_ngram.engine.count.sorted_runs import RUN_ENTRY, SortedRun, StoredRun, bins_of, bundle_runs, store_run
from mgpu_ngram.engine.count.strategy import OrderPlan, plans_of_shards
from mgpu_ngram.engine.count.text_ids import TextIds, bundle_ids, on_device_again
from mgpu_ngram.engine.count.token_streams import TokeniseOptions
from mgpu_ngram.engine.count.write_counts import WriteOptions
from mgpu_ngram.engine.memory.budget import Budget
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.count.chunk_ranges import (
    ChunkRange,
    TokenisedRange,
    count_range,
    ids_of_range,
    ranges_of,
    streams_of,
    tokenise_range,
)
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.count.numbering import (
    WORD_BYTES,
    Numbered,
    Numbering,
    groups,
    number_in_ranges,
    number_vocabulary,
    ranges_needed,
)
from mgpu_ngram.jobs.count.plan import BLOCK_BYTES, BYTES_PER_TOKEN, MIN_BLOCK_BYTES, text_bytes
from mgpu_ngram.jobs.saver import Saver
from mgpu_ngram.kernels.dispatch import to_host

Items = tuple[int, ...]  # numbers of the chunks of a range

HASH_SEEDS = 8
TOP = 5  # n-grams per order in the summary
STORED = 64  # stored runs whose dense histograms one task sums
WORTH_SAVING_SECONDS = 10.0  # a shorter pass 1 is not saved: a resumed run repeats it
MAX_READ_THREADS = 12  # 23 GB/s from the page cache; 16 read no faster, and leave less for launching kernels


@dataclass(frozen=True)
class CountTotals:
    """The totals of pass 1, and the plan of pass 2.

    tokens        tokens of the corpus, including sentence markers
    lines         lines of the corpus
    symbols       number of ids
    num_shards    number of shards of the counts
    split         words too heavy for a shard, as in `Lexicon`
    shard_tokens  tokens of each shard
    checksums     checksum of each part of the corpus, as for `combine_crc32`
    seconds       seconds by step of pass 1, summed over workers
    plans         the strategy of each order
    dense         orders that stay dense histograms until all chunks are summed
    """

    tokens: int
    lines: int
    symbols: int
    num_shards: int
    split: tuple[int, ...]
    shard_tokens: list[int]
    checksums: list[PartCrc]
    seconds: dict[str, float]
    plans: list[OrderPlan]
    dense: list[int]


@dataclass
class Counted:
    """The result of pass 2: a corpus in sorted runs that wait to be merged; or its tokens and the sorted runs of
    earlier counts.
    """

    runs: list[Handle]  # in memory
    texts: list[Handle]  # tokens: `TextIds`
    stored: list[SortedRun]  # in files
    lexicon: Handle
    vocabulary: Handle
    totals: CountTotals
    reports: list[Handle] = field(default_factory=list)  # of the runs in memory, once they are merged
    seconds: list[dict[str, float]] = field(default_factory=list)  # by step, of these runs
    table_bytes: int = 0  # of these runs' tables; 0 until they are reported


class CountPasses:
    """The tasks and the state of one run."""

    def __init__(
        self,
        config: CountConfig,
        context: RunContext,
        chunks: Sequence[Chunk],
        budget: Budget,
        checkpoint: Checkpoint,
        lmplz: LmplzText | None = None,
        keeps_tokens: bool = True,
    ):
        """lmplz: how to read the text, with sentence markers; None: as `config` says.

        keeps_tokens  pass 2 numbers the tokens, from which windows are selected; False: it counts chunks
        """
        self.keeps_tokens = keeps_tokens
        self.lmplz = lmplz  # if set, ids get their markers when they are tokenised
        self.sentence_markers = config.sentence_markers or (lmplz is not None and config.unit == "word")
        self.config, self.executor, self.chunks, self.budget = config, context.executor, chunks, budget
        self.checkpoint, self.checkpoint_seconds = checkpoint, context.checkpoint_seconds
        self.progress = context.progress
        self.earlier, self.added = NONE_EARLIER
        self.folder = str(checkpoint.entries_folder)
        entries = checkpoint.entries(RUN_ENTRY, self.verify)
        self.stored = [SortedRun({}, stored=(StoredRun(e.path, e.items),), chunks=e.items) for e in entries]
        self.resumed = {item for run in self.stored for item in run.chunks}
        self.saving: list[dict[str, float]] = []  # seconds of each save of vocabularies
        self.bytes_of_worker: Counter[str] = Counter()  # text that each worker has counted
        self.counting_seconds = 0.0

    def verify(self, paths: list[str]) -> list[str | None]:
        """Return the damage of each file of the checkpoint, or None; all workers read at once."""
        handles = [self.executor.call(damage_of, path, label=f"verifying {path}") for path in paths]
        self.progress.start("verify", len(handles), "files")
        self.executor.wait(handles, lambda _: self.progress.advance(1))
        return self.executor.gather(handles)

    def count(self, streams: int, earlier: Earlier = NONE_EARLIER) -> Counted:
        """Run both passes over all chunks; if the hashes of two words collide, run them again with another seed."""
        self.earlier, self.added = earlier
        for seed in range(HASH_SEEDS):
            try:
                return self._passes(streams, seed)
            except HashCollision:
                continue
            except SpecialInText as found:
                raise InputError(self._refusal(*found.args)) from None
        raise RunError(f"hashes of words collided with each of {HASH_SEEDS} seeds; please report this corpus")

    def _refusal(self, source_index: int, offset: int, word: bytes) -> str:
        source = next(p.source for c in self.chunks for p in c.pieces if p.source_index == source_index)
        return (f"{word.decode()} stands in {place_in(source, offset)}, but a model's text must not contain this word; "
                "remove it, or add --skip-symbols (skip_symbols: true) to skip such words")  # fmt: skip

    def _passes(self, streams: int, seed: int) -> Counted:
        """Call all tasks of both passes at once, so that no worker waits for this process; then watch them."""
        config, executor, device = self.config, self.executor, self.executor.device
        block_bytes = max(MIN_BLOCK_BYTES, min(BLOCK_BYTES[device], text_bytes(self.budget)))
        reading = TokeniseOptions(
            unit=config.unit, order=config.order, dtype=config.dtype, separator_id=config.separator_id,
            lowercase=config.lowercase, device=device, block_bytes=block_bytes,
            read_threads=min(MAX_READ_THREADS, executor.threads), budget=self.budget, spill_folder=self.folder,
            seed=seed, lmplz=self.lmplz is not None, ends_lines=self.lmplz is not None and self.lmplz.srilm,
            refused=len(self.lmplz.refused) if self.lmplz else 0,
        )  # fmt: skip
        counting = CountOptions(
            budget=self.budget, order=config.order, strategy=config.strategy, histograms=config.histograms,
            sentence_markers=self.sentence_markers, streams=streams, chunks=-(-len(self.chunks) // executor.workers),
            spill_folder=self.folder,
        )  # fmt: skip
        self.counting = counting
        known = self.checkpoint.entries(f"{VOCABULARY_ENTRY}_{seed}", self.verify)
        self.resumed_words = have = {item for entry in known for item in entry.items}
        ranges = ranges_of([c for c in self.chunks if c.index not in have], executor.workers)
        tokenised = [
            executor.call(tokenise_range, r, reading, self.budget, label=f"tokenising {r}", affinity=r.number)
            for r in ranges
        ]
        found = {executor.call(_vocabulary_of, t, priority=True): r for r, t in zip(ranges, tokenised, strict=True)}
        streams_R = [executor.call(streams_of, handle, priority=True) for handle in tokenised]
        vocabularies = [executor.call(load_vocabulary, entry.path) for entry in known] + list(found)
        vocabularies += [executor.call(earlier_vocabulary, counts, seed, priority=True) for counts in self.earlier]
        threads = executor.threads * executor.tasks_per_host
        numbering = Numbering(
            config.unit, self.sentence_markers, seed, self.lmplz, self.budget, self.folder, threads
        )  # fmt: skip
        saves, hash_ranges = None, 1
        if self._may_have_many_words():  # only then does it pay that workers wait for this process
            saves = self._watch_vocabularies(found, seed)
            sizes = executor.gather([executor.call(_bytes_of, v, priority=True) for v in vocabularies])
            hash_ranges = ranges_needed(sizes, self.budget)
        if hash_ranges > 1:
            numbered = number_in_ranges(executor, vocabularies, sizes, numbering, hash_ranges)
        else:
            numbered = number_vocabulary(executor, vocabularies, numbering)
        lexicon, vocabulary = executor.call(_lexicon_of, numbered), executor.call(_vocabulary_of, numbered)
        totals = executor.call(_totals, numbered, counting, self.keeps_tokens)
        second_pass = ids_of_range if self.keeps_tokens else count_range
        read_again = ranges_of([c for c in self.chunks if c.index in have], executor.workers, len(ranges))
        ranges, streams_R = ranges + read_again, streams_R + [None] * len(read_again)
        running = {
            executor.call(
                second_pass, r, streams, lexicon, reading, counting,
                label=f"counting {r}", affinity=r.number,  # its worker of pass 1; else Dask may give one worker most
            ): r
            for r, streams in zip((r.without(self.resumed) for r in ranges), streams_R, strict=True)
            if r.chunks
        }  # fmt: skip
        left = [shard for shard in self.added if shard.index not in self.resumed]
        if left:
            words, unknown = executor.call(indexed, vocabulary), executor.call(_has_unknown, vocabulary)
            ids = {counts: executor.call(new_ids, counts, words) for counts in self.earlier}
        for shard in left:
            running[
                executor.call(
                    count_earlier, shard, words, unknown, ids[shard.counts], lexicon, counting, executor.threads,
                    label=f"adding {shard.counts.folder}, {shard.paths[2].stem}", affinity=shard.index,
                )
            ] = ChunkRange(shard.index, (Chunk(shard.index, (), shard.size_bytes),))  # fmt: skip
        del tokenised, streams_R, vocabularies, numbered  # workers free results without handles
        saves = self._watch_vocabularies(found, seed) if saves is None else saves
        known_totals = executor.gather([totals])[0]
        made = self._watch_runs(running, known_totals.tokens, saves)
        numbers = range(len(self.chunks) if self.keeps_tokens else 0)  # of chunks whose result is tokens
        texts = [handle for handle, items in made.items() if items[0] in numbers]
        runs = [handle for handle, items in made.items() if items[0] not in numbers]
        return Counted(runs, texts, self.stored, lexicon, vocabulary, known_totals)

    def _may_have_many_words(self) -> bool:
        """Return whether a vocabulary of words might exceed the memory of a worker if all words were distinct."""
        words = self._work_bytes() / BYTES_PER_TOKEN["word"]
        return self.config.unit == "word" and WORD_BYTES * words > self.budget.host_bytes

    def _watch_vocabularies(self, found: dict[Handle, ChunkRange], seed: int) -> list[Handle]:
        """Watch pass 1 until every chunk has its vocabulary; return the last saves. Runs are useless without these."""
        saver = Saver[Items](self.executor, self.checkpoint_seconds, save_vocabularies, self.folder, seed, self.budget)
        start = time.monotonic()
        self.progress.start("tokenise", len(self.chunks), "chunks", "bytes")
        self.progress.advance(len(self.chunks) - sum(len(chunks.items) for chunks in found.values()))

        def done(handle: Handle) -> list[Handle]:
            if handle not in found:
                return self._saved(handle)
            chunks = found.pop(handle)
            self.progress.advance(len(chunks.items), chunks.size_bytes)
            return saver.add(handle, chunks.items)

        self.executor.wait(iter(list(found)), done)
        elapsed = time.monotonic() - start
        is_resumable = self.checkpoint_seconds < math.inf
        return saver.flush() if is_resumable and elapsed >= min(self.checkpoint_seconds, WORTH_SAVING_SECONDS) else []

    def _watch_runs(self, running: dict[Handle, ChunkRange], tokens: int, saves: list[Handle]) -> dict[Handle, Items]:
        """Watch pass 2 until every chunk is done, and `saves` are; return the results in memory and their chunks."""
        text_bytes = self._work_bytes()
        self.progress.start("count", len(self.chunks) + len(self.added), "chunks", "tokens")
        self.progress.advance(len(self.resumed))
        seconds = math.inf if self.keeps_tokens else self.checkpoint_seconds  # to number them again takes as long
        saver = Saver[Items](self.executor, seconds, save_runs, self.folder, self.budget)
        start = time.perf_counter()

        def done(handle: Handle) -> list[Handle]:
            if handle not in running:
                return self._saved(handle)
            chunks = running.pop(handle)
            self.bytes_of_worker[self.executor.worker_of(handle)] += chunks.size_bytes
            self.progress.advance(len(chunks.items), tokens * chunks.size_bytes // text_bytes)
            return saver.add(handle, chunks.items)

        self.executor.wait(iter([*running, *saves]), done)
        self.counting_seconds = time.perf_counter() - start
        return saver.waiting

    def _saved(self, handle: Handle) -> list[Handle]:
        """Record the result of a save: runs that are now in files, or the seconds of vocabularies."""
        [saved] = self.executor.gather([handle])
        if isinstance(saved, SortedRun):
            self.stored.append(saved)
        else:
            self.saving.append(saved)
        return []

    def merge(self, counted: Counted) -> list[Handle]:
        """Bundle each worker's runs into one handle; sum dense histograms as a tree and cut them into shards."""
        executor, runs = self.executor, counted.runs
        counted.runs = []
        if executor.transport != "memory":
            groups = executor.groups(runs)
            runs = [executor.call(bundle_runs, *g, colocate_with=g[0]) if len(g) > 1 else g[0] for g in groups]
        if counted.totals.dense or (counted.stored and not self.keeps_tokens):  # a stored run may be dense
            stored = [bundle_runs(*counted.stored[i : i + STORED]) for i in range(0, len(counted.stored), STORED)]
            bins = [executor.call(bins_of, r) for r in [*runs, *stored]]
            [total] = reduce_tasks(executor, bundle_runs, bins, arity=2)
            runs = [*runs, executor.call(shard_bins, total, counted.lexicon)]
        self.progress.start("reduce", len(runs), "runs")
        executor.wait(iter(list(runs)), lambda _: self.progress.advance(1))  # tasks run where finished arguments are
        # Only now: Dask would recompute a saved run if a task still depended on it.
        counted.reports += [executor.call(_report_of, run, priority=True) for run in runs]
        return runs

    def texts(self, counted: Counted, budget: Budget) -> list[Handle]:
        """Return handles of `TextIds`, the tokens of the text: one a worker, unless workers are threads of CPU cores.

        budget  of the tasks that read them: where it has room, they are on the device
        """
        executor, texts = self.executor, counted.texts
        counted.texts = []
        if executor.transport != "memory" or executor.device == "gpu":
            texts = [executor.call(bundle_ids, *group, colocate_with=group[0]) for group in executor.groups(texts)]
            executor.wait(iter(list(texts)))  # tasks run where finished arguments are
        counted.reports += [executor.call(_report_of, text, priority=True) for text in texts]
        if executor.device == "gpu" and counted.totals.num_shards > 1:
            texts = [executor.call(on_device_again, text, budget, colocate_with=text) for text in texts]
            executor.wait(iter(list(texts)))
        return texts

    def report(self, counted: Counted) -> None:
        """Record seconds and sizes of merged runs."""
        reports, counted.reports = counted.reports, []
        found = self.executor.gather(reports)
        counted.seconds, counted.table_bytes = [seconds for seconds, _ in found], sum(size for _, size in found)

    def write_options(self, folder: str, parts: int) -> WriteOptions:
        """Return how to write to a folder, with all threads for that number of parts."""
        config, executor = self.config, self.executor
        threads = executor.threads * executor.workers // max(1, min(executor.workers, parts))
        # Chunks that an earlier run counted may or may not have order 1, depending on that run's strategy.
        of_vocabulary = config.strategy == "auto" or self.keeps_tokens or self.resumed or self.earlier
        first_order = 2 if of_vocabulary else 1
        return WriteOptions(
            folder=folder, budget=self.budget, min_count=config.min_count, top=TOP, threads=threads,
            first_order=first_order, columns=config.columns, spill_folder=self.folder,
        )  # fmt: skip

    def _work_bytes(self) -> int:
        """Return the bytes of the text and of the counts that are added, at least 1."""
        return sum(c.size_bytes for c in self.chunks) + sum(shard.size_bytes for shard in self.added) or 1

    def worker_rates(self, tokens: int) -> dict[str, float]:
        """Return the tokens per second that each worker has counted."""
        text_bytes = self._work_bytes()
        seconds = self.counting_seconds or 1.0
        return {w: tokens * b / text_bytes / seconds for w, b in sorted(self.bytes_of_worker.items())}


def save_runs(runs: list[SortedRun], items: list[Items], folder: str, budget: Budget) -> SortedRun:
    """Sum runs into a file of the checkpoint, or into several if memory cannot merge all at once."""
    start = time.perf_counter()
    groups: list[list[SortedRun]] = [[]]
    for run in runs:
        if groups[-1] and sum(r.nbytes for r in groups[-1]) + run.nbytes > budget.block_bytes():
            groups.append([])
        groups[-1].append(run)
    run = bundle_runs(*(store_run(bundle_runs(*group), folder) for group in groups))
    run.seconds = add_seconds(run.seconds, {"checkpoint": time.perf_counter() - start})
    return run


def save_vocabularies(
    vocabularies: list[LocalVocabulary], items: list[Items], folder: str, seed: int, budget: Budget
) -> dict[str, float]:
    """Merge vocabularies of ranges of chunks into a file of the checkpoint, or into several if memory cannot merge all
    at once; return the seconds.
    """
    start = time.perf_counter()
    sizes = [v.nbytes for v in vocabularies]
    for group in groups(list(zip(vocabularies, items, strict=True)), sizes, budget.block_bytes()):
        merged = merge_vocabularies(*(move_vocabulary(v, "cpu") for v, _ in group))
        chunks = [item for _, of_range in group for item in of_range]
        store_vocabulary(merged, f"{VOCABULARY_ENTRY}_{seed}", chunks, folder)
    return {"checkpoint": time.perf_counter() - start}


def _bytes_of(vocabulary: LocalVocabulary) -> int:
    return vocabulary.nbytes


def _vocabulary_of(made: TokenisedRange | Numbered) -> LocalVocabulary | Vocabulary:
    return made.vocabulary


def _report_of(counted: SortedRun | TextIds) -> tuple[dict[str, float], int]:
    return counted.seconds, sum(array.nbytes for array in counted.arrays().values())


def indexed(vocabulary: Vocabulary) -> Words:
    """Return the words with their lookup table."""
    words = Words(vocabulary.offsets_V, vocabulary.data)
    _ = words.slots_C
    return words


def _has_unknown(vocabulary: Vocabulary) -> bool:
    return int(vocabulary.counts_V[0]) > 0


def _lexicon_of(numbered: Numbered) -> Lexicon:
    return numbered.lexicon


def _totals(numbered: Numbered, counting: CountOptions, keeps_tokens: bool) -> CountTotals:
    lexicon, tokens_S = numbered.lexicon, [numbered.lexicon.tokens]
    if lexicon.num_shards > 1:
        counts_V = numbered.vocabulary.counts_V
        found_S = np.bincount(to_host(lexicon.shard_V), weights=counts_V, minlength=lexicon.num_shards)
        tokens_S = found_S.astype(np.int64).tolist()
    return CountTotals(
        tokens=lexicon.tokens,
        lines=numbered.lines,
        symbols=lexicon.symbols,
        num_shards=lexicon.num_shards,
        split=lexicon.split,
        shard_tokens=tokens_S,
        checksums=numbered.checksums,
        seconds=numbered.seconds,
        plans=plans_of_shards(lexicon.symbols, counting.order) if keeps_tokens else plan_orders(lexicon, counting),
        dense=[] if keeps_tokens else dense_orders(lexicon, counting),
    )
