"""Filter one shard of documents: read it, score it, and write the kept documents with new fields."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.documents.buckets import Rules
from mgpu_ngram.core.documents.new_fields import NewField
from mgpu_ngram.core.documents.normalize import Normalizer
from mgpu_ngram.core.documents.text_column import TextColumn, head_of
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.core.storage.checkpoint_entries import save_entry
from mgpu_ngram.core.storage.output import new_file
from mgpu_ngram.core.storage.safetensors import load_arrays
from mgpu_ngram.engine.filter.files import LINES_FIELD, DocumentBlock, open_writer, read_shard, reject_line
from mgpu_ngram.engine.filter.score_documents import (
    DocumentScorer,
    DocumentScores,
    DocumentTotals,
    SentenceUnit,
    perplexities,
)
from mgpu_ngram.engine.filter.stats import (
    SAMPLE_CHARACTERS,
    SAMPLES,
    BucketStats,
    FilterStats,
    perplexity_histogram,
    sample_ranks,
)
from mgpu_ngram.engine.filter.subwords import SubwordCodes, replica_codes
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.score.score_chunk import LESS_TO_SCORE, ScoreOptions, replica_of

T = TypeVar("T")

SCORES_ENTRY, SHARD_ENTRY = "scores", "shard"  # kinds of checkpoint entries
GPU_BLOCKS = 4  # at once on a GPU: some are copied while others are scored
GPU_THREADS = 6  # threads that share blocks: more would all parse, then all wait for the GPU, then all render


@dataclass(frozen=True)
class DocumentModel:
    """A model, the path of its tokeniser's file ("": white space separates words), and its contrast model."""

    scoring: ScoreOptions
    tokenizer: str
    contrast: ScoreOptions | None = None


@dataclass(frozen=True)
class FilterOptions:
    """How documents are read, scored and written. Picklable; the same for every shard of a run.

    models       models by language; the key "" is for all documents, whatever their language
    language     field with the language of a document; "": none
    fields       new fields
    block_bytes  bytes of a file that are read and scored at once
    threads      threads that share the blocks of a shard (on a GPU GPU_THREADS of them) and compress its JSON lines
    """

    models: dict[str, DocumentModel]
    language: str
    fields: tuple[str, ...]
    normalize: Normalizer
    sentences: SentenceUnit
    block_bytes: int
    device: str
    threads: int = 1


@dataclass
class ShardScores:
    """Where the scores of a shard are: the path of a checkpoint's entry."""

    path: str
    documents: int
    seconds: dict[str, float]


@dataclass
class WrittenShard:
    """A shard that was written."""

    stats: FilterStats
    seconds: dict[str, float]


def shard_name(number: int) -> str:
    """Return the name of a finished shard among the entries of a checkpoint."""
    return f"shard-{number:06d}"


def rejects_name(number: int) -> str:
    """Return the name of the rejects of a finished shard among the entries of a checkpoint."""
    return f"rejects-{number:06d}"


def score_shard(number: int, source: Source, options: FilterOptions, folder: str, most: int | None) -> ShardScores:
    """Score a shard, and save its scores and the languages of its documents as an entry of a checkpoint.

    folder  folder of the entries
    most    number of first documents to score; None: all
    """
    watch = Stopwatch(options.device)
    scorer = Scorers(options)
    parts: list[DocumentScores] = []
    numbers: list[int] = []
    known: dict[str | None, int] = {}

    def score(first: int, block: DocumentBlock) -> tuple[DocumentScores, Sequence[Any], Stopwatch]:
        own = Stopwatch(options.device)
        left = None if most is None else max(0, most - first)
        texts = block.texts if left is None or left >= len(block.texts) else block.texts[:left]
        languages = block.column(options.language)[:left]
        return scorer.score(texts, languages, own), languages, own

    with memory_guard("scoring", options.device, LESS_TO_SCORE), _Blocks(source, options, watch) as blocks:
        for part, languages, own in blocks.map(score):
            watch.add(own.seconds)
            parts.append(part)
            for value in languages:
                numbers.append(known.setdefault(value if isinstance(value, str) else None, len(known)))
            if len(numbers) == most:
                break
    scores = DocumentScores.joined(parts)
    arrays = vars(scores) | {"language_D": np.array(numbers, np.int32)}
    watch.skip()
    path = save_entry(folder, SCORES_ENTRY, [number], arrays, {"languages": list(known)})
    watch.lap("write")
    return ShardScores(path, len(scores), watch.seconds)


def load_scores(path: str) -> tuple[DocumentScores, list[str | None]]:
    """Return the scores that `score_shard` saved, and the language of each document."""
    arrays, metadata = load_arrays(path)
    languages = [metadata["languages"][i] for i in arrays.pop("language_D").tolist()]
    return DocumentScores(**arrays), languages


def write_shard(
    number: int, source: Source, options: FilterOptions, rules: Rules, folder: str, scores: str | None
) -> WrittenShard:
    """Write the kept documents of a shard and its rejects, and save the totals as an entry of a checkpoint.

    folder  folder of the entries, and of the files
    scores  the path of `score_shard`; None: documents are scored now
    """
    watch = Stopwatch("cpu")
    found = FilterStats()
    scorer = Scorers(options)  # opens a model when it first scores
    saved = load_scores(scores)[0] if scores else None
    with memory_guard("scoring", options.device, LESS_TO_SCORE), ExitStack() as files:
        sink = files.enter_context(new_file(Path(folder) / shard_name(number), durable=True))
        rejects = files.enter_context(new_file(Path(folder) / rejects_name(number), durable=True))
        writer = files.enter_context(open_writer(sink, source, options.fields, options.threads))
        blocks = files.enter_context(_Blocks(source, options, watch))

        def filtered(first: int, block: DocumentBlock) -> tuple[DocumentBlock, Any, FilterStats, Stopwatch]:
            own = Stopwatch(options.device)
            languages = block.column(options.language)
            if saved is None:
                part = scorer.score(block.texts, languages, own)
            else:
                part = saved.part(first, first + len(block.texts))
            render = Stopwatch("cpu")  # without a wait for the device, which scores another block meanwhile
            judged = judge(part, languages, rules)
            rendered = writer.render(block, new_columns(part, judged, options.fields), judged.kept_D)
            stats = _stats(number, first, block, judged)
            stats.languages = sum(isinstance(language, str) for language in languages)
            render.lap("render")
            own.add(render.seconds)
            return block, rendered, stats, own

        for block, rendered, stats, own in blocks.map(filtered):
            watch.add(own.seconds)
            watch.skip()
            writer.write(rendered)
            for reject in block.rejects:
                rejects.append(reject_line(source, reject))
            found.add(stats)
            watch.lap("write")
        watch.skip()
    watch.lap("save")  # until the disk has both files
    found.size_bytes, found.rejects_bytes = sink.size_bytes, rejects.size_bytes
    save_entry(folder, SHARD_ENTRY, [number], {}, {"stats": asdict(found)})
    return WrittenShard(found, watch.seconds)


class _Blocks:
    """The blocks of a shard, which threads read and work on; a context."""

    def __init__(self, source: Source, options: FilterOptions, watch: Stopwatch):
        self._source, self._options, self._watch = source, options, watch
        self._threads = options.threads if options.device == "cpu" else min(options.threads, GPU_THREADS)

    def __enter__(self) -> _Blocks:
        self._pool = ThreadPoolExecutor(self._threads, "mgpu-ngram-filter")
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, fn: Callable[[int, DocumentBlock], T]) -> Iterator[T]:
        """Yield fn(number of its first document, block) for all blocks, in order."""
        return map_ahead(self._pool, lambda item: fn(*item), self._numbered(), self._threads)

    def _numbered(self) -> Iterator[tuple[int, DocumentBlock]]:
        options, first, line = self._options, 0, 0
        reading = read_shard(self._source, options.block_bytes, options.language, options.fields)

        def parse(read: Callable[[], DocumentBlock]) -> tuple[DocumentBlock, float]:
            own = Stopwatch("cpu")
            block = read()
            own.lap("parse")
            return block, own.seconds["parse"]

        for block, seconds in map_ahead(self._pool, parse, reading, self._threads):
            self._watch.add({"parse": seconds})
            for reject in block.rejects:
                reject.at += line
            yield first, block
            first += len(block.texts)
            line += block.lines


class Scorers:
    """Scores each document with the model of its language. A document without a model counts as without words."""

    def __init__(self, options: FilterOptions):
        self._options = options
        self._scorers: dict[str, DocumentScorer] = {}
        self._opening = threading.Lock()
        self._device = threading.BoundedSemaphore(GPU_BLOCKS) if options.device == "gpu" else nullcontext()

    def score(self, texts: Sequence[str], languages: Sequence[Any], watch: Stopwatch) -> DocumentScores:
        """Return the scores of texts. `watch` gets the seconds of waiting for a GPU, loading models and scoring."""
        column = texts if isinstance(texts, TextColumn) else TextColumn.of(texts)
        with self._device:
            if self._options.device == "gpu":
                watch.lap("wait")
            return self._score(column, languages, watch)

    def _score(self, texts: TextColumn, languages: Sequence[Any], watch: Stopwatch) -> DocumentScores:
        if "" in self._options.models:
            return self._of("", watch).score(texts, watch)
        members: dict[str, list[int]] = {name: [] for name in self._options.models}
        others: list[int] = []
        for d, language in enumerate(languages):
            (members[language] if isinstance(language, str) and language in members else others).append(d)
        parts = [DocumentScores.none(len(others))]
        for name, some in members.items():
            if some:
                parts.append(self._of(name, watch).score(texts.take(np.array(some)), watch))
        order = [*others, *(d for some in members.values() for d in some)]
        return DocumentScores.joined(parts).take(np.argsort(order))

    def _of(self, name: str, watch: Stopwatch) -> DocumentScorer:
        with self._opening:
            return self._scorers.get(name) or self._opened(name, watch)

    def _opened(self, name: str, watch: Stopwatch) -> DocumentScorer:
        options, model = self._options, self._options.models[name]
        contrast = self._open(model.contrast, model.tokenizer) if model.contrast else None
        found = self._scorers[name] = DocumentScorer(
            *self._open(model.scoring, model.tokenizer), options.normalize, options.sentences,
            model.scoring.read_threads, contrast,
        )  # fmt: skip
        watch.lap("load")
        return found

    def _open(self, scoring: ScoreOptions, tokenizer: str) -> tuple[Replica, SubwordCodes | None]:
        replica = replica_of(scoring)
        return replica, replica_codes(replica, tokenizer) if tokenizer else None


@dataclass
class Judged:
    """The figures of D documents, the indexes of their buckets in `buckets`, and whether each document is kept."""

    totals: DocumentTotals
    buckets: tuple[str, ...]
    bucket_D: np.ndarray
    kept_D: np.ndarray


def judge(scores: DocumentScores, languages: Sequence[Any], rules: Rules) -> Judged:
    """Return the figures of documents, their buckets, and which documents are kept."""
    totals = scores.totals()
    figures = totals.perplexity_D, totals.cross_entropy_difference_D
    bucket_D = rules.bucket_of(*figures, languages)
    return Judged(totals, rules.buckets, bucket_D, rules.keeps(*figures, bucket_D))


def new_columns(scores: DocumentScores, judged: Judged, fields: Sequence[str]) -> dict[str, NewField]:
    """Return the values of each new field. A document without words has only the field `bucket`; a document with a
    word of probability 0 lacks the figures that would be infinite.
    """
    has_D = judged.totals.words_D > 0
    columns: dict[str, NewField] = {}
    for name in fields:
        if name == LINES_FIELD:
            columns[name] = NewField(perplexities(scores.log10_S, scores.words_S), has_D, scores.ends_D)
        elif name == "bucket":
            columns[name] = NewField(judged.bucket_D, np.ones(len(has_D), bool), names=judged.buckets)
        else:
            figure_D = getattr(judged.totals, f"{name}_D")
            columns[name] = NewField(figure_D, has_D & np.isfinite(figure_D))
    return columns


def _stats(number: int, first: int, block: DocumentBlock, judged: Judged) -> FilterStats:
    """Return the totals of a block whose first document is document `first` of its shard."""
    totals, kept_D = judged.totals, judged.kept_D
    found = FilterStats(
        len(block.texts), int(kept_D.sum()), len(block.rejects), int(totals.words_D.sum()), int(totals.oovs_D.sum())
    )
    rank_D = sample_ranks(number, first, len(block.texts))
    for b in np.unique(judged.bucket_D).tolist():
        some = np.flatnonzero(judged.bucket_D == b)
        perplexity = totals.perplexity_D[some]
        samples = []
        for d in some[np.argsort(rank_D[some], kind="stable")[:SAMPLES]].tolist():
            known = float(totals.perplexity_D[d]) if totals.words_D[d] else None
            samples.append((int(rank_D[d]), known, head_of(block.texts, d, SAMPLE_CHARACTERS)))
        found.buckets[judged.buckets[b]] = BucketStats(
            len(some), int(kept_D[some].sum()), int(totals.words_D[some].sum()), float(totals.log10_D[some].sum()),
            perplexity_histogram(perplexity[np.isfinite(perplexity)]), samples,
        )  # fmt: skip
    return found
