"""Sizes of chunks, rows and files that follow from the settings of a distribution job."""

from __future__ import annotations

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.models.model_file import describe_model
from mgpu_ngram.core.models.model_head import read_head
from mgpu_ngram.core.models.row_options import RowOptions
from mgpu_ngram.engine.distribution.tasks import ModelFacts
from mgpu_ngram.jobs.budget import TEXT_WORD_BYTES
from mgpu_ngram.jobs.distribution.config import DistributionConfig

AHEAD = 4  # chunks per worker in flight or buffered
TASK_BYTES = {"cpu": 128 << 20, "gpu": 1 << 30}  # bytes of files that a task writes, approximately
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 1 << 10, 8 << 20  # bytes of text
TEXT_LINE_BYTES = 120.0  # bytes of a line of text; an estimate for plans and chunk sizes
COMPACT_BYTES = 1 << 10  # per history in compact blocks, an estimate
STORED_ROWS = 1 << 12  # n-grams stored after a history, an estimate; not for single words
PARQUET_BYTES = 16  # per row, an estimate


def known_facts(config: DistributionConfig) -> ModelFacts | None:
    """Return the facts of a model from its header; None for an ARPA file or a model that does not exist yet."""
    if not read_head(config.model).is_model_file:
        return None
    found = describe_model(config.model)
    facts = ModelFacts(found["order"], found["orders"][0], found["backoffs"])
    rows_for(config, facts)
    return facts


def rows_for(config: DistributionConfig, facts: ModelFacts) -> RowOptions:
    """Return the row options for a model. Raises InputError if the model lacks orders or backoffs that they need."""
    rows = config.row_options(facts.order)
    if rows.mode == "smoothed" and config.format != "compact" and not facts.has_backoffs:
        raise InputError(
            f"{config.model} has no backoffs, which smoothed rows need; make it again without --no-backoff, or give "
            "mode stored"
        )
    return rows


def row_bytes(config: DistributionConfig, rows: RowOptions, symbols: int) -> int:
    """Return the bytes of the files per history; exact for arrays."""
    if config.format == "compact":
        return COMPACT_BYTES
    if config.format == "parquet":
        return PARQUET_BYTES * table_rows(rows, symbols)
    return rows.row_bytes(symbols)


def text_bytes(config: DistributionConfig) -> float:
    """Return the approximate bytes of text per history."""
    return TEXT_WORD_BYTES if config.positions == "every" else TEXT_LINE_BYTES


def chunk_bytes(corpus: Corpus, workers: int, device: str, history_bytes: int, text_bytes: float) -> int:
    """Return the bytes of text per task: fewer if its output is large, or if workers would have too few tasks."""
    most = min(MAX_CHUNK_BYTES, int(TASK_BYTES[device] / history_bytes * text_bytes))
    return max(MIN_CHUNK_BYTES, min(most, corpus.text_bytes // (AHEAD * workers)))


def table_rows(rows: RowOptions, symbols: int) -> int:
    """Return the approximate number of Parquet rows per history."""
    if rows.top_k:
        return len(rows.orders) * rows.top_k
    return symbols if 1 in rows.orders else STORED_ROWS


def output_bytes(config: DistributionConfig, corpus: Corpus) -> int:
    """Return the approximate bytes of the files; 0 if the model is not known yet."""
    facts = known_facts(config)
    if facts is None:
        return 0
    return int(corpus.text_bytes / text_bytes(config)) * row_bytes(config, rows_for(config, facts), facts.symbols)
