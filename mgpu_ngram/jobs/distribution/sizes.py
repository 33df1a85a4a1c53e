"""The sizes that follow from the settings of a distribution job: of chunks, rows and files."""

from __future__ import annotations

import os

from mgpu_ngram.core.corpus import Corpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import describe_model, is_model_file
from mgpu_ngram.engine.distribution_tasks import ModelFacts
from mgpu_ngram.engine.row_options import RowOptions
from mgpu_ngram.jobs.distribution.config import DistributionConfig

AHEAD = 4  # chunks per worker that are called before the first of them is done
TASK_BYTES = {"cpu": 128 << 20, "gpu": 1 << 30}  # of files, about, that a task writes
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 1 << 10, 8 << 20  # of text
BYTES_PER_TOKEN, BYTES_PER_LINE = 5.5, 120.0  # of text; guesses for plans, and for the size of chunks
COMPACT_BYTES = 1 << 10  # of a history in compact blocks, a guess
STORED_ROWS = 1 << 12  # of words that are stored after a history, a guess; but not of single ones
PARQUET_BYTES = 16  # of a row, a guess


def known_facts(config: DistributionConfig) -> ModelFacts | None:
    """What is known of the model without loading it: nothing of an ARPA file, or of one that is still to be made."""
    if not os.path.isfile(config.model) or not is_model_file(config.model):
        return None
    found = describe_model(config.model)
    facts = ModelFacts(found["order"], found["orders"][0], found["backoffs"])
    rows_for(config, facts)
    return facts


def rows_for(config: DistributionConfig, facts: ModelFacts) -> RowOptions:
    """What is made of a model. Raises InputError for what cannot."""
    rows = config.row_options(facts.order)
    if rows.mode == "smoothed" and config.format != "compact" and not facts.has_backoffs:
        raise InputError(
            f"{config.model} has no backoffs, which smoothed rows need; make it again without --no-backoff, or give "
            "mode stored"
        )
    return rows


def row_bytes(config: DistributionConfig, rows: RowOptions, symbols: int) -> int:
    """Of the files, for one history; exact for arrays."""
    if config.format == "compact":
        return COMPACT_BYTES
    if config.format == "parquet":
        return PARQUET_BYTES * table_rows(rows, symbols)
    return rows.row_bytes(symbols)


def text_bytes(config: DistributionConfig) -> float:
    """Of the text, for one history, about."""
    return BYTES_PER_TOKEN if config.positions == "every" else BYTES_PER_LINE


def chunk_bytes(corpus: Corpus, workers: int, device: str, history_bytes: int, text_bytes: float) -> int:
    """Text per task: less where much comes of it, and where workers would have too few."""
    most = min(MAX_CHUNK_BYTES, int(TASK_BYTES[device] / history_bytes * text_bytes))
    return max(MIN_CHUNK_BYTES, min(most, corpus.text_bytes // (AHEAD * workers)))


def table_rows(rows: RowOptions, symbols: int) -> int:
    """Rows of a Parquet file that one history has, about."""
    if rows.top_k:
        return len(rows.orders) * rows.top_k
    return symbols if 1 in rows.orders else STORED_ROWS
