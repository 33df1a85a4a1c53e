"""The settings of a score job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name


@dataclass(frozen=True)
class ScoreConfig:
    """Settings of a score job; the keys of its YAML."""

    model: str  # a model file, an ARPA file, or the name of an earlier job that makes a model
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line
    sentence_markers: bool = True  # <s> stands before each sentence, and </s> after it, which is scored
    level: Literal["word", "sentence"] = "sentence"  # a row of the result
    index: Literal["edge", "btree"] = "edge"  # the edge table, faster; or the trie alone, smaller
    text_column: str = "text"  # of Parquet inputs
    chunk_bytes: Bytes | None = None  # text per task; auto: by device, text and workers
    verify: bool = True  # compare the checksums of a model file
    name: str = "score"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        check_at_least(self, 1, "chunk_bytes")
        check_name(self.name)
