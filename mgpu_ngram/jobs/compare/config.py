"""The settings of a compare job."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name


@dataclass(frozen=True)
class CompareConfig:
    """Settings of a compare job; the keys of its YAML."""

    models: list[str]  # two or more: ARPA files, KenLM binary models, model files, or names of earlier jobs
    text: list[str]  # held-out text: paths, globs, directories or fsspec URLs; one sentence per line
    sentence_markers: bool = True  # <s> before each sentence, and a scored </s> after it
    shown: int = 10  # number of sentences to show with the largest differences in either direction
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from device, text and workers
    verify: bool = True  # check the checksums of model files
    name: str = "compare"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise InputError(f"models are {self.models} but a comparison needs two or more; add a model")
        if not self.text:
            raise InputError("text is empty; give a held-out text with one sentence per line")
        check_at_least(self, 0, "shown")
        check_at_least(self, 1, "chunk_bytes")
        check_name(self.name)
