"""The settings of a topics job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_files, check_name


@dataclass(frozen=True)
class TopicsConfig:
    """Settings of a topics job; the keys of its YAML."""

    model: str  # a topic model file, the folder that lda wrote, or the name of an earlier lda job
    documents: list[str] = field(default_factory=list)  # documents whose topics to find, in the formats of lda: paths,
    # globs, directories or fsspec URLs. Without documents, the job only describes the topics
    text_column: str | None = None  # column of Parquet files, or key of JSON lines; auto: as the model was trained
    vocabulary: str | None = None  # file with the words of the columns of a matrix, one a line; auto: the words of the
    # model
    format: Literal["parquet", "jsonl", "npy", "npz"] = "parquet"  # npy: all shares, float32; npz: SciPy's CSR matrix
    dense: bool = False  # write the shares of all topics, not only those above the threshold
    threshold: float = 0.01  # do not write smaller shares
    group_by: str | None = None  # column of classes; compute the mean shares of topics for each class
    time: str | None = None  # column of dates; compute the mean shares of topics for each period
    by: Literal["year", "month", "week", "day"] = "month"  # periods of the dates
    top: int = 10  # number of words to show for each topic
    order: Literal["probability", "relevance", "frex"] = "probability"  # order of these words
    relevance_lambda: float = 0.6  # weight of the probability in the relevance; the rest is the weight of the lift
    examples: int = 3  # number of representative documents of each topic
    nearest: int | None = None  # number of nearest topics to show for each topic; None: 0, or 5 for a topic that is
    # shown alone
    html: bool = False  # write a page to explore the topics, topics.html
    name: str = "topics"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_at_least(self, 1, "top")
        check_at_least(self, 0, "examples", "nearest")
        check_files(self.documents)
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold} but must be a share from 0 to 1")
        if not 0 <= self.relevance_lambda <= 1:
            raise InputError(f"relevance_lambda is {self.relevance_lambda} but must be 0 to 1")
        if self.dense and self.format == "npz":
            raise InputError("format npz is a sparse matrix but dense is true; give format npy, or leave dense out")
        if self.group_by and self.time:
            raise InputError(f"group_by is {self.group_by!r} and time is {self.time!r}; give one of them")
        for name in ("group_by", "time", "text_column", "vocabulary"):
            if getattr(self, name) == "":
                raise InputError(f"{name} is empty; give a name, or leave it out")
            if getattr(self, name) and not self.documents:
                raise InputError(f"{name} is {getattr(self, name)!r} but documents are not given; give documents")

    @property
    def writes_dense(self) -> bool:
        """Return whether all shares are written."""
        return self.dense or self.format == "npy"
