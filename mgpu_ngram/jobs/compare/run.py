"""Compare models on a held-out text: perplexities, sizes, and paired differences of sentences."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.models.file_kind import identify_file
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.storage.manifest_changes import manifest_changes
from mgpu_ngram.core.storage.output import Output, write_manifest
from mgpu_ngram.core.version import VERSION
from mgpu_ngram.engine.memory.stopwatch import add_seconds
from mgpu_ngram.engine.score.compare_models import ChunkComparison, Paired, compare_chunk, differences, extremes, paired
from mgpu_ngram.engine.score.comparison_figure import draw_comparison
from mgpu_ngram.jobs.chunk_tasks import results_of
from mgpu_ngram.jobs.compare.config import CompareConfig
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.parquet_table import ParquetTable
from mgpu_ngram.jobs.score.run import (
    ScoreTotals,
    added,
    model_options,
    perplexity,
    plan_text,
    totals_of,
    within_memory,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")

FORMAT = "mgpu_ngram comparison"
SENTENCES_FILE, DIFFERENCES_FILE = "sentences.parquet", "differences.png"


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one model.

    orders            number of n-grams of each order, from the header of the file
    totals            totals of all words
    known_perplexity  perplexity of the words that all models know; NaN if there are none
    lengths           words by the length of the longest n-gram that ends there; place 0 counts unknown words
    """

    path: str
    size_bytes: int
    orders: list[int]
    totals: ScoreTotals
    known_perplexity: float
    lengths: list[int]


@dataclass(frozen=True)
class Sentence:
    """A sentence with a large difference.

    line   its number in the text, from 1
    log10  log10 probability of the words that all models know, in the first model and in the other one
    """

    line: int
    text: str
    log10: tuple[float, float]


@dataclass(frozen=True)
class CompareResult:
    """The comparison of a run.

    path    its folder; None if the run wrote none
    known   number of words that all models know, with each </s>
    models  in the order of the settings
    paired  the second and each later model compared with the first
    shown   for each of these: the sentences with the largest differences, first gains, then losses
    """

    path: Path | None
    known: int
    models: list[ModelFigures]
    paired: list[Paired]
    shown: list[list[Sentence]]
    seconds: dict[str, float]  # by step, summed over workers
    wall_seconds: float
    workers: int
    device: str
    transport: str  # how arrays move between workers

    def figures(self) -> dict[str, Any]:
        """Return the comparison alone as JSON values by name: equal for any number of workers. None for NaN and
        infinity, which JSON lacks.
        """
        models = [asdict(model) | {"totals": model.totals.summary()} for model in self.models]
        for model in models:
            model["known_perplexity"] = _finite(model["known_perplexity"])
        pairs = [
            asdict(pair) | {"gain": _finite(pair.gain), "perplexity_ratio": _finite(10**-pair.gain)}
            for pair in self.paired
        ]
        shown = [
            [asdict(sentence) | {"log10": [*map(_finite, sentence.log10)]} for sentence in of_pair]
            for of_pair in self.shown
        ]
        return {"known": self.known, "models": models, "paired": pairs, "shown": shown}

    def as_json(self) -> dict[str, Any]:
        """Return all fields by name, for machines."""
        return asdict(self) | {"path": self.path and str(self.path)} | self.figures()


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def open_inputs(config: CompareConfig) -> Corpus:
    """Return the text that a config names. Raises InputError if it cannot be used."""
    return open_corpus(config.text, "word", text_column=config.text_column)


def plan(config: CompareConfig, context: PlanContext) -> dict[str, Any]:
    """Return the plan of `run` from the sizes of the inputs alone."""
    planned = plan_text(open_inputs(config), context, config.chunk_bytes, words=True)
    return {"job": config.name, **planned, "models": config.models}


def changed_since(config: CompareConfig, manifest: dict[str, Any]) -> str:
    """Return how an output differs from this job's, by settings, models, and names and sizes of inputs."""
    return manifest_changes(manifest, _made_of(config, open_inputs(config)))


def _made_of(config: CompareConfig, corpus: Corpus) -> dict[str, Any]:
    """Return what an output depends on."""
    return {
        "inputs": corpus.described,
        "models": [{"path": model, "identity": identify(model)} for model in config.models],
        "options": {"sentence_markers": config.sentence_markers, "shown": config.shown},
    }


def run(config: CompareConfig, context: RunContext, inputs: Corpus | None = None) -> CompareResult:
    """Score a text with all models. Write OUT/manifest.json, which holds the comparison, OUT/sentences.parquet and,
    if Matplotlib is installed, OUT/differences.png. Writes nothing if the context has no output.

    inputs  an open corpus instead of config.text

    Not resumable. The run takes as long as scoring the text once with each model.
    """
    corpus = inputs or open_inputs(config)
    if context.output is None:
        return _compared(config, context, corpus, None)
    made_of = _made_of(config, corpus)
    with Output.create(context.output, context.overwrite) as out:
        result = _compared(config, context, corpus, out)
        versions = {"versions": {"mgpu-ngram": VERSION, "pyarrow": pa.__version__}}
        write_manifest(out.folder, made_of | {"comparison": result.figures()} | versions, FORMAT)
        out.commit()
    return result


def _compared(config: CompareConfig, context: RunContext, corpus: Corpus, out: Output | None) -> CompareResult:
    """Return the comparison, and write the table and the picture.

    The driver holds 8 bytes a sentence for each model, and 4 bytes more.
    """
    progress, start = context.progress, time.perf_counter()
    executor, chunk_bytes, ahead = within_memory(context, corpus, config.chunk_bytes, words=True)
    models = [
        model_options(
            path, corpus.text_bytes, executor, config.verify, sentence_markers=config.sentence_markers,
            block_bytes=chunk_bytes,
        )
        for path in config.models
    ]  # fmt: skip
    M = len(models)
    totals: list[list[ScoreTotals]] = [[] for _ in models]
    lengths: list[list[np.ndarray]] = [[] for _ in models]
    seconds: list[dict[str, float]] = []
    known: list[np.ndarray] = []
    log10: list[np.ndarray] = []
    lines: dict[int, bytes] = {}
    sentences = 0
    chunks = corpus.chunks(chunk_bytes)
    progress.start("compare", len(chunks), "chunks", "tokens")

    with ExitStack() as stack:
        table = stack.enter_context(ParquetTable(out.folder / SENTENCES_FILE, _columns(M))) if out else None
        compared = results_of(executor, chunks, chunk_bytes, ahead, "scoring", compare_chunk, models, config.shown)
        for found, chunks_done in compared:
            for m in range(M):
                totals[m].append(totals_of(found.sentences[m]))
                lengths[m].append(found.lengths[m])
            known.append(found.known_S)
            log10.append(found.log10_MS)
            seconds.append(found.seconds)
            lines |= {sentences + s: text for s, text in found.lines.items()}
            sentences += len(found.known_S)
            if table and len(found.known_S):
                table.write(_rows(found))
            progress.advance(chunks_done, totals[0][-1].tokens)
    progress.finish()
    known_S, log10_MS = np.concatenate([*known, np.zeros(0, np.int32)]), np.concatenate([*log10, np.zeros((M, 0))], 1)
    words = int(known_S.sum())
    figures = []
    for m, path in enumerate(config.models):
        described = identify_file(path)
        by_length = np.zeros(max(map(len, lengths[m]), default=1), np.int64)
        for counted in lengths[m]:
            by_length[: len(counted)] += counted
        figures.append(
            ModelFigures(
                path, described["size_bytes"], described.get("orders", []), added(totals[m]),
                perplexity(float(log10_MS[m].sum()), words), by_length.tolist(),
            )
        )  # fmt: skip
    gains = differences(log10_MS)
    shown = [
        [
            Sentence(s + 1, lines[s].decode("utf-8", "replace"), (float(log10_MS[0, s]), float(log10_MS[m, s])))
            for s in extremes(difference_S, config.shown)
        ]
        for m, difference_S in enumerate(gains, 1)
    ]
    if out and find_spec("matplotlib"):
        names = [os.path.basename(path) for path in config.models]
        draw_comparison(names, list(gains), [figure.lengths for figure in figures], out.folder / DIFFERENCES_FILE)
    return CompareResult(
        path=out.path if out else None, known=words, models=figures,
        paired=[paired(gain_S, known_S) for gain_S in gains], shown=shown, seconds=add_seconds(*seconds),
        wall_seconds=time.perf_counter() - start, workers=executor.workers, device=executor.device,
        transport=executor.transport,
    )  # fmt: skip


def _columns(models: int) -> dict[str, str]:
    """Return the types of the columns of the table of sentences; models have numbers from 1 on."""
    columns = {"words": "int32", "known_words": "int32"}
    for m in range(1, models + 1):
        columns |= {f"prob_log10_{m}": "float32", f"oovs_{m}": "int32", f"known_log10_{m}": "float64"}
    return columns


def _rows(found: ChunkComparison) -> list[np.ndarray]:
    """Return the columns of the sentences of a chunk."""
    columns = [found.sentences[0]["words"], found.known_S]
    for sentences, log10_S in zip(found.sentences, found.log10_MS, strict=True):
        columns += [sentences["prob_log10"], sentences["oovs"], log10_S]
    return columns
