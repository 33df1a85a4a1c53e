"""The settings of a distribution job, and the sizes that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from mgpu_ngram.core.corpus import Corpus
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model_file import describe_model, is_model_file
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name
from mgpu_ngram.engine.distribution_tasks import ModelFacts
from mgpu_ngram.engine.row_options import RowOptions

AHEAD = 4  # chunks per worker that are called before the first of them is done
TASK_BYTES = {"cpu": 128 << 20, "gpu": 1 << 30}  # of files, about, that a task writes
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 1 << 10, 8 << 20  # of text
BYTES_PER_TOKEN, BYTES_PER_LINE = 5.5, 120.0  # of text; guesses for plans, and for the size of chunks
COMPACT_BYTES = 1 << 10  # of a history in compact blocks, a guess
STORED_ROWS = 1 << 12  # of words that are stored after a history, a guess; but not of single ones
PARQUET_BYTES = 16  # of a row, a guess


@dataclass(frozen=True)
class DistributionConfig:
    """Settings of a distribution job; the keys of its YAML. None means that the key is absent."""

    model: str  # a model file, an ARPA file, or the name of an earlier job that makes a model
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence a line, or one history (positions: last)
    orders: Any = None  # orders of the rows: all (default), max, a number, or a list such as 1,2,5
    mode: Literal["smoothed", "stored"] | None = None  # smoothed (default): with backoff; stored: 0 for n-grams
    # that the model does not store
    top_k: int | None = None  # write only the greatest words of each row, at most this many; default: whole rows
    format: Literal["zarr", "npy", "compact", "parquet"] = "zarr"  # of the files; docs/distribution.md compares them
    dtype: Literal["float32", "float16", "bfloat16"] | None = None  # of values; default float32
    scale: Literal["prob", "log10", "ln"] | None = None  # of values; default prob
    positions: Literal["every", "last"] = "every"  # every: a history ends before each word and at the end of each
    # line; last: a whole line is one history
    sentence_markers: bool = True  # <s> before each line, and a row for the end of each line
    text_column: str = "text"  # column of Parquet inputs
    chunk_bytes: Bytes | None = None  # text of one task; auto: from the expected output size
    verify: bool = True  # check the checksums of a model file
    name: str = "distribution"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_at_least(self, 1, "chunk_bytes")
        check_name(self.name)
        options = {name: getattr(self, name) for name in ("orders", "mode", "top_k", "dtype", "scale")}
        given = [(name, value) for name, value in options.items() if value is not None]
        if self.format == "compact" and given:
            name, value = given[0]
            raise InputError(
                f"{name} is {value} but format compact is exact and holds all of every row: it is chosen when rows are "
                f"made of it; leave {name} out, or give format zarr"
            )
        if self.format == "parquet" and self.dtype not in (None, "float32"):
            raise InputError(f"dtype is {self.dtype} but the values of format parquet are float32; leave dtype out")
        if self.format == "parquet" and self.mode != "stored" and self.top_k is None:
            raise InputError(
                "format parquet has a row for each word, but smoothed distributions have all words; give top_k, mode "
                "stored, or format zarr"
            )
        RowOptions.of(1, "all", **self.how())

    def row_options(self, order: int) -> RowOptions:
        """For a model of that order. Raises InputError for one that it has not."""
        return RowOptions.of(order, "all" if self.orders is None else self.orders, **self.how())

    def how(self) -> dict[str, Any]:
        """How rows are made, whatever their orders."""
        return {
            "mode": self.mode or "smoothed",
            "scale": self.scale or "prob",
            "dtype": self.dtype or "float32",
            "top_k": self.top_k,
        }


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
