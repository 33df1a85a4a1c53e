"""Sample words from distributions without storing the distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import check
from ..common.draws import random_of, stream_of
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import multiply_high
from ..launch import kernel, launch
from .find_histories import Children
from .row_launch import WordValues
from .top_words import MAX_BLOCKS, check_children, histories_and_children

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())
THREADS, TILE = 256, 4096  # as in draw_by_tiles.cu
MAX_SAMPLED_WORDS = 1 << 26  # shared memory holds the weights of their tiles


def draw_by_tiles(
    children: Children,
    values: WordValues,
    numbers_H: Any,
    seed: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    left_out: int = -1,
) -> Any:
    """Return one word for each history, sampled from the smoothed row of the highest order, K + 1.

    children, values  as in `top_words`; values are probabilities, V up to 2^26
    numbers_H    (H,) int64: the number of each history among all histories of a run, for any division into calls
    seed         0 to 2^64 - 1; seed and number select the random numbers of a history
    temperature  words have probability proportional to p ** (1 / temperature); 0: the most probable word, ties by
                 lower id
    top_k        sample only from the top_k most probable words, ties by lower id; 0: from all
    top_p        sample only from the most probable words that together reach this share of the total weight; 1: from
                 all
    left_out     a word that is never sampled; -1: none

    Returns id_H (H,) int32; -1 if no word has a probability above 0.

    Weights: with q the greatest probability and s = 62 - (bits of V), a word weighs floor(p * (2^s / q)), in float64,
    or floor(2^s * (p / q) ** (1 / temperature)) if temperature is not 1. Integer weights make sums independent of
    their order. A word less than 2^-s times as probable as the first word is never sampled.

    Draws: draw d = 0, 1, ... is x = upper 64 bits of total * mix64(mix64(mix64(seed + g) + number + g) + d + g), with
    g = 0x9e3779b97f4a7c15 (counter-based; Steele et al., "Fast splittable pseudorandom number generators", 2014).
    `total` is the sum of the candidates' weights. The draw gives the first candidate, by id, at which the running sum
    exceeds x. It is accepted if fewer than top_k words rank above it and their weight is below top_p times that of all
    words. Otherwise only the words that rank above it remain candidates: exact rejection sampling with a pivot, as in
    FlashInfer (Ye et al., 2025).

    GPU and CPU sample the same words at temperature 1. Their pow may differ in its last bits, so at other
    temperatures a word may differ, with a probability below 10^-9.
    """
    check_children(children, values)
    first_HK, end_HK, backoff_HK = children
    word_G, value_G, value_V = values
    check.dtype(numbers_H, np.int64)
    if len(numbers_H) != len(first_HK):
        raise ValueError(f"got {len(first_HK)} histories and {len(numbers_H)} numbers; pass one of each per history")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed} but must be 0 to 2^64 - 1")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature} but must be 0 or more, and finite")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k} but must be 1 or more, or 0 for all words")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p} but must be above 0 and at most 1")
    if len(value_V) > MAX_SAMPLED_WORDS:
        raise ValueError(f"got {len(value_V)} words but can sample from {MAX_SAMPLED_WORDS}; prune the vocabulary")
    run = pick(
        cpu=_cpu, cuda=_cuda, first_HK=first_HK, end_HK=end_HK, backoff_HK=backoff_HK, word_G=word_G, value_G=value_G,
        value_V=value_V, numbers_H=numbers_H,
    )  # fmt: skip
    inverse = 1 / temperature if temperature else 0.0
    unit = 2.0 ** (62 - len(value_V).bit_length())
    return run(children, values, numbers_H, np.uint64(seed), inverse, unit, (top_k, float(top_p), left_out))


@njit(nogil=True, cache=True)
def _cpu(children, values, numbers_H, seed, inverse, unit, limits):
    (first_HK, end_HK, backoff_HK), (word_G, value_G, value_V) = children, values
    top_k, top_p, left_out = limits
    (H, K), V = first_HK.shape, len(value_V)
    id_H = np.empty(H, np.int32)
    row_V, weight_V = np.empty(V, np.float32), np.empty(V, np.int64)
    for h in range(H):
        for v in range(V):  # loops: Numba takes 2 s to compile a copy of a slice to a slice
            row_V[v] = value_V[v]
        for k in range(K):
            for v in range(V):
                row_V[v] *= backoff_HK[h, k]
            for i in range(np.int64(first_HK[h, k]), np.int64(end_HK[h, k])):
                row_V[word_G[i]] = value_G[i]
        if left_out >= 0:
            row_V[left_out] = 0
        best, greatest = -1, np.float32(0)
        for v in range(V):
            if row_V[v] > greatest:
                best, greatest = v, row_V[v]
        if best < 0 or inverse == 0:
            id_H[h] = best
            continue
        all_words = _weigh(row_V, np.float64(greatest), inverse, unit, weight_V)
        stream = stream_of(seed, numbers_H[h])
        total, pivot, draw = all_words, -1, np.uint64(0)
        while True:
            x = np.int64(multiply_high(random_of(stream, draw), np.uint64(total)))
            for v in range(V):
                if pivot < 0 or _above(row_V, v, pivot):
                    x -= weight_V[v]
                    if x < 0:
                        word = v
                        break
            if top_k == 0 and top_p == 1:
                break
            count, total = 0, 0
            for v in range(V):
                if _above(row_V, v, word):
                    count += 1
                    total += weight_V[v]
            if (top_k == 0 or count < top_k) and (top_p == 1 or total < top_p * all_words):
                break
            pivot = word
            draw += np.uint64(1)
        id_H[h] = word
    return id_H


@njit(nogil=True, cache=True)
def _weigh(row_V, greatest, inverse, unit, weight_V):
    """Fill weight_V with the words' weights and return their sum."""
    scale, total = unit / greatest, 0
    for v in range(len(row_V)):
        p = np.float64(row_V[v])
        weight_V[v] = np.int64(p * scale if inverse == 1 else unit * (p / greatest) ** inverse)
        total += weight_V[v]
    return total


@njit(nogil=True, cache=True, inline="always")
def _above(row_V, v, word):
    """Return whether v ranks above the word."""
    return row_V[v] > row_V[word] or (row_V[v] == row_V[word] and v < word)


def _cuda(children, values, numbers_H, seed, inverse, unit, limits):
    import cupy

    (H, K), V = children.first_HK.shape, len(values.value_V)
    id_H = cupy.empty(H, np.int32)
    if H:
        fn = kernel("distribution/draw_by_tiles", "draw_by_tiles", CHILD=check.INTEGER[children.first_HK.dtype])
        ranges = map(cupy.ascontiguousarray, children)
        args = *ranges, H, K, *values, V, numbers_H, seed, inverse, unit, *limits, id_H
        launch(fn, min(H, MAX_BLOCKS), THREADS, args, shared_bytes=8 * -(-V // TILE) + 20 * K)
    return id_H


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `histories_and_children`; by size, sample from all words or from the most probable ones."""
    made = histories_and_children(rng, size, True)
    H = len(made["children"].first_HK)
    return {
        **made,
        "numbers_H": rng.permutation(2 * H)[:H],
        "seed": size << 40,
        "temperature": (1.0, 0.0, 1.0, 0.7)[size % 4],
        "top_k": 10 if size % 3 == 1 else 0,
        "top_p": 0.9 if size % 5 > 2 else 1.0,
        "left_out": 1 if size >= 8 else -1,
    }
