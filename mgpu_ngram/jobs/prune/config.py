"""The settings of a prune job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_name

MODELS_OF_LINES = {"arpa": "{}.arpa", "safetensors": "{}.safetensors"}  # names of the models of lines, from line 0 on
WAYS = ("entropy", "max_ngrams", "vocabulary", "min_count")


@dataclass(frozen=True)
class PruneConfig:
    """Settings of a prune job; the keys of its YAML. Exactly one of entropy, max_ngrams, vocabulary, min_count."""

    model: str  # an ARPA file, plain or compressed, a KenLM binary model or a model file; or an earlier job
    entropy: float | None = None  # drop n-grams whose removal changes the perplexity by a smaller ratio than this, such
    # as 1e-8
    max_ngrams: int | None = None  # keep at most this many n-grams of all orders: those whose removal changes the
    # perplexity most
    vocabulary: str | None = None  # text; keep the n-grams whose words occur in it, as KenLM's filter does
    vocabulary_mode: Literal["single", "union", "multiple"] = "single"  # single: all words of an n-gram occur in the
    # text; union: in one of its lines; multiple: a model for each line
    context: bool = False  # with vocabulary: do not check the last word of an n-gram
    phrases: bool = False  # with vocabulary: lines have phrases separated by tabs; an n-gram must fit into the phrases.
    # Mode union or multiple
    min_count: list[int] = field(default_factory=list)  # drop n-grams that occur fewer times in `counts`: one number
    # per order from 2; the last one holds for all higher orders
    counts: str | None = None  # for min_count: output folder of count with sentence_markers, or an earlier count job
    format: Literal["safetensors", "arpa"] = "safetensors"  # model file, or ARPA file
    name: str = "prune"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        given = [way for way in WAYS if getattr(self, way) not in (None, [])]
        if len(given) != 1:
            found = f"{' and '.join(given)} are set" if given else "no way to prune is set"
            raise InputError(f"{found}; set one of {', '.join(WAYS)}")
        if self.entropy is not None and not (self.entropy >= 0 and math.isfinite(self.entropy)):
            raise InputError(
                f"entropy is {self.entropy} but must be at least 0, such as 1e-8 (prunes few n-grams) or 1e-6 (prunes "
                "many)"
            )
        check_at_least(self, 1, "max_ngrams")
        if self.vocabulary is None and self.vocabulary_mode != "single":
            raise InputError(f"vocabulary_mode is {self.vocabulary_mode} but no vocabulary is given; give a text")
        for name in "context", "phrases":
            if self.vocabulary is None and getattr(self, name):
                raise InputError(f"{name} is set but no vocabulary is given; give a text")
        if self.phrases and self.vocabulary_mode == "single":
            raise InputError("phrases needs lines but vocabulary_mode is single; make it union or multiple")
        if bool(self.min_count) != (self.counts is not None):
            raise InputError(
                "min_count and counts need each other: give both, counts as a folder that mgpu-ngram count wrote; "
                "without "
                "counts, give entropy"
            )
        if min(self.min_count, default=0) < 0:
            raise InputError(f"min_count is {self.min_count} but must be 0 or more; correct it")
        check_name(self.name)

    def least(self, order: int) -> list[int]:
        """Return min_count for each order from 2 to `order`."""
        return [*self.min_count[: order - 1], *self.min_count[-1:] * (order - 1 - len(self.min_count))]
