"""States of a search: any tree of dicts, tuples, lists and arrays whose first axis is the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mgpu_ngram.kernels.dispatch import array_module


def map_state(fn: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Return the tree of fn(array, ...) over trees of one shape."""
    if state is None:
        return None
    if isinstance(state, dict):
        return {key: map_state(fn, state[key], *(other[key] for other in others)) for key in state}
    if isinstance(state, (tuple, list)):
        values = [map_state(fn, *items) for items in zip(state, *others, strict=True)]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return fn(state, *others)


def take_rows(state: Any, rows_R: Any) -> Any:
    """Return the state with the rows of `rows_R`, a NumPy array, in its order."""
    return map_state(lambda array: array[array_module(array).asarray(rows_R)], state)


def join_rows(state: Any, new: Any) -> Any:
    """Return the state with the rows of another one after its own."""
    if state is None:
        return new
    return map_state(lambda array, more: array_module(array).concatenate([array, more]), state, new)


def state_module(state: Any) -> Any:
    """Return NumPy or CuPy, whichever made the arrays of a state."""
    if isinstance(state, (dict, tuple, list)):
        items = state.values() if isinstance(state, dict) else state
        return next((xp for xp in map(state_module, items) if xp is not None), None)
    return None if state is None else array_module(state)
