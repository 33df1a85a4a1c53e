"""Run a function for several items in parallel, such as the orders of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(fn: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield fn(item) for each item, in order.

    threads  1: each item is computed on demand in the caller's thread, because a GPU runs one function at a time and
             has little memory. More: threads compute all items from the start
    """
    if threads == 1:
        yield from map(fn, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(fn, items)
