"""The settings of an adapt job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name, fill
from mgpu_ngram.jobs.count.config import CountConfig
from mgpu_ngram.jobs.estimate.config import OF_TEXT, EstimateConfig

OWN = ("corpus", "counts", "name", "verbose_header", *OF_TEXT)  # settings of estimate that an adapt job sets itself


@dataclass(frozen=True)
class AdaptConfig:
    """Settings of an adapt job; the keys of its YAML."""

    earlier: str  # output folder of count with sentence_markers, or of adapt; or an earlier count job
    corpus: list[str]  # the new text: paths, globs, directories or fsspec URLs; one sentence per line
    estimate: dict[str, Any] = field(default_factory=dict)  # settings of stage estimate, such as prune: [0, 0, 1]; if
    # adapt wrote `earlier`, the settings that you leave out, except the format, are those of that run
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from corpus, workers and memory
    name: str = "adapt"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        if not self.corpus:
            raise InputError("corpus is empty; give the files of the new text")
        for name in OWN:
            if name in self.estimate:
                raise InputError(f"estimate.{name} has no effect on stage adapt; leave it out")
        check_at_least(self, 1, "chunk_bytes")
        check_name(self.name)
        self.estimating("counts", {})

    def estimating(self, counts: str, before: dict[str, Any]) -> EstimateConfig:
        """Return the settings for estimation from counts; `before` are the settings of the earlier model."""
        return fill(EstimateConfig, {**before, **self.estimate, "counts": counts}, "estimate")

    def counting(self, counts: str, order: int, lowercase: bool) -> CountConfig:
        """Return the settings for counting the new text with earlier counts."""
        return CountConfig(
            self.corpus, order, sentence_markers=True, lowercase=lowercase, add=[counts],
            text_column=self.text_column, chunk_bytes=self.chunk_bytes,
        )  # fmt: skip
