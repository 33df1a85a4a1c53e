"""The settings of a filter job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.cutoffs import LAST, NO_BUCKET, parse_buckets
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_files, check_name, suggest

FIELDS = ("perplexity", "log10", "words", "oovs", "bucket", "lines")
LANGUAGE = "language"  # CCNet's field
PLACE = "{language}"  # in the path of models


@dataclass(frozen=True)
class FilterConfig:
    """Settings of a filter job; the keys of its YAML."""

    text: list[str]  # documents: paths, globs, directories or fsspec URLs of JSON lines, WET and Parquet files
    model: str  # model file, ARPA file or KenLM binary, or the name of an earlier job that makes a model; with
    # {language} in the path, a model of each language
    text_column: str = "text"  # key or column of a document's text
    tokenizer: str | None = None  # SentencePiece model, or tokenizer.json of Hugging Face; null: white space; may have
    # {language}, too
    normalize: Literal["none", "ccnet", "nfc", "nfkc"] = "none"  # nfc and nfkc also make lower case
    sentences: Literal["auto", "line", "document"] = "auto"  # a sentence is a line of the text, or the text; auto: the
    # text with ccnet, whose normaliser joins lines, else a line
    buckets: list[str] = field(default_factory=list)  # NAME:PERCENTILE, rising; perplexities above all are the tail
    cutoffs: str | None = None  # table of percentiles by language, as CCNet's cutoff.csv; null: those of the documents
    language_column: str | None = None  # field with the language, each with its cut-offs; with a table or {language}:
    # language
    min_perplexity: float | None = None  # documents with less are dropped
    max_perplexity: float | None = None  # documents with more are dropped
    only: list[str] = field(default_factory=list)  # buckets to keep; empty: all
    keep: list[str] = field(default_factory=list)  # new fields: perplexity, log10, words, oovs, bucket, and lines, the
    # perplexity of each sentence; empty: all but lines
    report: bool = True  # write report.html
    block_bytes: Bytes | None = None  # of a file that are scored at once; auto: by device
    verify: bool = True  # check the checksums of a model file
    name: str = "filter"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_files(self.text)
        check_at_least(self, 1, "block_bytes")
        check_at_least(self, 1, "min_perplexity", "max_perplexity")
        least, most = self.min_perplexity, self.max_perplexity
        if least is not None and most is not None and least > most:
            raise InputError(f"min_perplexity is {least} but must be at most max_perplexity, {most}")
        for name in _parts(self.keep):
            if name not in FIELDS:
                raise InputError(f"keep has {name!r}; {suggest(name, FIELDS)}")
        buckets = self.percentiles
        for name in self.only_buckets:
            if name not in (*buckets, LAST, NO_BUCKET) or not buckets:
                raise InputError(f"only has {name!r} but the buckets are {', '.join([*buckets, LAST, NO_BUCKET])}")
        by_language = self.model.count(PLACE)
        if by_language > 1 or (self.tokenizer or "").count(PLACE) > by_language:
            raise InputError(f"{PLACE} may be once in the path of the model, and then once in that of the tokenizer")
        for setting in ("cutoffs", "language_column"):
            if getattr(self, setting) and not buckets and not (by_language and setting == "language_column"):
                raise InputError(f"{setting} is given but there are no buckets; add --buckets head:30,middle:60")
        if "bucket" in _parts(self.keep) and not buckets:
            raise InputError("keep has 'bucket' but there are no buckets; add --buckets head:30,middle:60")

    @property
    def percentiles(self) -> dict[str, float]:
        """The percentile of each bucket's upper end, by name."""
        return parse_buckets(_parts(self.buckets))

    @property
    def only_buckets(self) -> tuple[str, ...]:
        """The buckets to keep; () for all."""
        return tuple(_parts(self.only))

    @property
    def fields(self) -> tuple[str, ...]:
        """The new fields, in the order of FIELDS."""
        wanted = _parts(self.keep) or [
            name for name in FIELDS if name != "lines" and (name != "bucket" or self.buckets)
        ]
        return tuple(name for name in FIELDS if name in wanted)

    @property
    def language(self) -> str:
        """The field with the language; "" for none."""
        return self.language_column or (LANGUAGE if self.cutoffs or PLACE in self.model else "")

    @property
    def unit(self) -> Literal["line", "document"]:
        """What a sentence is."""
        if self.sentences == "auto":
            return "document" if self.normalize == "ccnet" else "line"
        return self.sentences


def _parts(values: list[str]) -> list[str]:
    """Return the values between commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
