"""The settings of a distribution job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name

if TYPE_CHECKING:
    from mgpu_ngram.core.models.row_options import RowOptions


@dataclass(frozen=True)
class DistributionConfig:
    """Settings of a distribution job; the keys of its YAML. None means that the key is absent."""

    model: str  # a model file, ARPA file or KenLM binary, or the name of an earlier job that makes a model
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence a line, or one history (positions: last)
    orders: Any = None  # orders of the rows: all (default), max, a number, or a list such as 1,2,5
    mode: Literal["smoothed", "stored"] | None = None  # smoothed (default): with backoff; stored: 0 for n-grams
    # that the model does not store
    top_k: int | None = None  # write only the most probable words of each row, at most this many; default: whole rows
    format: Literal["zarr", "npy", "compact", "parquet"] = "zarr"  # format of the files; docs/distribution.md compares
    # the formats
    dtype: Literal["float32", "float16", "bfloat16"] | None = None  # type of the values; default float32
    scale: Literal["prob", "log10", "ln"] | None = None  # scale of the values; default prob
    positions: Literal["every", "last"] = "every"  # every: a history ends before each word and at the end of each
    # line; last: a whole line is one history
    sentence_markers: bool = True  # <s> before each line, and a row for the end of each line
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from the expected output size
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
                f"{name} is {value} but format compact is exact and holds all of every row: it applies when rows are "
                f"made of the blocks; leave {name} out, or give format zarr"
            )
        if self.format == "parquet" and self.dtype not in (None, "float32"):
            raise InputError(f"dtype is {self.dtype} but the values of format parquet are float32; leave dtype out")
        if self.format == "parquet" and self.mode != "stored" and self.top_k is None:
            raise InputError(
                "format parquet has a row for each word, but smoothed distributions have all words; give top_k, mode "
                "stored, or format zarr"
            )
        from mgpu_ngram.core.models.row_options import RowOptions

        RowOptions.of(1, "all", **self.how())

    def row_options(self, order: int) -> RowOptions:
        """Return the row options for a model of an order. Raises InputError for orders that the model lacks."""
        from mgpu_ngram.core.models.row_options import RowOptions

        return RowOptions.of(order, "all" if self.orders is None else self.orders, **self.how())

    def how(self) -> dict[str, Any]:
        """Return the settings of rows besides their orders."""
        return {
            "mode": self.mode or "smoothed",
            "scale": self.scale or "prob",
            "dtype": self.dtype or "float32",
            "top_k": self.top_k,
        }
