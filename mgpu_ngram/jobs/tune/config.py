"""The settings of a tune job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_name
from mgpu_ngram.jobs.rescore.config import ListsConfig, is_weight

MAX_POINTS = 1_000_000  # points of a grid


@dataclass(frozen=True)
class TuneConfig(ListsConfig):
    """Settings of a tune job; the keys of its YAML. The search starts from the weights."""

    references: list[str] = field(default_factory=list)  # files of correct texts: line i + 1 is for list i; with kaldi
    # or lattices, lines "ID word word". With several files, each list has a reference in each
    metric: Literal["bleu", "wer", "cer"] = "bleu"  # BLEU, or the word or character error rate
    grid: dict[str, Any] = field(default_factory=dict)  # lists of weights by name; try all combinations. Empty: line
    # searches
    restarts: int = 10  # number of searches from random weights, besides the search from the given weights
    seed: int = 1  # seed of the random weights
    name: str = "tune"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_at_least(self, 0, "restarts", "seed")
        super().__post_init__()
        if not self.references:
            raise InputError("there are no references; give --references FILE (in YAML references)")
        for name, values in self.grid.items():
            if not isinstance(values, list) or not values or not all(map(is_weight, values)):
                raise InputError(f"the grid of {name} is {values!r} but must be a list of finite numbers")
        points = math.prod(map(len, self.grid.values()))
        if points > MAX_POINTS:
            raise InputError(f"the grid has {points:,} points but may have at most {MAX_POINTS:,}; give fewer weights")
