"""The settings of a count job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.counts.tables import MAX_ORDER
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name

MAX_ID = {"uint16": (1 << 16) - 1, "uint32": (1 << 32) - 1}  # token ids, by dtype


def check_separator(unit: str, dtype: str, separator_id: int | None) -> None:
    """Raise InputError for a separator id if the unit is not "id", or if `dtype` cannot hold the id."""
    if separator_id is None:
        return
    if unit != "id":
        raise InputError(f"separator_id needs unit id but unit is {unit}; leave it out")
    if not 0 <= separator_id <= MAX_ID[dtype]:
        raise InputError(f"separator_id is {separator_id} but ids of {dtype} are 0 to {MAX_ID[dtype]}; correct it")


@dataclass(frozen=True)
class CountConfig:
    """Settings of a count job; the keys of its YAML."""

    corpus: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line
    order: int = 5  # highest n-gram order; all orders from 1 are counted
    unit: Literal["word", "byte", "id"] = "word"  # symbols of the n-grams
    dtype: Literal["uint16", "uint32"] = "uint16"  # type of the token ids in a file, unit id
    separator_id: int | None = None  # token id between texts, which no n-gram contains or crosses, unit id
    sentence_markers: bool = False  # add <s> before and </s> after each line, unit word; models need them
    lowercase: bool = False  # change A-Z to a-z
    min_count: int = 1  # write only n-grams that occur at least this often
    columns: Literal["text", "ids"] = "text"  # how files hold n-grams: as text, or as one int32 column of vocabulary
    # ids for each word
    strategy: Literal["auto", "global", "private", "sort", "hash"] = "auto"  # counting strategy; all give the same
    # counts. docs/design.md explains them
    histograms: int = 1  # number of partial histograms in device memory, strategy private
    add: list[str] = field(
        default_factory=list
    )  # folders of earlier counts of words; the result has the counts of their
    # text, too
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from corpus, workers and memory
    name: str = "count"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        most, unit = (8, " for unit byte") if self.unit == "byte" else (MAX_ORDER, "")
        if not 1 <= self.order <= most:
            raise InputError(f"order is {self.order} but must be from 1 to {most}{unit}")
        check_at_least(self, 1, "min_count", "histograms", "chunk_bytes")
        check_separator(self.unit, self.dtype, self.separator_id)
        if self.sentence_markers and self.unit != "word":
            raise InputError(f"sentence_markers needs unit word but unit is {self.unit}; leave it out")
        if self.lowercase and self.unit == "id":
            raise InputError("lowercase needs unit word or byte but unit is id; leave it out")
        if self.add and self.unit != "word":
            raise InputError(f"add needs unit word but unit is {self.unit}; leave it out")
        check_name(self.name)
