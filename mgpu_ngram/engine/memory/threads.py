"""Divide work among threads: the rows of arrays, or several items such as the orders of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_pieces(fn: Callable[[int, int], Any], rows: int, threads: int, least: int) -> list[Any]:
    """Return fn(begin, end) for all rows, in order; threads share the rows, at least `least` each."""
    size = max(least, -(-rows // threads))
    if size >= rows:
        return [fn(0, rows)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda begin: fn(begin, min(begin + size, rows)), range(0, rows, size)))


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
