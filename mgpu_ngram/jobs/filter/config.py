"""The settings of a filter job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.documents.buckets import LAST, NO_BUCKET, Rules, parse_buckets
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_files, check_name, suggest

CONTRAST_FIELDS = ("contrast_perplexity", "cross_entropy_difference")
NEW_FIELDS = ("perplexity", "log10", "words", "oovs", *CONTRAST_FIELDS, "bucket", "lines")
TABLES = (".csv", ".yaml", ".yml")  # suffixes of tables of models
LANGUAGE = "language"  # CCNet's field
PLACE = "{language}"  # in the path of models


@dataclass(frozen=True)
class FilterConfig:
    """Settings of a filter job; the keys of its YAML."""

    text: list[str]  # documents: paths, globs, directories or fsspec URLs of JSON lines, WET and Parquet files
    model: str  # model file, ARPA file or KenLM binary, or the name of an earlier job that makes a model; {language} in
    # the path stands for the language of a document; or a table of models by language (.csv, .yaml)
    contrast_model: str | None = None  # second model, such as one of general text, for the cross-entropy difference
    # (Moore and Lewis 2010); may have {language}, too
    text_column: str = "text"  # key or column of a document's text
    tokenizer: str | None = None  # SentencePiece model, or tokenizer.json of Hugging Face; null: split at white space;
    # may have {language}, too
    normalize: Literal["none", "ccnet", "nfc", "nfkc"] = "none"  # how to normalise the text; nfc and nfkc also change
    # it to lower case
    sentences: Literal["auto", "line", "document"] = "auto"  # score each line, or the whole text, as a sentence; auto:
    # document with ccnet, whose normaliser joins lines, else line
    buckets: list[str] = field(default_factory=list)  # NAME:PERCENTILE, rising; documents above all percentiles are the
    # tail
    fixed_buckets: list[str] = field(default_factory=list)  # NAME:PERPLEXITY, rising, instead of percentiles
    bucket_by: Literal["perplexity", "difference"] = "perplexity"  # figure by which buckets are divided; difference:
    # the cross-entropy difference
    sample: int | None = None  # compute percentiles from about this many documents, equally many from the beginning of
    # each file; null: from all
    cutoffs: str | None = None  # table of percentiles by language, such as CCNet's cutoff.csv; null: compute them from
    # the documents
    language_column: str | None = None  # field with the language; each language has its own cut-offs. null: language,
    # if cutoffs or {language} need it
    min_perplexity: float | None = None  # drop documents with a lower perplexity
    max_perplexity: float | None = None  # drop documents with a higher perplexity
    min_difference: float | None = None  # drop documents with a smaller cross-entropy difference
    max_difference: float | None = None  # drop documents with a greater cross-entropy difference
    only: list[str] = field(default_factory=list)  # buckets to keep; empty: all
    keep: list[str] = field(default_factory=list)  # new fields to write: perplexity, log10, words, oovs,
    # contrast_perplexity, cross_entropy_difference, bucket, and lines, the perplexity of each sentence; empty: all but
    # lines
    report: bool = True  # write report.html
    block_bytes: Bytes | None = None  # bytes of a file to score at once; auto: by device
    verify: bool = True  # check the checksums of a model file
    name: str = "filter"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_files(self.text)
        check_at_least(self, 1, "block_bytes", "sample")
        check_at_least(self, 1, "min_perplexity", "max_perplexity")
        for name in "min_perplexity", "max_perplexity", "min_difference", "max_difference":
            if math.isnan(getattr(self, name) or 0.0):
                raise InputError(f"{name} is NaN but must be a number")
        for least, most in ("min_perplexity", "max_perplexity"), ("min_difference", "max_difference"):
            low, high = getattr(self, least), getattr(self, most)
            if low is not None and high is not None and low > high:
                raise InputError(f"{least} is {low} but must be at most {most}, {high}")
        for name in "buckets", "fixed_buckets", "only", "keep":
            if getattr(self, name) and not _parts(getattr(self, name)):
                raise InputError(
                    f"{name} is {getattr(self, name)[0]!r} but must have a name; leave it out, or give one"
                )
        for name in _parts(self.keep):
            if name not in NEW_FIELDS:
                raise InputError(f"keep has the unknown field {name!r}; {suggest(name, NEW_FIELDS)}")
        for setting, name in ("text_column", self.text_column), ("language_column", self.language):
            if name in self.fields(bool(self.contrast_model) or self.has_table):
                raise InputError(
                    f"{setting} is {name!r}, which is a new field; rename the documents' field, or leave it out of keep"
                )
        ends = self.bucket_ends
        for name in self.only_buckets:
            if not ends:
                raise InputError(f"only has {name!r} but there are no buckets; add --buckets head:30,middle:60")
            if name not in (*ends, LAST, NO_BUCKET):
                known = ", ".join([*ends, LAST, NO_BUCKET])
                raise InputError(f"only has {name!r} but must name some of the buckets {known}")
        self._check_models()
        self._check_buckets()

    def _check_models(self) -> None:
        by_language, others = self.model.count(PLACE), (self.tokenizer or "", self.contrast_model or "")
        if by_language > 1 or any(path.count(PLACE) > by_language for path in others):
            others_of = "then once in the paths of the tokenizer and the contrast model"
            raise InputError(f"{PLACE} may occur once in the path of the model, and {others_of}; correct the paths")
        for setting in ("tokenizer", "contrast_model"):
            if self.has_table and getattr(self, setting):
                raise InputError(
                    f"{setting} is {getattr(self, setting)!r} but {self.model} is a table; set it in the table"
                )
        wanted = {"max_difference": self.max_difference, "min_difference": self.min_difference}
        given = {name for name, value in wanted.items() if value is not None}
        given |= {f"keep {name}" for name in _parts(self.keep) if name in CONTRAST_FIELDS}
        given |= {"bucket_by difference"} if self.bucket_by == "difference" else set()
        if given and not self.contrast_model and not self.has_table:
            raise InputError(f"{min(given)} needs a second model; add --contrast-model MODEL")

    def _check_buckets(self) -> None:
        if self.buckets and self.fixed_buckets:
            raise InputError("buckets and fixed_buckets are given; give percentiles or limits, not both")
        least = min(self.bucket_ends.values(), default=1.0)
        if self.fixed_buckets and self.bucket_by == "perplexity" and least < 1:
            raise InputError(f"fixed_buckets ends at {least} but a perplexity is at least 1; correct the limit")
        example = "add --buckets head:30,middle:60"
        if self.cutoffs and not self.buckets:
            raise InputError(f"cutoffs is given but there are no buckets; {example}")
        if self.language_column and not self.buckets and not self.by_language:
            raise InputError(f"language_column is given but there are no buckets; {example}")
        if "bucket" in _parts(self.keep) and not self.bucket_ends:
            raise InputError(f"keep has 'bucket' but there are no buckets; {example}")
        if self.sample and (self.cutoffs or not self.buckets):
            raise InputError(f"sample is {self.sample} but no percentiles are computed; leave it out, or {example}")

    @property
    def has_table(self) -> bool:
        """Whether the model is a table of models by language."""
        return self.model.lower().endswith(TABLES)

    @property
    def by_language(self) -> bool:
        """Whether each language has a model of its own."""
        return PLACE in self.model or self.has_table

    @property
    def bucket_ends(self) -> dict[str, float]:
        """The upper end of each bucket, by name: percentiles, or fixed limits."""
        return parse_buckets(_parts(self.buckets)) or parse_buckets(_parts(self.fixed_buckets), percentiles=False)

    @property
    def only_buckets(self) -> tuple[str, ...]:
        """The buckets to keep; () for all."""
        return tuple(_parts(self.only))

    def rules(self, cutoffs: Mapping[str | None, tuple[float, ...]]) -> Rules:
        """Return the rules of buckets and of the kept documents, with cut-offs by language."""
        return Rules(
            names=tuple(self.bucket_ends), cutoffs=cutoffs, language="" if self.fixed_buckets else self.language,
            by=self.bucket_by, least=self.min_perplexity, most=self.max_perplexity,
            least_difference=self.min_difference, most_difference=self.max_difference, only=self.only_buckets,
        )  # fmt: skip

    def fields(self, has_contrast: bool) -> tuple[str, ...]:
        """Return the new fields, in the order of NEW_FIELDS.

        has_contrast  whether a contrast model is given
        """
        absent = {"lines", *(() if self.bucket_ends else ("bucket",)), *(() if has_contrast else CONTRAST_FIELDS)}
        wanted = _parts(self.keep) or [name for name in NEW_FIELDS if name not in absent]
        return tuple(name for name in NEW_FIELDS if name in wanted)

    @property
    def language(self) -> str:
        """The field with the language, or ""."""
        return self.language_column or (LANGUAGE if self.cutoffs or self.by_language else "")

    @property
    def unit(self) -> Literal["line", "document"]:
        """The unit of a sentence: "line" or "document"."""
        if self.sentences == "auto":
            return "document" if self.normalize == "ccnet" else "line"
        return self.sentences


def _parts(values: list[str]) -> list[str]:
    """Return the values between commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
