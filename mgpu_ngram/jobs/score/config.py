"""The settings of a score job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name


@dataclass(frozen=True)
class ScoreConfig:
    """Settings of a score job; the keys of its YAML."""

    model: str  # a model file, ARPA file or KenLM binary, or the name of an earlier job that makes a model
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line
    sentence_markers: bool = True  # <s> before each sentence, and a scored </s> after it
    level: Literal["word", "sentence"] = "sentence"  # a row of the table is a word or a sentence
    index: Literal["auto", "edge", "btree"] = "auto"  # edge: hash table, faster; btree: trie alone, smaller and ready
    # at once; auto: edge, unless a CPU would have to build the table for a text that is short compared with the model
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from device, text and workers
    verify: bool = True  # check the checksums of a model file
    name: str = "score"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_at_least(self, 1, "chunk_bytes")
        check_name(self.name)
