"""Compute the probabilities of n-grams from plain counts, and the backoff of each context."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.powers import LOG10_E, POWERS, power10
from ..compile_cpu import njit
from ..decode.exponential_sums import log_of
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

TYPES = check.INTEGER.values()
VARIANTS = tuple({"COUNT": count, "SUFFIX": suffix, **POWERS} for count in TYPES for suffix in TYPES)
THREADS = 256  # 8 warps
MIN_MASS = 3e-6  # SRILM takes smaller masses for rounding errors of 0
NO_MASS = np.float32(math.log10(np.finfo(np.float32).tiny))  # log10 of a backoff of 0: no reader accepts -inf


class Rule(NamedTuple):
    """The rule that turns the counts c of the words after a context into probabilities; T is their sum, U their number.

    P(w | context) = mass(c) / Z + gamma * P(w | shorter context), with Z = T + per_word * U + added and
    gamma = lower * U / Z.

    masses    mass(c) of counts 1 to len(masses)
    shift     mass(c) = c + shift for greater counts
    per_word  Witten-Bell: 1
    added     additive smoothing: delta times the number of words
    lower     0: back off; otherwise interpolate
    reserves  whether a context must leave mass to words that do not follow it
    words     words that can follow a context
    """

    masses: tuple[float, ...] = ()
    shift: float = 0.0
    per_word: float = 0.0
    added: float = 0.0
    lower: float = 0.0
    reserves: bool = True
    words: int = 0


def smooth_contexts(
    count_R: Any, marked_R: Any, suffix_R: Any, lower_L: Any, first_C1: Any, rule: Rule
) -> tuple[Any, Any]:
    """Return log10 P(last word | other words) of n-grams of one order, and of the backoff weights of their contexts.

    count_R   (R,) uint32 or int64, counts, 1 or more
    marked_R  (R,) bool, whether an n-gram is pruned; or None
    suffix_R  (R,) uint32 or int64, the row of the suffix of each n-gram in the lower order
    lower_L   (L,) float32, log10 probabilities of the lower order
    first_C1  (C + 1,) int64: the n-grams of context c are first_C1[c] to first_C1[c + 1] - 1

    Returns prob_R (R,) float32, -inf for pruned n-grams, and backoff_C (C,) float32: the mass that the n-grams of a
    context leave, divided by the mass that the lower order gives to other words, both from the float32 values that a
    model stores. Masses below 3e-6 are 0.

    If a context leaves no mass although some words do not follow it, it backs off instead of interpolating; if this
    does not help, Z grows by the least whole number that leaves mass. If the lower order gives no mass to other words,
    the n-grams share the whole mass, and the weight is 1. These are SRILM's rules (ngram-count, Ngram::estimate2 and
    Ngram::computeBOW). All sums are in float64 and in the order of the n-grams, so every device gives the same bits.
    """
    check.dtype(count_R, *check.INTEGER)
    check.dtype(suffix_R, *check.INTEGER)
    check.dtype(lower_L, np.float32)
    check.dtype(first_C1, np.int64)
    arrays = {"count_R": count_R, "suffix_R": suffix_R, "lower_L": lower_L, "first_C1": first_C1}
    if marked_R is not None:
        check.dtype(marked_R, np.bool_)
    run = pick(cpu=_cpu, cuda=_cuda, marked_R=marked_R, **arrays)
    return run(marked_R, *arrays.values(), _typed(rule))


def weigh(mass: float, total: int, size: int, share: float, rule: Rule) -> tuple[float, float]:
    """Return (Z, gamma) of one context: see `Rule`.

    mass   the sum of the masses of its n-grams that are not pruned
    total  T
    size   U
    share  the mass that the lower order gives to the words of these n-grams
    """
    return _weights(mass, total, size, share, _typed(rule))


def _typed(rule: Rule) -> Rule:
    """Return a rule whose fields have the same types as those of all rules: Numba compiles for each combination."""
    numbers = {name: float(getattr(rule, name)) for name in ("shift", "per_word", "added", "lower")}
    masses_K: Any = np.array(rule.masses, np.float64)
    return rule._replace(masses=masses_K, reserves=bool(rule.reserves), words=int(rule.words), **numbers)


@njit(nogil=True, cache=True)
def _weights(mass, total, size, share, rule):
    Z = total + rule.per_word * size + rule.added
    gamma = rule.lower * size / Z
    if rule.reserves and size < rule.words:
        if mass / Z + gamma * share > 1 - MIN_MASS:
            gamma = 0.0
        if gamma == 0 and mass / Z > 1 - MIN_MASS:
            Z += max(1.0, math.ceil(mass / (1 - MIN_MASS) - Z))
    return Z, gamma


def _cpu(marked_R, count_R, suffix_R, lower_L, first_C1, rule):
    prob_R, backoff_C = np.empty(len(count_R), np.float32), np.empty(len(first_C1) - 1, np.float32)
    marked_R = np.empty(0, np.bool_) if marked_R is None else marked_R
    _smooth(marked_R, count_R, suffix_R, lower_L, first_C1, rule, prob_R, backoff_C)
    return prob_R, backoff_C


@njit(nogil=True, cache=True)
def _mass(count, masses_K, shift):
    return masses_K[count - 1] if count <= len(masses_K) else count + shift


@njit(nogil=True, cache=True)
def _smooth(marked_R, count_R, suffix_R, lower_L, first_C1, rule, prob_R, backoff_C):
    masses_K, shift, is_marked = rule.masses, rule.shift, len(marked_R) > 0
    for c in range(len(backoff_C)):
        begin, end = first_C1[c], first_C1[c + 1]
        total, mass, share = np.int64(0), 0.0, 0.0
        for r in range(begin, end):
            count = np.int64(count_R[r])
            total += count
            if not (is_marked and marked_R[r]):
                mass += _mass(count, masses_K, shift)
                share += power10(np.float64(lower_L[suffix_R[r]]))
        if begin == end:
            backoff_C[c] = 0
            continue
        Z, gamma = _weights(mass, total, end - begin, share, rule)
        scale, stored = 1.0, 0.0
        if 1 - share < MIN_MASS and mass > 0:
            scale = 1 / (mass / Z + gamma * share)
        for r in range(begin, end):
            if is_marked and marked_R[r]:
                prob_R[r] = -np.inf
            else:
                part = _mass(np.int64(count_R[r]), masses_K, shift) / Z
                prob = (part + gamma * power10(np.float64(lower_L[suffix_R[r]]))) * scale
                prob_R[r] = min(log_of(prob, 0) * LOG10_E, 0.0)
                stored += power10(np.float64(prob_R[r]))
        backoff_C[c] = 0
        if 1 - share >= MIN_MASS:
            left = 1 - stored
            backoff_C[c] = log_of(left / (1 - share), 0) * LOG10_E if left >= MIN_MASS else NO_MASS


def _cuda(marked_R, count_R, suffix_R, lower_L, first_C1, rule):
    import cupy

    C = len(first_C1) - 1
    prob_R, backoff_C = cupy.empty(len(count_R), np.float32), cupy.empty(C, np.float32)
    if C:
        types = {"COUNT": check.INTEGER[count_R.dtype], "SUFFIX": check.INTEGER[suffix_R.dtype], **POWERS}
        fn = kernel("estimate/smooth_contexts", "smooth_contexts", **types)
        arrays = 0 if marked_R is None else marked_R, count_R, suffix_R, lower_L, first_C1, C, cupy.asarray(rule.masses)
        numbers = np.int32(len(rule.masses)), *map(np.float64, rule[1:5]), np.int32(rule.reserves), rule.words
        launch(fn, grid_for(32 * C, THREADS), THREADS, (*arrays, *numbers, prob_R, backoff_C))
    return prob_R, backoff_C


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return contexts of few n-grams, some of none, and one with half of all n-grams; all smoothings in turn."""
    C, L = 1 + size // 3, 1 + size // 2
    sizes_C = rng.multinomial(size - size // 2, np.full(C, 1 / C))
    sizes_C[C // 2] += size // 2
    count, most = (np.uint32, (1 << 32) - 1) if size % 3 else (np.int64, 1 << 40)
    rules = [
        Rule(per_word=1.0),
        Rule(per_word=1.0, lower=1.0),
        Rule((0.3,), -0.7, lower=0.7),
        Rule((0.4, 1.1, 2.9)),
        Rule(shift=0.5, added=0.5 * size),
        Rule(reserves=False),
    ]
    return {
        "count_R": rng.zipf(1.5, size).clip(1, most).astype(count),
        "marked_R": rng.random(size) < 0.3 if size % 2 else None,
        "suffix_R": rng.integers(0, L, size).astype(np.uint32 if size % 2 else np.int64),
        "lower_L": np.log10(rng.random(L) / (1 + size // 2)).astype(np.float32),
        "first_C1": np.concatenate([[0], np.cumsum(sizes_C)]),
        "rule": rules[size % len(rules)]._replace(words=size // 5 + 2),
    }
