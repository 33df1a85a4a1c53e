"""Draw one of the most probable words of each history."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..common.draws import stream_of, uniform_of
from ..common.powers import MIN_LOG10, POWERS, raised
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch

VARIANTS = (POWERS,)


def draw_best(id_HK: Any, value_HK: Any, numbers_H: Any, seed: int, inverse: float = 1.0) -> Any:
    """Return one of the K words of each history, drawn in proportion to P ** inverse.

    id_HK      (H, K) int32, K at least 1; words of a history need not differ
    value_HK   (H, K) float32, log10 P, falling; a word weighs 0 if P is 0 in float32, or P ** inverse is below 10^-300
               times that of the first word
    numbers_H  (H,) int64, and seed: as in `draw_words`; random number 0 of each history selects the word
    inverse    1 / temperature, finite

    Returns id_H (H,) int32; -1 if no word of a history has a weight. Sums are float64, first word first, so every
    device draws the same words.
    """
    check.dtype(id_HK, np.int32)
    check.dtype(value_HK, np.float32)
    check.dtype(numbers_H, np.int64)
    if id_HK.shape != value_HK.shape or len(id_HK) != len(numbers_H) or not id_HK.shape[1]:
        raise ValueError(
            f"got words of shape {id_HK.shape}, values of {value_HK.shape} and {len(numbers_H)} numbers; pass one word "
            "or more per history, a value of each, and a number per history"
        )
    run = pick(cpu=_cpu, cuda=_cuda, id_HK=id_HK, value_HK=value_HK, numbers_H=numbers_H)
    return run(id_HK, value_HK, numbers_H, np.uint64(seed), float(inverse))


@njit(nogil=True, cache=True)
def _weight(value, best, inverse):
    log10 = np.float64(value)
    return raised(log10 - np.float64(best), inverse) if log10 > MIN_LOG10 else 0.0


@njit(nogil=True, cache=True)
def _cpu(id_HK, value_HK, numbers_H, seed, inverse):
    H, K = id_HK.shape
    id_H = np.empty(H, np.int32)
    for h in range(H):
        total, best = 0.0, value_HK[h, 0]
        for k in range(K):
            total += _weight(value_HK[h, k], best, inverse)
        word, upto = -1, 0.0
        x = uniform_of(stream_of(seed, numbers_H[h]), 0) * total
        for k in range(K):
            upto += _weight(value_HK[h, k], best, inverse)
            if upto > x:
                word = id_HK[h, k]
                break
        id_H[h] = word
    return id_H


def _cuda(id_HK, value_HK, numbers_H, seed, inverse):
    import cupy

    H, K = id_HK.shape
    id_H = cupy.empty(H, np.int32)
    if H:
        arrays = map(cupy.ascontiguousarray, (id_HK, value_HK))
        fn = kernel("distribution/draw_best", "draw_best", **POWERS)
        launch(fn, grid_for(H, 128), 128, (*arrays, H, K, numbers_H, seed, inverse, id_H))
    return id_H


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return histories of up to 100 words; the last ones of some have probability 0."""
    K = 1 + size % 100
    H = -(-size // K)
    value_HK = -np.sort(rng.random((H, K)) * rng.choice([1, 8, 60], (H, 1)))
    return {
        "id_HK": rng.integers(0, 1000, (H, K)).astype(np.int32),
        "value_HK": value_HK.astype(np.float32),
        "numbers_H": rng.permutation(2 * H)[:H],
        "seed": size << 40,
        "inverse": (1.0, 0.5, 2.0, 1e3)[size % 4],
    }
