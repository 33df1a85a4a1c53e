"""Score text: lines in, their log10 probabilities out, in order."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.counts.parquet import strings
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.models.model_file import describe_model
from mgpu_ngram.core.models.model_head import ModelHead, identify, read_head
from mgpu_ngram.core.storage import output
from mgpu_ngram.core.storage.file_heads import PARQUET
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.blocks import RING_SLOTS
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.score.score_chunk import BYTES_PER_TEXT_BYTE, ChunkScores, Columns, ScoreOptions, score_chunk
from mgpu_ngram.jobs.budget import TEXT_WORD_BYTES, chunks_ahead, limited_to, make_budget, text_within
from mgpu_ngram.jobs.chunk_tasks import results_of
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.parquet_table import ParquetTable
from mgpu_ngram.jobs.score.config import ScoreConfig

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

AHEAD = 4  # chunks per worker in flight or buffered
CHUNK_BYTES = {"cpu": 8 << 20, "gpu": 64 << 20}  # text per task, at most
MIN_CHUNK_BYTES = 1 << 18
EDGE_TOKENS_PER_NGRAM = 3  # on 2 cores the edge table takes 120 to 210 ns an n-gram to build and saves 45 ns a token
RESULT_BYTES = {False: 1, True: 8}  # scores for each byte of text, without and with those of words; about
WORDS_SHARE = 8  # results for words take so much more memory than for sentences
SUM_UNIT = 2.0**-40  # unit of sums over sentences: every float32 from 2**-17 on is a multiple of it
MAX_ADDED = 1 << 20  # fractions, in units, whose sum fits int64; likewise whole numbers
MAX_EXACT = 1 << 42  # sums above it, which no text reaches, depend on how text was cut
FORMAT = "mgpu_ngram scores"
SCORES_FILE = "scores.parquet"


@dataclass(frozen=True)
class ScoreTotals:
    """Totals of all scored sentences.

    tokens     number of words, and one </s> per sentence unless sentence markers are off
    oovs       number of unknown words
    log10      sum of log10 probabilities
    oov_log10  the share of unknown words in that sum
    """

    sentences: int
    tokens: int
    oovs: int
    log10: float
    oov_log10: float

    @property
    def perplexity(self) -> float:
        """The perplexity of all words, including unknown ones; NaN without tokens."""
        return perplexity(self.log10, self.tokens)

    @property
    def perplexity_without_oovs(self) -> float:
        """The perplexity of known words, in their full contexts; NaN if there are none."""
        return perplexity(self.log10 - self.oov_log10, self.tokens - self.oovs)

    def summary(self) -> dict[str, Any]:
        """Return all totals by name; None for NaN and infinity, which JSON lacks."""
        perplexities = {"perplexity": self.perplexity, "perplexity_without_oovs": self.perplexity_without_oovs}
        return {name: x if math.isfinite(x) else None for name, x in (asdict(self) | perplexities).items()}


def perplexity(log10: float, tokens: int) -> float:
    """Return the perplexity of tokens with this sum of log10 probabilities; NaN without tokens, inf beyond a double."""
    try:
        return 10 ** (-log10 / tokens) if tokens else float("nan")
    except OverflowError:
        return float("inf")


@dataclass(frozen=True)
class ScoreResult:
    """The result of a run; `path` is None if it wrote no file."""

    path: Path | None
    totals: ScoreTotals
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str  # how arrays move between workers

    @property
    def tokens_per_second(self) -> float:
        return self.totals.tokens / self.wall_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        named = {"path": self.path and str(self.path), "totals": self.totals.summary()}
        return asdict(self) | named | {"tokens_per_second": self.tokens_per_second}


def open_inputs(config: ScoreConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    return open_corpus(config.text, "word", text_column=config.text_column)


def plan(config: ScoreConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    planned = plan_text(open_inputs(config), context, config.chunk_bytes, config.level == "word")
    return {"job": config.name, **planned, "model": config.model, "index": config.index}


def plan_text(corpus: Corpus, context: PlanContext, chunk_bytes: int | None, words: bool) -> dict[str, Any]:
    """Return the plan of scoring a text, as for `within_memory`."""
    chunks = corpus.chunks(chunk_bytes or text_per_task(corpus, context.workers, context.device, words))
    return {
        "inputs": len(corpus.sources),
        "input_bytes": corpus.size_bytes,
        "tokens_about": int(corpus.text_bytes / TEXT_WORD_BYTES),
        "chunks": len(chunks),
        "chunk_bytes": max((c.size_bytes for c in chunks), default=0),
        "workers": context.workers,
        "device": context.device,
    }


def run(
    config: ScoreConfig,
    context: RunContext,
    inputs: Corpus | None = None,
    printing: Printing | None = None,
) -> ScoreResult:
    """Score a corpus and write OUT/scores.parquet and OUT/manifest.json; only the Parquet file for a single file.

    inputs    an open corpus instead of config.text
    printing  use of the scores if the context has no output

    Not resumable.
    """
    corpus = inputs or open_inputs(config)
    if context.output is None:
        return score(config, context, corpus, printing=printing)
    if context.single_file:
        check_file(context.output, context.overwrite)
        return score(config, context, corpus, context.output)
    made_of = _made_of(config, corpus)
    with Output.create(context.output, context.overwrite) as out:
        result = score(config, context, corpus, out.folder / SCORES_FILE)
        made = {"totals": result.totals.summary(), "versions": {"mgpu-ngram": VERSION, "pyarrow": pa.__version__}}
        write_manifest(out.folder, made_of | made, FORMAT)
        out.commit()
    return replace(result, path=out.path)


def changed_since(config: ScoreConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, model, and names and sizes of inputs."""
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: ScoreConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    return {
        "inputs": corpus.described,
        "model": {"path": config.model, "identity": identify(config.model)},
        "options": {"level": config.level, "sentence_markers": config.sentence_markers},
    }


def check_file(path: str | Path, overwrite: bool) -> None:
    """Raise InputError unless a file may be written to the path."""
    output.check_file(path, overwrite, "a Parquet file", PARQUET, (".parquet",))


@dataclass(frozen=True)
class Printing:
    """The use of scores that a run does not write to a file.

    take    called with the scores of each chunk, in the order of the text
    words   as in `ScoreOptions`
    totals  as in `ScoreOptions`
    """

    take: Callable[[ChunkScores], None]
    words: str = ""
    totals: bool = True


def score(
    config: ScoreConfig,
    context: RunContext,
    corpus: Corpus,
    file: str | Path | None = None,
    printing: Printing | None = None,
) -> ScoreResult:
    """Score a corpus, and write a Parquet file if its path is given.

    The driver holds a few chunks at once; a worker holds its replica of the model and a block of text.
    """
    progress, start = context.progress, time.perf_counter()
    if file is not None:
        words = "columns" if config.level == "word" else ""
    else:
        words = printing.words if printing else ""
    take, totals = (printing.take, printing.totals) if printing else (None, True)
    executor, chunk_bytes, ahead = within_memory(context, corpus, config.chunk_bytes, bool(words))
    options = model_options(
        config.model, corpus.text_bytes, executor, config.verify, config.index, words=words, totals=totals,
        sentence_markers=config.sentence_markers, block_bytes=chunk_bytes,
    )  # fmt: skip
    chunks = corpus.chunks(chunk_bytes)
    found: list[ScoreTotals] = []
    seconds: list[dict[str, float]] = []
    with ExitStack() as stack:
        table = None if file is None else _Table(file, config.level)
        write = None if table is None else table.write_scores
        if table is not None:
            stack.enter_context(table)
        progress.start("score", len(chunks), "chunks", "tokens")
        for scores, chunks_done in results_of(executor, chunks, chunk_bytes, ahead, "scoring", score_chunk, options):
            found.append(totals_of(scores.sentences))
            seconds.append(scores.seconds)
            for use in (write, take):
                if use is not None:
                    use(scores)
            progress.advance(chunks_done, found[-1].tokens)
        progress.finish()
    whole = added(found)
    path = None if file is None else Path(file)
    wall = time.perf_counter() - start
    return ScoreResult(path, whole, add_seconds(*seconds), wall, executor.workers, executor.device, executor.transport)


def score_at_once(config: ScoreConfig, lines: Iterable[bytes], printing: Printing) -> ScoreTotals:
    """Score lines in this process, on the CPU; each is scored before the next one is read. Return their totals."""
    options = model_options(
        config.model, 0, None, config.verify, sentence_markers=config.sentence_markers, words=printing.words,
        totals=printing.totals,
    )  # fmt: skip

    def scored() -> Iterator[ScoreTotals]:
        for line in lines:
            [chunk] = open_corpus(Lines([line])).chunks(len(line) + 1)
            scores = score_chunk(chunk, options)
            printing.take(scores)
            yield totals_of(scores.sentences)

    return added(scored())


def within_memory(
    context: RunContext, corpus: Corpus, chunk_bytes: int | None, words: bool
) -> tuple[Executor, int, int]:
    """Return (executor of the tasks, bytes of text of a task, greatest number of chunks in flight or buffered).

    chunk_bytes  bytes of text of a task; None: as many as memory allows
    words        whether tasks return the scores of words
    """
    executor, given = context.executor, chunk_bytes
    chunk_bytes = given or text_per_task(corpus, executor.workers, executor.device, words)
    ahead = AHEAD * executor.workers
    if context.memory != MemoryConfig():
        budget = make_budget(context.memory, executor)
        chunk_bytes = given or text_within(budget, BYTES_PER_TEXT_BYTE, chunk_bytes)
        ahead = chunks_ahead(budget, executor.workers, RESULT_BYTES[words] * chunk_bytes, AHEAD)
        executor = limited_to(executor, context.memory, RING_SLOTS * chunk_bytes)
    return executor, chunk_bytes, ahead


def totals_of(sentences: Columns) -> ScoreTotals:
    """Return the totals of sentences, columns as in `ChunkScores`; log10 in units."""
    if not sentences:
        return ScoreTotals(0, 0, 0, 0, 0)
    log10, words, oovs, oov_log10 = sentences.values()
    return ScoreTotals(len(words), int(words.sum()), int(oovs.sum()), _in_units(log10), _in_units(oov_log10))


def added(parts: Iterable[ScoreTotals]) -> ScoreTotals:
    """Return the totals of all chunks, log10 as float."""
    sums: dict[str, Any] = {f.name: 0 for f in fields(ScoreTotals)}
    for part in parts:
        sums = {name: value + getattr(part, name) for name, value in sums.items()}
    return ScoreTotals(**sums | {name: sums[name] * SUM_UNIT for name in ("log10", "oov_log10")})


def _in_units(values: np.ndarray) -> float:
    """Return the sum as an integer number of units, so that it does not depend on how text was cut."""
    if not (np.abs(values) < MAX_EXACT).all():
        return float(values.sum(dtype=np.float64)) / SUM_UNIT
    total = 0
    for part in np.array_split(values.astype(np.float64), len(values) // MAX_ADDED + 1):
        whole = np.floor(part)
        rest = np.rint((part - whole) / SUM_UNIT)
        total += int(whole.astype(np.int64).sum()) * int(1 / SUM_UNIT) + int(rest.astype(np.int64).sum())
    return total


def model_options(
    path: str, text_bytes: int, executor: Executor | None, verify: bool, index: str = "auto", **more: Any
) -> ScoreOptions:
    """Return the options of scoring a text with a model on an executor.

    executor  None: the CPU of this process, one thread
    index     "auto": the fastest one. All give the same scores
    more      other options, as in `ScoreOptions`
    """
    head, device = read_head(path), executor.device if executor else "cpu"
    if index == "auto":
        index = fastest_index(head, text_bytes, device)
    if executor:
        more = {"tasks_per_host": executor.tasks_per_host, "read_threads": executor.threads} | more
    whole = os.path.abspath(path)  # workers may have another current directory
    return ScoreOptions(whole, head.identity, index, device=device, verify=verify, **more)


def fastest_index(head: ModelHead, text_bytes: int, device: str) -> str:
    """Return the index that scores a text soonest, including the time to make the index."""
    if head.is_probing:  # to find the words of its n-grams would take longer
        return "keys"
    if device == "gpu" or not head.is_model_file:  # a GPU builds the edge table within 0.1 s
        return "edge"
    model = describe_model(head.path)
    few = text_bytes / TEXT_WORD_BYTES < EDGE_TOKENS_PER_NGRAM * sum(model["orders"])
    return "btree" if few and not model["edge_table"] else "edge"


def text_per_task(corpus: Corpus, workers: int, device: str, words: bool = False) -> int:
    """Return the bytes of text per task: fewer if words are returned, or if workers would have too few tasks."""
    most = CHUNK_BYTES[device] // (WORDS_SHARE if words else 1)
    return max(MIN_CHUNK_BYTES, min(most, corpus.text_bytes // (AHEAD * workers)))


SENTENCE_COLUMNS = {"prob_log10": "float32", "words": "int32", "oovs": "int32"}
WORD_COLUMNS = {
    "sentence": "int64", "word": "large_string", "id": "uint32", "ngram_length": "uint8", "prob_log10": "float32",
}  # fmt: skip


class _Table(ParquetTable):
    """A table of the scores of sentences or of words."""

    def __init__(self, path: str | Path, level: str):
        self.words, self.sentences = level == "word", 0
        super().__init__(path, WORD_COLUMNS if self.words else SENTENCE_COLUMNS)

    def write_scores(self, scores: ChunkScores) -> None:
        columns = scores.words if self.words else scores.sentences
        if not columns:
            return
        if self.words:
            words = strings(np.concatenate([np.zeros(1, np.int64), columns["end"]]), columns["data"])
            columns = columns | {"sentence": columns["sentence"] + self.sentences, "word": words}
        self.write([columns[name] for name in self.schema.names])
        self.sentences += len(scores.sentences["words"])
