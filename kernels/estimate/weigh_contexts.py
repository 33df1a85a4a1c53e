"""Compute the probability mass that each context leaves to the lower order."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .sum_contexts import DISCOUNTS

VARIANTS: tuple[dict[str, Any], ...] = ({},)


def weigh_contexts(
    total_C: Any, kinds_C3: Any, pruned_C: Any, discounts: tuple[float, ...], out: tuple[Any, Any] | None = None
) -> tuple[Any, Any]:
    """Return the total count of each context, and the share of its mass that discounts and pruned n-grams leave to the
    lower order.

    total_C, kinds_C3, pruned_C  from `sum_contexts`; pruned_C may be None
    discounts                    discounts of counts 1, 2, and 3 or more
    out                          two (C,) float32 arrays for the results

    Returns (total_C rounded, gamma_C), (C,) float32. gamma_C is (D1 n1 + D2 n2 + D3+ n3+ + pruned) / total (Chen and
    Goodman, 1998), 1 for a total of 0. Each operation is rounded to float32, and sums are in this order, as in lmplz.
    """
    check.dtype(total_C, np.int64)
    check.dtype(kinds_C3, np.uint32)
    arrays = {"total_C": total_C, "kinds_C3": kinds_C3}
    if pruned_C is not None:
        check.dtype(pruned_C, np.int64)
        arrays["pruned_C"] = pruned_C
    if out is not None:
        arrays |= {"rounded_C": out[0], "gamma_C": out[1]}
        for array in out:
            check.dtype(array, np.float32)
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(total_C, kinds_C3, pruned_C, tuple(map(np.float32, discounts)), out)


def _cpu(total_C, kinds_C3, pruned_C, discounts, out):
    rounded_C, gamma_C = out or np.empty((2, len(total_C)), np.float32)
    is_pruned = pruned_C is not None
    _weigh(total_C, kinds_C3, pruned_C if is_pruned else total_C, is_pruned, discounts, rounded_C, gamma_C)
    return rounded_C, gamma_C


@njit(nogil=True, cache=True)
def _weigh(total_C, kinds_C3, pruned_C, is_pruned, discounts, rounded_C, gamma_C):
    for c in range(len(gamma_C)):
        rounded_C[c] = total_C[c]
        left = np.float32(0)
        for kind in range(DISCOUNTS):
            left += discounts[kind] * np.float32(kinds_C3[c, kind])
        if is_pruned:
            left += np.float32(pruned_C[c])
        gamma_C[c] = left / np.float32(total_C[c]) if total_C[c] else np.float32(1)


def _cuda(total_C, kinds_C3, pruned_C, discounts, out):
    import cupy

    C = len(total_C)
    rounded_C, gamma_C = out or cupy.empty((2, C), np.float32)
    check.contiguous(rounded_C=rounded_C, gamma_C=gamma_C)
    if C:
        kinds_C3 = cupy.ascontiguousarray(kinds_C3)
        args = (total_C, kinds_C3, 0 if pruned_C is None else pruned_C, *discounts, C, rounded_C, gamma_C)
        launch(kernel("estimate/weigh_contexts", "weigh_contexts"), grid_for(C, 256), 256, args)
    return rounded_C, gamma_C


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    total_C = rng.zipf(1.3, size).clip(1, 1 << 50) - (rng.random(size) < 0.2)
    return {
        "total_C": total_C,
        "kinds_C3": (rng.zipf(1.5, (size, DISCOUNTS)).clip(1, 1 << 31) - 1).astype(np.uint32),
        "pruned_C": rng.zipf(1.3, size).clip(1, 1 << 50) - 1 if size % 2 else None,
        "discounts": tuple(rng.random(3) * [1, 2, 3]),
    }
