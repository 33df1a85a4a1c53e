"""The settings of an estimate job."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from mgpu_ngram.core.discounts import check_fallback
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.tables import MAX_ORDER
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name
from mgpu_ngram.engine.estimate import EstimateOptions
from mgpu_ngram.jobs.count.config import CountConfig, check_separator

OF_TEXT = ("unit", "dtype", "separator_id", "skip_symbols", "text_column", "chunk_bytes")  # settings of how it is read


@dataclass(frozen=True)
class EstimateConfig:
    """Settings of an estimate job; the keys of its YAML. Named after the options of KenLM's lmplz, as far as it has
    them.
    """

    corpus: list[str] = field(default_factory=list)  # paths, globs, directories or fsspec URLs; one sentence per line
    counts: str | None = None  # in place of a corpus: a folder that count wrote, with sentence_markers and min_count 1
    order: int | None = None  # highest n-gram order; auto: 5 of a corpus, that of counts
    format: Literal["safetensors", "arpa"] = "safetensors"  # model file, or ARPA file
    unit: Literal["word", "id"] = "word"
    dtype: Literal["uint16", "uint32"] = "uint16"  # of raw token ids
    separator_id: int | None = None  # token id that ends a sentence
    prune: list[int] = field(default_factory=list)  # n-grams that occur so often or less are left out, by order; the
    # last threshold is that of all higher orders, too
    limit_vocab_file: str | None = None  # words, white space between: n-grams with others are left out
    vocab_pad: int = 0  # words that the uniform distribution is over, at least
    discount_fallback: list[float] | None = None  # discounts for orders where none can be computed; [] for 0.5, 1, 1.5
    interpolate_unigrams: bool = True  # false: <unk> has all that order 1 leaves, as SRILM does it
    skip_symbols: bool = False  # leave <unk>, <s> and </s> out of the text; else they are refused
    collapse_values: bool = False  # collapse probability and backoff into one value (Heafield et al., 2012)
    exact_discounts: bool = False  # without lmplz's slip in its counts of counts
    verbose_header: bool = False  # comments at the head of an ARPA file
    text_column: str = "text"  # of Parquet inputs
    chunk_bytes: Bytes | None = None  # text per task; auto: by corpus, workers and memory
    name: str = "estimate"  # folder of the result under the run's output

    def __post_init__(self) -> None:
        if bool(self.corpus) == bool(self.counts):
            which = "both corpus and counts are" if self.corpus else "neither corpus nor counts is"
            raise InputError(f"{which} given; give one of them")
        for f in fields(self):
            if self.counts and f.name in OF_TEXT and getattr(self, f.name) != f.default:
                raise InputError(f"{f.name} is for text but counts are given; leave it out, or give the corpus")
        check_at_least(self, 1, "chunk_bytes")
        if self.order is not None and not 1 <= self.order <= MAX_ORDER:
            raise InputError(f"order is {self.order} but must be from 1 to {MAX_ORDER}")
        if self.prune and (min(self.prune) < 0 or sorted(self.prune) != self.prune):
            raise InputError(f"prune is {self.prune} but thresholds must be 0 or more and not fall; correct it")
        if self.order is not None and len(self.prune) > self.order:
            raise InputError(f"prune has {len(self.prune)} thresholds for {self.order} orders; give at most so many")
        check_at_least(self, 0, "vocab_pad")
        if self.vocab_pad and not self.interpolate_unigrams:
            raise InputError("vocab_pad needs interpolate_unigrams; leave one of them out")
        check_separator(self.unit, self.dtype, self.separator_id)
        if self.discount_fallback is not None:
            check_fallback(self.discount_fallback)
        for setting in ("verbose_header", "collapse_values"):
            if getattr(self, setting) and self.format != "arpa":
                raise InputError(f"{setting} needs format arpa (a path that ends with .arpa); leave it out")
        check_name(self.name)

    @property
    def highest(self) -> int:
        """The order of a model of a corpus."""
        return 5 if self.order is None else self.order

    def counting(self) -> CountConfig:
        """How its n-grams are counted."""
        return CountConfig(
            self.corpus, self.highest, self.unit, self.dtype, self.separator_id,
            text_column=self.text_column, chunk_bytes=self.chunk_bytes,
        )  # fmt: skip

    def options(self, order: int) -> EstimateOptions:
        """Of a model of that order."""
        thresholds = [*self.prune[:order], *[self.prune[-1] if self.prune else 0] * (order - len(self.prune))]
        return EstimateOptions(order, tuple(thresholds), self.vocab_pad, self.interpolate_unigrams)
