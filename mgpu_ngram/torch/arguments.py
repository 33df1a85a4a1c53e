"""Checks of arguments. Errors name the argument, its value and what it must be, in one line."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Set
from typing import Any

import torch

from mgpu_ngram.api.model import Model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.torch.arrays import check_dense


def check_model(model: Any) -> None:
    """Raise InputError for anything but a loaded model, such as a path."""
    if not isinstance(model, Model):
        raise InputError(f"model is {model!r:.60} but must be a loaded model, such as ng.Model.load(path) returns")


def finite_number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return a finite number, not below `least`, as a float."""
    try:
        made = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        made = math.nan
    if not math.isfinite(made) or made < least:
        limit = "" if least == -math.inf else f", {least:g} or more"
        raise InputError(f"{name} is {value!r:.60} but must be a finite number{limit}")
    return made


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer of 64 bits, not below `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        limit = "" if least is None else f", {least} or more"
        raise InputError(f"{name} is {value!r:.60} but must be an integer{limit}")
    if not -(1 << 63) <= int(value) < 1 << 63:
        raise InputError(f"{name} is {int(value)!r:.60} but must be an integer of 64 bits")
    return int(value)


def ordered(name: str, values: Any, kind: str) -> list[Any]:
    """Return the items of a list or of another collection that has an order; not of a string."""
    if isinstance(values, (str, bytes, Mapping, Set)):
        raise InputError(f"{name} are {values!r:.60} but must be a list of {kind}")
    return collection(name, values, kind)


def collection(name: str, values: Any, kind: str) -> list[Any]:
    """Return the items of a collection."""
    check_dense(values)
    try:
        return list(values)
    except TypeError:  # also of an array without dimensions
        raise InputError(f"{name} are {values!r:.60} but must be a list of {kind}") from None


def described(value: Any) -> str:
    """Return the dtype and the shape of a tensor, or the type of another value, for an error."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None else f"{dtype} of shape {tuple(shape)}"


def check_tensor(name: str, given: Any) -> None:
    """Raise InputError unless a value is a tensor."""
    if not isinstance(given, torch.Tensor):
        raise InputError(f"{name} is {type(given).__name__} but must be a tensor")
    if not given.is_meta:  # callers compare devices
        check_dense(given)


def check_integers(name: str, given: Any) -> None:
    """Raise InputError unless a value is a tensor of integers, (B,)."""
    check_dense(given)
    is_tensor = isinstance(given, torch.Tensor)
    if not is_tensor or given.ndim != 1 or given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise InputError(f"{name} are {described(given)} but must be a tensor of integers, (B,)")
