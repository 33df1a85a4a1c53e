"""Sum the counts of the n-grams of each context."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"COUNT": name} for name in check.INTEGER.values())
DISCOUNTS = 3  # discounts: of counts 1, 2, and 3 or more


def sum_contexts(context_R: Any, count_R: Any, marked_R: Any, contexts: int, first: int = 0) -> tuple[Any, Any, Any]:
    """Return the total count, the counts of counts and the pruned count of each context.

    context_R  (R,) uint32, rising: the context of each n-gram, from `first` to `first` + `contexts` - 1
    count_R    (R,) uint32 or int64, adjusted count of each n-gram
    marked_R   (R,) bool, whether each n-gram is pruned; or None

    Returns total_C (contexts,) int64, the sum of all counts; kinds_C3 (contexts, 3) uint32, the number of n-grams that
    are not pruned and have count 1, 2, and 3 or more (count 0 is in no column); pruned_C (contexts,) int64, the sum of
    pruned counts, or None if marked_R is None.
    """
    check.dtype(context_R, np.uint32)
    check.dtype(count_R, *check.INTEGER)
    arrays = {"context_R": context_R, "count_R": count_R}
    if marked_R is not None:
        check.dtype(marked_R, np.bool_)
        arrays["marked_R"] = marked_R
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(context_R, count_R, marked_R, contexts, first)


def _cpu(context_R, count_R, marked_R, contexts, first):
    is_marked = marked_R is not None
    total_C, pruned_C = np.zeros(contexts, np.int64), np.zeros(contexts if is_marked else 0, np.int64)
    kinds_C3 = np.zeros((contexts, DISCOUNTS), np.uint32)
    marked_R = marked_R if is_marked else np.empty(0, np.bool_)
    _add(context_R, count_R, marked_R, is_marked, first, total_C, kinds_C3, pruned_C)
    return total_C, kinds_C3, pruned_C if is_marked else None


@njit(nogil=True, cache=True)
def _add(context_R, count_R, marked_R, is_marked, first, total_C, kinds_C3, pruned_C):
    for r in range(len(context_R)):
        c, count = np.int64(context_R[r]) - first, count_R[r]
        total_C[c] += count
        if is_marked and marked_R[r]:
            pruned_C[c] += count
        elif count:
            kinds_C3[c, min(count, DISCOUNTS) - 1] += 1


def _cuda(context_R, count_R, marked_R, contexts, first):
    import cupy

    R = len(context_R)
    total_C, pruned_C = cupy.zeros(contexts, np.int64), None if marked_R is None else cupy.zeros(contexts, np.int64)
    kinds_C3 = cupy.zeros((contexts, DISCOUNTS), np.uint32)
    if R:
        fn = kernel("estimate/sum_contexts", "sum_contexts", COUNT=check.INTEGER[count_R.dtype])
        marked = (0, 0) if marked_R is None else (marked_R, pruned_C)
        args = (context_R, count_R, marked[0], R, np.uint32(first), total_C, kinds_C3, marked[1])
        launch(fn, grid_for(R, 256), 256, args)
    return total_C, kinds_C3, pruned_C


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return many contexts of few n-grams, and one with half of all n-grams."""
    contexts, most, first = 1 + size // 4, 1 << (40 if size % 3 else 31), size % 3 // 2 * 1000
    counts = rng.zipf(1.5, size).clip(1, most) - (rng.random(size) < 0.1)
    context_R = rng.integers(0, contexts, size)
    context_R[: size // 2] = contexts // 3
    return {
        "context_R": np.sort(first + context_R).astype(np.uint32),
        "count_R": counts if size % 3 else counts.astype(np.uint32),
        "marked_R": rng.random(size) < 0.3 if size % 2 else None,
        "contexts": contexts,
        "first": first,
    }
