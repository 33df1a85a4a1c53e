"""Compute results ahead of time in threads or processes, and take them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(pool: Executor, fn: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Yield fn(item) in order; the pool works on up to `ahead` items while the caller uses a result."""
    under_way: deque[Future[R]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(fn, item))
            if len(under_way) > ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
