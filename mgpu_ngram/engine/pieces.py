"""Divide the rows of arrays in host memory among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_pieces(fn: Callable[[int, int], Any], rows: int, threads: int, least: int) -> list[Any]:
    """Return fn(begin, end) for all rows, in order; threads share the rows, at least `least` each."""
    size = max(least, -(-rows // threads))
    if size >= rows:
        return [fn(0, rows)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda begin: fn(begin, min(begin + size, rows)), range(0, rows, size)))
