"""Find the n-grams whose contexts have n-grams that are not pruned, and few others."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.count_true import count_true
from ..common.integer_hash import mix64
from ..compile_cpu import njit
from ..dispatch import array_module, pick
from ..launch import grid_for, kernel, launch

VARIANTS = tuple({"SUFFIX": name} for name in check.INTEGER.values())
NO_CONTEXT = np.uint32(0xFFFFFFFF)  # of a suffix whose context has only pruned n-grams
BITS_PER_NGRAM = 16  # bits of the table for an n-gram that is not pruned


def may_have_kept(first_R: Any, suffix_R: Any, context_M: Any, marked_R: Any) -> Any:
    """Return which n-grams have contexts with n-grams that are not pruned.

    first_R    (R,) uint64, code of the first word of each n-gram
    suffix_R   (R,) uint32 or int64, the row of its suffix
    context_M  (M,) uint32, the context of each suffix, or `NO_CONTEXT`
    marked_R   (R,) bool, whether each n-gram is pruned

    Returns (R,) bool: True where some n-gram with the same first word and the same context of the suffix is not pruned,
    and for about one of 16 others at most; False where the suffix has `NO_CONTEXT`. Contexts of n-grams that are not
    pruned set bits of a table by their hashes (a Bloom filter with one hash; Bloom, 1970), which all contexts look up.
    """
    check.dtype(first_R, np.uint64)
    check.dtype(suffix_R, *check.INTEGER)
    check.dtype(context_M, np.uint32)
    check.dtype(marked_R, np.bool_)
    arrays = {"first_R": first_R, "suffix_R": suffix_R, "context_M": context_M, "marked_R": marked_R}
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    bits = 32 << (BITS_PER_NGRAM * (len(marked_R) - count_true(marked_R)) // 32).bit_length()
    table = array_module(marked_R).zeros(bits // 32, np.uint32)
    return run(first_R, suffix_R, context_M, marked_R, np.uint64(bits - 1), table)


@njit(nogil=True, cache=True)
def _place(first, context, mask):
    return np.int64(mix64((first << np.uint64(32)) ^ np.uint64(context)) & mask)


@njit(nogil=True, cache=True)
def _cpu(first_R, suffix_R, context_M, marked_R, mask, table):
    found_R = np.zeros(len(first_R), np.bool_)
    for r in range(len(first_R)):
        if not marked_R[r]:
            place = _place(first_R[r], context_M[suffix_R[r]], mask)
            table[place >> 5] |= np.uint32(1) << np.uint32(place & 31)
    for r in range(len(first_R)):
        context = context_M[suffix_R[r]]
        if context != NO_CONTEXT:
            place = _place(first_R[r], context, mask)
            found_R[r] = table[place >> 5] >> np.uint32(place & 31) & np.uint32(1)
    return found_R


def _cuda(first_R, suffix_R, context_M, marked_R, mask, table):
    import cupy

    R = len(first_R)
    found_R = cupy.empty(R, bool)
    if R:
        suffix = check.INTEGER[suffix_R.dtype]
        for name, more in (("set_contexts", ()), ("find_contexts", (found_R,))):
            fn = kernel("estimate/may_have_kept", name, SUFFIX=suffix)
            launch(fn, grid_for(R, 256), 256, (first_R, suffix_R, context_M, marked_R, R, mask, table, *more))
    return found_R


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return n-grams of which a tenth is not pruned; some suffixes have no context."""
    context_M = rng.integers(0, 1 + size // 3, 1 + size // 2).astype(np.uint32)
    suffix_R = np.sort(rng.integers(0, len(context_M), size)).astype(np.uint32 if size % 2 else np.int64)
    marked_R = rng.random(size) < 0.9
    lost_M = rng.random(len(context_M)) < 0.2
    lost_M[suffix_R[~marked_R]] = False  # a suffix of an n-gram that is not pruned is not pruned
    context_M[lost_M] = NO_CONTEXT
    return {
        "first_R": rng.integers(1, 20, size).astype(np.uint64),
        "suffix_R": suffix_R,
        "context_M": context_M,
        "marked_R": marked_R,
    }
