"""The settings of a prune job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_name

WAYS = ("entropy", "max_ngrams", "vocabulary")


@dataclass(frozen=True)
class PruneConfig:
    """Settings of a prune job; the keys of its YAML. Exactly one of entropy, max_ngrams and vocabulary is given."""

    model: str  # an ARPA file, plain or compressed, a KenLM binary model or a model file; or an earlier job
    entropy: float | None = None  # drop n-grams without which the perplexity changes by a smaller ratio: 1e-8
    max_ngrams: int | None = None  # keep at most so many n-grams of all orders, by the same measure
    vocabulary: str | None = None  # a text; keep the n-grams of its words, as KenLM's filter does
    vocabulary_mode: Literal["single", "union"] = "single"  # single: all words of an n-gram occur in the text; union:
    # in one of its lines
    format: Literal["safetensors", "arpa"] = "safetensors"  # model file, or ARPA file
    name: str = "prune"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        given = [way for way in WAYS if getattr(self, way) is not None]
        if len(given) != 1:
            found = " and ".join(given) + " are" if given else "none is"
            raise InputError(f"{found} given of {', '.join(WAYS)}; give one of them")
        if self.entropy is not None and not (self.entropy >= 0 and math.isfinite(self.entropy)):
            raise InputError(f"entropy is {self.entropy} but must be at least 0; 1e-8 drops little, 1e-6 much")
        check_at_least(self, 1, "max_ngrams")
        if self.vocabulary is None and self.vocabulary_mode != "single":
            raise InputError(f"vocabulary_mode is {self.vocabulary_mode} but no vocabulary is given; give a text")
        check_name(self.name)
