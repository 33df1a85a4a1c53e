"""Compute the probability of each n-gram by interpolating its discounted count with the lower order."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

TYPES = check.INTEGER.values()
VARIANTS = tuple({"COUNT": count, "SUFFIX": suffix} for count in TYPES for suffix in TYPES)


def interpolate(
    count_R: Any, context_R: Any, suffix_R: Any, total_C: Any, gamma_C: Any, lower_L: Any, discounts: tuple[float, ...]
) -> Any:
    """Return P(last word | other words) of n-grams of one order.

    count_R    (R,) uint32 or int64, adjusted counts, 1 or more
    context_R  (R,) uint32, the context of each n-gram
    suffix_R   (R,) uint32 or int64, the row of the suffix of each n-gram in the lower order
    total_C    (C,) float32, the sum of adjusted counts of each context, rounded
    gamma_C    (C,) float32, the probability mass that each context leaves to the lower order
    lower_L    (L,) float32, probabilities of the lower order
    discounts  discounts of counts 1, 2, and 3 or more

    Returns prob_R (R,) float32: (count - discount) / total + gamma * lower (Chen and Goodman, 1998, modified
    Kneser-Ney). Each operation is rounded to float32, as in lmplz.
    """
    check.dtype(count_R, *check.INTEGER)
    check.dtype(context_R, np.uint32)
    check.dtype(suffix_R, *check.INTEGER)
    check.dtype(total_C, np.float32)
    check.dtype(gamma_C, np.float32)
    check.dtype(lower_L, np.float32)
    arrays = {
        "count_R": count_R, "context_R": context_R, "suffix_R": suffix_R, "total_C": total_C, "gamma_C": gamma_C,
        "lower_L": lower_L,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(*arrays.values(), tuple(map(np.float32, discounts)))


@njit(nogil=True, cache=True)
def _cpu(count_R, context_R, suffix_R, total_C, gamma_C, lower_L, discounts):
    d1, d2, d3 = discounts
    prob_R = np.empty(len(count_R), np.float32)
    for r in range(len(count_R)):
        count, c = count_R[r], context_R[r]
        discount = d1 if count == 1 else d2 if count == 2 else d3
        share = (np.float32(count) - discount) / total_C[c]
        prob_R[r] = share + gamma_C[c] * lower_L[suffix_R[r]]
    return prob_R


def _cuda(count_R, context_R, suffix_R, total_C, gamma_C, lower_L, discounts):
    import cupy

    R = len(count_R)
    prob_R = cupy.empty(R, np.float32)
    if R:
        arrays = count_R, context_R, suffix_R, total_C, gamma_C, lower_L
        types = {"COUNT": check.INTEGER[count_R.dtype], "SUFFIX": check.INTEGER[suffix_R.dtype]}
        fn = kernel("estimate/interpolate", "interpolate", **types)
        launch(fn, grid_for(R, 256), 256, (*arrays, *discounts, R, prob_R))
    return prob_R


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    C, L = 1 + size // 3, 1 + size // 2
    count, most = (np.uint32, (1 << 32) - 1) if size % 3 else (np.int64, 1 << 40)
    return {
        "count_R": rng.zipf(1.5, size).clip(1, most).astype(count),
        "context_R": np.sort(rng.integers(0, C, size)).astype(np.uint32),
        "suffix_R": rng.integers(0, L, size).astype(np.uint32 if size % 2 else np.int64),
        "total_C": rng.zipf(1.3, C).clip(1, 1 << 50).astype(np.float32),
        "gamma_C": rng.random(C, np.float32),
        "lower_L": rng.random(L, np.float32),
        "discounts": tuple(rng.random(3) * [1, 2, 3]),
    }
