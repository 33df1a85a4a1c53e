"""The settings of an estimate job."""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from mgpu_ngram.core.counts.tables import MAX_ORDER
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.kneser_ney_discounts import check_fallback
from mgpu_ngram.core.ngrams.smoothing import DELTA, GT_MAX, KNESER_NEY, Smoothing, check_values
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name
from mgpu_ngram.jobs.count.config import CountConfig, check_separator

if TYPE_CHECKING:
    from mgpu_ngram.engine.estimate.part import EstimateOptions

MAX_DISCOUNTED = 1000  # count that Good-Turing discounts
ONLY_FOR = {  # smoothings that have a setting
    "interpolate": ("witten-bell", "absolute"),
    "discount": ("absolute",),
    "delta": ("additive",),
    "gt_max": ("good-turing",),
    "limit_vocab_file": (KNESER_NEY,),
    "vocab_pad": (KNESER_NEY,),
    "discount_fallback": (KNESER_NEY,),
    "interpolate_unigrams": (KNESER_NEY,),
    "exact_discounts": (KNESER_NEY,),
}
OF_TEXT = ("unit", "dtype", "separator_id", "skip_symbols", "text_column", "chunk_bytes")  # settings for reading text


def default_of(field: Field[Any]) -> Any:
    """Return the default of a setting."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@dataclass(frozen=True)
class EstimateConfig:
    """Settings of an estimate job; the keys of its YAML. Options of KenLM's lmplz keep their names."""

    corpus: list[str] = field(default_factory=list)  # paths, globs, directories or fsspec URLs; one sentence per line
    counts: str | None = None  # instead of a corpus: an output folder of count with sentence_markers and min_count 1,
    # the name of an earlier count job, or a counts file of SRILM's ngram-count
    order: int | None = None  # highest n-gram order; auto: 5 for a corpus, else the order of the counts
    format: Literal["safetensors", "arpa"] = "safetensors"  # model file, or ARPA file
    unit: Literal["word", "id"] = "word"  # symbols of the n-grams
    dtype: Literal["uint16", "uint32"] = "uint16"  # type of the token ids in a file, unit id
    separator_id: int | None = None  # token id that ends a sentence, unit id
    prune: list[int] = field(default_factory=list)  # drop n-grams that occur at most this often: one threshold per
    # order; the last one holds for all higher orders
    smoothing: Literal["kneser-ney", "witten-bell", "absolute", "good-turing", "additive"] = "kneser-ney"  # smoothing
    # method; kneser-ney is modified Kneser-Ney, as in lmplz
    interpolate: bool = False  # witten-bell and absolute: interpolate with the lower order; false: back off
    discount: list[float] = field(default_factory=list)  # absolute: one discount per order; the last one holds for
    # all higher orders; []: n1 / (n1 + 2 n2) of each order
    delta: list[float] = field(default_factory=lambda: [*DELTA])  # additive: number added to each count, one for each
    # order
    gt_max: list[int] = field(default_factory=lambda: [*GT_MAX])  # good-turing: highest discounted count of each order
    vocabulary: str | None = None  # file of words; other words of the text count as <unk>. null: the words of the text
    closed: bool = False  # no <unk>: drop n-grams with words outside the vocabulary; not for kneser-ney
    limit_vocab_file: str | None = None  # kneser-ney: file of words; drop n-grams with other words
    vocab_pad: int = 0  # least size of the vocabulary for the uniform distribution
    discount_fallback: list[float] | None = None  # discounts for orders where none can be computed; []: 0.5, 1, 1.5
    interpolate_unigrams: bool = True  # false: <unk> gets all mass that order 1 leaves, as in SRILM
    skip_symbols: bool = False  # drop <unk>, <s> and </s> from the text; false: they are errors
    collapse_values: bool = False  # write one value for probability and backoff, ARPA (Heafield et al., 2012)
    exact_discounts: bool = False  # compute discounts from exact counts of counts, without lmplz's error
    verbose_header: bool = False  # write comments at the head of an ARPA file
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
    chunk_bytes: Bytes | None = None  # bytes of text for each task; auto: from corpus, workers and memory
    name: str = "estimate"  # folder of the result, in the run's output

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
            raise InputError(f"prune is {self.prune} but thresholds must be 0 or more and must not fall; correct it")
        if self.order is not None and len(self.prune) > self.order:
            raise InputError(
                f"prune has {len(self.prune)} thresholds for {self.order} orders; give at most {self.order}"
            )
        check_at_least(self, 0, "vocab_pad")
        if self.vocab_pad and not self.interpolate_unigrams:
            raise InputError("vocab_pad needs interpolate_unigrams; leave one of them out")
        check_separator(self.unit, self.dtype, self.separator_id)
        self._check_smoothing()
        if self.discount_fallback is not None:
            check_fallback(self.discount_fallback)
        for setting in ("verbose_header", "collapse_values"):
            if getattr(self, setting) and self.format != "arpa":
                raise InputError(f"{setting} needs format arpa (a path that ends with .arpa); leave it out")
        check_name(self.name)

    def _check_smoothing(self) -> None:
        """Raise InputError for settings of another smoothing, or out of range."""
        for f in fields(self):
            smoothings = ONLY_FOR.get(f.name)
            if smoothings and self.smoothing not in smoothings and getattr(self, f.name) != default_of(f):
                raise InputError(
                    f"{f.name} is for smoothing {' or '.join(smoothings)}, not {self.smoothing}; leave it out"
                )
        if self.closed and self.smoothing == KNESER_NEY:
            raise InputError("closed needs another smoothing than kneser-ney, whose models have <unk>; leave it out")
        if self.vocabulary is not None and self.limit_vocab_file is not None:
            raise InputError("vocabulary and limit_vocab_file are given; give one of them")
        if self.vocabulary is not None and self.unit != "word":
            raise InputError(f"vocabulary needs unit word but unit is {self.unit}; leave it out")
        for name in ("delta", "gt_max"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; give a value for each order, or one for all")
        check_values("discount", self.discount, 0, 1)
        check_values("delta", self.delta, 0, math.inf)
        check_values("gt_max", self.gt_max, 0, MAX_DISCOUNTED + 1)

    @property
    def like_srilm(self) -> bool:
        """Return whether text is read as SRILM reads it, not as lmplz does."""
        return self.smoothing != KNESER_NEY or self.vocabulary is not None

    @property
    def is_normal(self) -> bool:
        """Return whether the probabilities of the model sum to 1."""
        return not (self.collapse_values or self.vocab_pad)

    @property
    def highest(self) -> int:
        """Return the order of a model of a corpus."""
        return 5 if self.order is None else self.order

    def counting(self) -> CountConfig:
        """Return the settings for counting the n-grams."""
        return CountConfig(
            self.corpus, self.highest, self.unit, self.dtype, self.separator_id,
            text_column=self.text_column, chunk_bytes=self.chunk_bytes,
        )  # fmt: skip

    def options(self, order: int) -> EstimateOptions:
        """Return the options for a model of an order."""
        from mgpu_ngram.engine.estimate.part import EstimateOptions

        thresholds = [*self.prune[:order], *[self.prune[-1] if self.prune else 0] * (order - len(self.prune))]
        smoothing = None
        if self.smoothing != KNESER_NEY:
            values = tuple(self.discount), tuple(self.delta), tuple(self.gt_max)
            smoothing = Smoothing(self.smoothing, self.interpolate, *values, self.closed)
        return EstimateOptions(
            order=order,
            thresholds=tuple(thresholds),
            vocab_pad=self.vocab_pad,
            interpolate_unigrams=self.interpolate_unigrams,
            smoothing=smoothing,
            collapse=self.collapse_values,
        )
