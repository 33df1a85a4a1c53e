"""Join ranges of two arrays of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import check
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

THREADS, TILE = 256, 16384  # as in join_ranges.cu


def join_ranges(first_A: Any, second_B: Any, ranges: Sequence[tuple[int, int]]) -> Any:
    """Return the bytes of ranges, one after the other, uint8.

    first_A, second_B  (A,) and (B,) uint8. Their bytes have the numbers 0 to A - 1 and A to A + B - 1
    ranges             (begin, end) of such numbers; each range is within one array
    """
    check.dtype(first_A, np.uint8)
    check.dtype(second_B, np.uint8)
    run = pick(cpu=_cpu, cuda=_cuda, first_A=first_A, second_B=second_B)
    check.contiguous(first_A=first_A, second_B=second_B)
    return run(first_A, second_B, ranges)


def _cpu(first_A, second_B, ranges):
    A, parts = len(first_A), [np.empty(0, np.uint8)]
    parts += [first_A[begin:end] if begin < A else second_B[begin - A : end - A] for begin, end in ranges]
    return np.concatenate(parts)


def _cuda(first_A, second_B, ranges):
    import cupy

    starts_N, stops_N = np.array(ranges, np.int64).reshape(-1, 2).T
    ends_N = np.cumsum(stops_N - starts_N)
    data = cupy.empty(int(ends_N[-1]) if len(ends_N) else 0, np.uint8)
    if len(data):
        places_2N = cupy.asarray(np.stack([starts_N, ends_N]))
        args = first_A, len(first_A), second_B, *places_2N, len(ends_N), data
        launch(kernel("count/join_ranges", "join_ranges"), grid_for(len(data), TILE), THREADS, args)
    return data


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return ranges that cover both arrays in another order: many short ones, and two of a quarter of all bytes."""
    first, second = rng.integers(0, 256, (2, size // 2), np.uint8)
    ranges = []
    for start in 0, size // 2:
        cuts = start + np.sort(rng.integers(0, size // 2 + 1, 40) // 2)
        ranges += list(pairwise([start, *cuts.tolist(), start + size // 2]))
    rng.shuffle(ranges)
    return {"first_A": first, "second_B": second, "ranges": [tuple(map(int, r)) for r in ranges]}
