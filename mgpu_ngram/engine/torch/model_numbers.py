"""Numbers of models. Operators of PyTorch take only tensors and plain values, so they take a number for a model."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from mgpu_ngram.core.errors import InputError

_models: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def number_of(model: Any) -> int:
    """Return a new number for a model. It is valid while the model exists."""
    number = next(_numbers)
    _models[number] = model
    return number


def model_of(number: int) -> Any:
    """Return the model that has a number. Raises InputError if it is deleted."""
    model = _models.get(number)
    if model is None:
        raise InputError(f"the n-gram model {number} of a compiled function is gone; keep the model, or compile again")
    return model
