"""The settings of a mix job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import check_at_least, check_name

WEIGHT_SUM_TOLERANCE = 1e-6  # greatest difference between the sum of the weights and 1


@dataclass(frozen=True)
class MixConfig:
    """Settings of a mix job; the keys of its YAML. Either weights or tune are given."""

    models: list[str]  # two or more: ARPA files, KenLM binary models, model files, or names of earlier jobs
    weights: list[float] = field(default_factory=list)  # one weight for each model, in their order; without log_linear
    # they must sum to 1
    tune: str | None = None  # held-out text for which to find the best weights
    log_linear: bool = False  # multiply the probabilities of the models, each to the power of its weight, as KenLM's
    # interpolate; false: add weighted probabilities
    bayes: int = 0  # adapt the weights to this many last words of the history, as SRILM's -bayes; 0: fixed weights
    bayes_scale: float = 1.0  # exponent of the probability of these words
    format: Literal["safetensors", "arpa"] = "safetensors"  # model file, or ARPA file
    name: str = "mix"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise InputError(f"models are {self.models} but a mixture needs two or more; add a model")
        if bool(self.weights) == (self.tune is not None):
            which = "both weights and tune are" if self.weights else "neither weights nor tune is"
            raise InputError(f"{which} given; give one of them")
        check_at_least(self, 0, "bayes")
        if self.bayes and self.log_linear:
            raise InputError("bayes is for linear mixtures but log_linear is set; leave one of them out")
        if not (self.bayes_scale > 0 and math.isfinite(self.bayes_scale)):
            raise InputError(f"bayes_scale is {self.bayes_scale} but must be above 0, such as 1 for Bayes' rule")
        if self.bayes_scale != 1 and not self.bayes:
            raise InputError(f"bayes_scale is {self.bayes_scale} but bayes is 0; give bayes, such as 2")
        if self.weights:
            if len(self.weights) != len(self.models):
                raise InputError(
                    f"there are {len(self.weights)} weights for {len(self.models)} models; give one for each"
                )
            if self.log_linear:
                if not all(weight >= 0 and math.isfinite(weight) for weight in self.weights):
                    raise InputError(f"weights are {self.weights} but must be at least 0 and finite")
            elif not (min(self.weights) >= 0 and abs(sum(self.weights) - 1) <= WEIGHT_SUM_TOLERANCE):
                raise InputError(f"weights are {self.weights} but must be at least 0 and sum to 1")
        check_name(self.name)
