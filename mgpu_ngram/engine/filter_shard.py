"""Filter one shard of documents: read it, score it, and write the documents that stay, with new fields."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.arrays import load_arrays
from mgpu_ngram.core.checkpoint import save_entry
from mgpu_ngram.core.cutoffs import Rules
from mgpu_ngram.core.normalize import Normalizer
from mgpu_ngram.core.output import new_file
from mgpu_ngram.core.sources import Source
from mgpu_ngram.engine.device import Stopwatch, memory_guard
from mgpu_ngram.engine.filter_files import LINES, Block, open_writer, read_shard, reject_line
from mgpu_ngram.engine.filter_stats import SAMPLE_CHARACTERS, SAMPLES, BucketStats, FilterStats, histogram, sample_rank
from mgpu_ngram.engine.score import LESS_TO_SCORE, ScoreOptions, replica_of
from mgpu_ngram.engine.score_documents import DocumentScorer, DocumentScores, Sentences, perplexities
from mgpu_ngram.engine.subwords import SubwordCodes, open_subwords

SCORES, SHARD = "scores", "shard"  # kinds of checkpoint entries


@dataclass(frozen=True)
class DocumentModel:
    """A model, and the path of its tokeniser's file; "": words stand between white space."""

    scoring: ScoreOptions
    tokenizer: str


@dataclass(frozen=True)
class FilterOptions:
    """How documents are read, scored and written. Picklable; the same for every shard of a run.

    models       by language; the key "" is that of all documents, whatever their language
    language     field with the language of a document; "": none
    fields       new fields, of NEW_FIELDS
    block_bytes  of a file that are read and scored at once
    """

    models: dict[str, DocumentModel]
    language: str
    fields: tuple[str, ...]
    normalize: Normalizer
    sentences: Sentences
    block_bytes: int
    device: str


@dataclass
class ShardScores:
    """Where the scores of a shard are: the path of a checkpoint's entry."""

    path: str
    documents: int
    seconds: dict[str, float]


@dataclass
class Written:
    """A shard that was written."""

    stats: FilterStats
    seconds: dict[str, float]


def shard_name(number: int) -> str:
    """Return the name of a finished shard among the entries of a checkpoint."""
    return f"shard-{number:06d}"


def rejects_name(number: int) -> str:
    """Return the name of the rejects of a finished shard among the entries of a checkpoint."""
    return f"rejects-{number:06d}"


def score_shard(number: int, source: Source, options: FilterOptions, folder: str) -> ShardScores:
    """Score a shard, and save its scores and the languages of its documents as an entry of a checkpoint.

    folder  of the entries
    """
    watch = Stopwatch(options.device)
    parts: list[DocumentScores] = []
    numbers: list[int] = []
    known: dict[str | None, int] = {}
    with memory_guard("scoring", options.device, LESS_TO_SCORE):
        scorer = _Scorers(options)
        for block in read_shard(source, options.block_bytes):
            watch.lap("read")
            parts.append(scorer.score(block, watch))
            for value in block.column(options.language):
                numbers.append(known.setdefault(value if isinstance(value, str) else None, len(known)))
    scores = DocumentScores.joined(parts)
    arrays = vars(scores) | {"language_D": np.array(numbers, np.int32)}
    path = save_entry(folder, SCORES, [number], arrays, {"languages": list(known)})
    watch.lap("write")
    return ShardScores(path, len(scores), watch.seconds)


def load_scores(path: str) -> tuple[DocumentScores, list[str | None]]:
    """Return the scores that `score_shard` saved, and the language of each document."""
    arrays, metadata = load_arrays(path)
    languages = [metadata["languages"][i] for i in arrays.pop("language_D").tolist()]
    return DocumentScores(**arrays), languages


def write_shard(
    number: int, source: Source, options: FilterOptions, rules: Rules, folder: str, scores: str | None
) -> Written:
    """Write the documents of a shard that stay, and its rejects, and save the totals as an entry of a checkpoint.

    folder  of the entries; the files are beside them
    scores  the path of `score_shard`; None: documents are scored now
    """
    watch = Stopwatch(options.device)
    found = FilterStats()
    with memory_guard("scoring", options.device, LESS_TO_SCORE), ExitStack() as files:
        scorer = None if scores else _Scorers(options)
        saved = load_scores(scores)[0] if scores else None
        sink = files.enter_context(new_file(Path(folder) / shard_name(number), durable=True))
        rejects = files.enter_context(new_file(Path(folder) / rejects_name(number), durable=True))
        with open_writer(sink, source, options.fields) as write:
            for block in read_shard(source, options.block_bytes):
                watch.lap("read")
                if scorer:
                    part = scorer.score(block, watch)
                elif saved:
                    part = saved.part(found.documents, found.documents + len(block.texts))
                judged = _judge(block, part, rules)
                write(block, _columns(part, judged, options.fields), judged.kept_D)
                for reject in block.rejects:
                    rejects.append(reject_line(source, reject))
                found.add(_stats(number, found.documents, block, judged))
                watch.lap("write")
    found.size_bytes, found.rejects_bytes = sink.size_bytes, rejects.size_bytes
    save_entry(folder, SHARD, [number], {}, {"stats": asdict(found)})
    return Written(found, watch.seconds)


class _Scorers:
    """Scores documents, each with the model of its language; one without a model has no words."""

    def __init__(self, options: FilterOptions):
        self._options = options
        self._scorers: dict[str, DocumentScorer] = {}

    def score(self, block: Block, watch: Stopwatch) -> DocumentScores:
        if "" in self._options.models:
            return self._of("", watch).score(block.texts, watch)
        members: dict[str, list[int]] = {name: [] for name in self._options.models}
        others: list[int] = []
        for d, language in enumerate(block.column(self._options.language)):
            (members[language] if isinstance(language, str) and language in members else others).append(d)
        parts = [DocumentScores.none(len(others))]
        for name, some in members.items():
            if some:
                parts.append(self._of(name, watch).score([block.texts[d] for d in some], watch))
        order = [*others, *(d for some in members.values() for d in some)]
        return DocumentScores.joined(parts).take(np.argsort(order))

    def _of(self, name: str, watch: Stopwatch) -> DocumentScorer:
        if name not in self._scorers:
            options, model = self._options, self._options.models[name]
            replica = replica_of(model.scoring)
            codes = SubwordCodes(open_subwords(model.tokenizer), replica.words) if model.tokenizer else None
            self._scorers[name] = DocumentScorer(
                replica, codes, options.normalize, options.sentences, model.scoring.read_threads
            )
            watch.lap("load")
        return self._scorers[name]


@dataclass
class _Judged:
    """The D documents of a block, with their totals and buckets; perplexities are None without words."""

    perplexity_D: Sequence[float | None]
    log10_D: Sequence[float]
    words_D: Sequence[int]
    oovs_D: Sequence[int]
    bucket_D: Sequence[str]
    kept_D: Sequence[bool]


def _judge(block: Block, scores: DocumentScores, rules: Rules) -> _Judged:
    totals = scores.totals()
    log10_D, words_D, oovs_D = (values.tolist() for values in totals)
    pairs = zip(perplexities(*totals[:2]).tolist(), words_D, strict=True)
    perplexity_D = [perplexity if words else None for perplexity, words in pairs]
    languages = block.column(rules.language)
    bucket_D = [rules.bucket(*both) for both in zip(perplexity_D, languages, strict=True)]
    kept_D = [rules.keeps(*both) for both in zip(perplexity_D, bucket_D, strict=True)]
    return _Judged(perplexity_D, log10_D, words_D, oovs_D, bucket_D, kept_D)


def _columns(scores: DocumentScores, judged: _Judged, fields: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each new field; only `bucket` is known of a document without words."""
    columns: dict[str, list[Any]] = {}
    for name in fields:
        if name == LINES:
            values = perplexities(scores.log10_S, scores.words_S)
            found: Sequence[Any] = [part.tolist() for part in np.split(values, scores.ends_D)[: len(scores)]]
        else:
            found = getattr(judged, f"{name}_D")
        has_value = [True] * len(scores) if name == "bucket" else judged.words_D
        columns[name] = [value if has else None for value, has in zip(found, has_value, strict=True)]
    return columns


def _stats(number: int, first: int, block: Block, judged: _Judged) -> FilterStats:
    """Return the totals of a block whose first document is document `first` of its shard."""
    found = FilterStats(
        len(block.texts), sum(judged.kept_D), len(block.rejects), sum(judged.words_D), sum(judged.oovs_D)
    )
    members: dict[str, list[int]] = {}
    for d, name in enumerate(judged.bucket_D):
        members.setdefault(name, []).append(d)
    for name, some in members.items():
        ranked = heapq.nsmallest(SAMPLES, ((sample_rank(number, first + d), d) for d in some))
        found.buckets[name] = BucketStats(
            len(some),
            sum(judged.kept_D[d] for d in some),
            sum(judged.words_D[d] for d in some),
            sum(judged.log10_D[d] for d in some),
            histogram(p for d in some if (p := judged.perplexity_D[d]) is not None),
            [(rank, judged.perplexity_D[d], block.texts[d][:SAMPLE_CHARACTERS]) for rank, d in ranked],
        )
    return found
