"""States of a search: any tree of dicts, tuples, lists and arrays whose first axis is the row.

Arrays are NumPy or CuPy arrays or PyTorch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mgpu_ngram.engine.torch.arrays import as_tensor, memory_module, torch_of
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


def rows_of_tree(state: Any, rows_R: np.ndarray) -> Any:
    """Return the state with the rows of `rows_R` in its order."""

    def take(array: Any) -> Any:
        rows = as_tensor(rows_R, array).long() if torch_of(array) else array_module(array).asarray(rows_R)
        return array[rows]

    return map_state(take, state)


def join_rows(state: Any, new: Any) -> Any:
    """Return the state with the rows of another one after its own."""
    if state is None:
        return new

    def join(array: Any, more: Any) -> Any:
        torch = torch_of(array)
        return torch.cat([array, more]) if torch else array_module(array).concatenate([array, more])

    return map_state(join, state, new)


def leaves(state: Any, name: str = "state") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of all values of a tree, such as ("state['hidden'][0]", array); skips None."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(state, (tuple, list)):
        for i, value in enumerate(state):
            yield from leaves(value, f"{name}[{i}]")
    elif state is not None:
        yield name, state


def state_module(state: Any) -> Any:
    """Return the module, NumPy or CuPy, of the memory of the first array of a state; None without arrays."""
    return next((memory_module(array) for _, array in leaves(state)), None)
