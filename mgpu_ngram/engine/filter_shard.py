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
from mgpu_ngram.engine.score import LESS_TO_SCORE, Replica, ScoreOptions, replica_of
from mgpu_ngram.engine.score_documents import DocumentScorer, DocumentScores, Sentences, perplexities
from mgpu_ngram.engine.subwords import SubwordCodes, open_subwords

SCORES, SHARD = "scores", "shard"  # kinds of checkpoint entries


@dataclass(frozen=True)
class DocumentModel:
    """A model, the path of its tokeniser's file ("": words stand between white space), and its contrast model."""

    scoring: ScoreOptions
    tokenizer: str
    contrast: ScoreOptions | None = None


@dataclass(frozen=True)
class FilterOptions:
    """How documents are read, scored and written. Picklable; the same for every shard of a run.

    models       by language; the key "" is that of all documents, whatever their language
    language     field with the language of a document; "": none
    fields       new fields
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


def score_shard(number: int, source: Source, options: FilterOptions, folder: str, most: int | None) -> ShardScores:
    """Score a shard, and save its scores and the languages of its documents as an entry of a checkpoint.

    folder  of the entries
    most    documents to score, the first ones; None: all
    """
    watch = Stopwatch(options.device)
    parts: list[DocumentScores] = []
    numbers: list[int] = []
    known: dict[str | None, int] = {}
    with memory_guard("scoring", options.device, LESS_TO_SCORE):
        scorer = Scorers(options)
        for block in read_shard(source, options.block_bytes):
            watch.lap("read")
            left = None if most is None else most - len(numbers)
            languages = block.column(options.language)[:left]
            parts.append(scorer.score(block.texts[:left], languages, watch))
            for value in languages:
                numbers.append(known.setdefault(value if isinstance(value, str) else None, len(known)))
            if len(numbers) == most:
                break
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
        scorer = None if scores else Scorers(options)
        saved = load_scores(scores)[0] if scores else None
        sink = files.enter_context(new_file(Path(folder) / shard_name(number), durable=True))
        rejects = files.enter_context(new_file(Path(folder) / rejects_name(number), durable=True))
        with open_writer(sink, source, options.fields) as write:
            for block in read_shard(source, options.block_bytes):
                watch.lap("read")
                if scorer:
                    part = scorer.score(block.texts, block.column(options.language), watch)
                elif saved:
                    part = saved.part(found.documents, found.documents + len(block.texts))
                judged = judge(part, block.column(rules.language), rules)
                write(block, new_columns(part, judged, options.fields), judged.kept_D)
                for reject in block.rejects:
                    rejects.append(reject_line(source, reject))
                found.add(_stats(number, found.documents, block, judged))
                watch.lap("write")
    found.size_bytes, found.rejects_bytes = sink.size_bytes, rejects.size_bytes
    save_entry(folder, SHARD, [number], {}, {"stats": asdict(found)})
    return Written(found, watch.seconds)


class Scorers:
    """Scores documents, each with the model of its language; one without a model has no words."""

    def __init__(self, options: FilterOptions):
        self._options = options
        self._scorers: dict[str, DocumentScorer] = {}

    def score(self, texts: list[str], languages: Sequence[Any], watch: Stopwatch) -> DocumentScores:
        """Return the scores of some texts. `watch` gets the seconds to load models and to score."""
        if "" in self._options.models:
            return self._of("", watch).score(texts, watch)
        members: dict[str, list[int]] = {name: [] for name in self._options.models}
        others: list[int] = []
        for d, language in enumerate(languages):
            (members[language] if isinstance(language, str) and language in members else others).append(d)
        parts = [DocumentScores.none(len(others))]
        for name, some in members.items():
            if some:
                parts.append(self._of(name, watch).score([texts[d] for d in some], watch))
        order = [*others, *(d for some in members.values() for d in some)]
        return DocumentScores.joined(parts).take(np.argsort(order))

    def _of(self, name: str, watch: Stopwatch) -> DocumentScorer:
        if name not in self._scorers:
            options, model = self._options, self._options.models[name]
            contrast = self._open(model.contrast, model.tokenizer) if model.contrast else None
            self._scorers[name] = DocumentScorer(
                *self._open(model.scoring, model.tokenizer), options.normalize, options.sentences,
                model.scoring.read_threads, contrast,
            )  # fmt: skip
            watch.lap("load")
        return self._scorers[name]

    def _open(self, scoring: ScoreOptions, tokenizer: str) -> tuple[Replica, SubwordCodes | None]:
        replica = replica_of(scoring)
        return replica, SubwordCodes(open_subwords(tokenizer), replica.words) if tokenizer else None


@dataclass
class Judged:
    """The figures and buckets of D documents; of a document without words, figures are None but words is 0."""

    perplexity_D: Sequence[float | None]
    log10_D: Sequence[float | None]
    words_D: Sequence[int]
    oovs_D: Sequence[int | None]
    contrast_perplexity_D: Sequence[float | None]
    cross_entropy_difference_D: Sequence[float | None]
    bucket_D: Sequence[str]
    kept_D: Sequence[bool]


def judge(scores: DocumentScores, languages: Sequence[Any], rules: Rules) -> Judged:
    """Return the figures of some documents, their buckets, and which of them are kept."""
    totals = scores.totals()
    words_D = totals.words_D.tolist()

    def known(values_D: np.ndarray) -> list[Any]:
        return [value if words else None for value, words in zip(values_D.tolist(), words_D, strict=True)]

    perplexity_D, difference_D = known(totals.perplexity_D), known(totals.difference_D)
    figures = perplexity_D, difference_D
    bucket_D = [rules.bucket(*each) for each in zip(*figures, languages, strict=True)]
    kept_D = [rules.keeps(*each) for each in zip(*figures, bucket_D, strict=True)]
    others = known(totals.log10_D), words_D, known(totals.oovs_D), known(totals.contrast_perplexity_D)
    return Judged(perplexity_D, *others, difference_D, bucket_D, kept_D)


def new_columns(scores: DocumentScores, judged: Judged, fields: Sequence[str]) -> dict[str, list[Any]]:
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


def _stats(number: int, first: int, block: Block, judged: Judged) -> FilterStats:
    """Return the totals of a block whose first document is document `first` of its shard."""
    found = FilterStats(
        len(block.texts),
        sum(judged.kept_D),
        len(block.rejects),
        sum(judged.words_D),
        sum(n or 0 for n in judged.oovs_D),
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
            sum(judged.log10_D[d] or 0.0 for d in some),
            histogram(p for d in some if (p := judged.perplexity_D[d]) is not None),
            [(rank, judged.perplexity_D[d], block.texts[d][:SAMPLE_CHARACTERS]) for rank, d in ranked],
        )
    return found
