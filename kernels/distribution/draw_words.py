"""Draw words from distributions along their backoffs, without making a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.draws import stream_of, uniform_of
from ..common.powers import MIN_LOG10, POWERS, raised
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import grid_for, kernel, launch
from .find_histories import Children
from .sum_children import sum_children
from .top_words import contains, histories_and_children

THREADS = 128  # threads of a block: with 33 float64 numbers each, they take 33 KiB of shared memory
MAX_TRIES = 1000
NO_WORD, NOT_DRAWN = -1, -2
CONSTANTS = POWERS | {"NO_WORD": NO_WORD, "NOT_DRAWN": NOT_DRAWN}
VARIANTS = tuple({"CHILD": child} | CONSTANTS for child in check.INTEGER.values())


class Siblings(NamedTuple):
    """The nodes of a trie, ready to draw children by their weights.

    word_G   (G,) uint32, rising among siblings
    sums_G   (G,) float64, from `sum_children`
    symbols  V: nodes below it are the single words
    """

    word_G: Any
    sums_G: Any
    symbols: int


def draw_words(
    children: Children,
    siblings: Siblings,
    numbers_H: Any,
    seed: int,
    inverse: float = 1.0,
    tries: int = MAX_TRIES,
) -> Any:
    """Return one word for each history, drawn from the smoothed row of the highest order, K + 1.

    children    from `find_histories`, backoffs in log10. Children of a history must be children of all shorter
                histories
    siblings    the siblings, whose sums are for the same `inverse`
    numbers_H   (H,) int64: the number of each history among all histories of a run, for any division into calls
    seed        0 to 2^64 - 1; seed and number select the random numbers of a history (common/draws.py)
    inverse     1 / temperature, up to 1 / 0.15: words are drawn in proportion to P ** inverse
    tries       greatest number of tries for one history

    Returns id_H (H,) int32; NO_WORD if all masses are 0, NOT_DRAWN if no try succeeded.

    A row is a mixture of levels: the children of the last K, K - 1, ..., 1 words, and all words. A level's mass is the
    sum of its weights times the backoffs of the longer histories, all raised to `inverse`. Try t = 0, 1, ... draws a
    level by its mass with random number 2 t, and a word of the level by its weight with number 2 t + 1. A word that is
    also a child of the next longer history has another probability, so it is rejected. The accepted words have exactly
    the distribution of the row (rejection sampling; von Neumann, 1951). The share of tries that succeed is the sum of
    the row over all masses: at least 1 / (K + 1) if a history gives its children at least their backoff probabilities,
    as in Kneser-Ney.
    Every device draws the same words.
    """
    check_siblings(children, siblings, numbers_H)
    first_HK, end_HK, backoff_HK = children
    word_G, sums_G, _ = siblings
    run = pick(
        cpu=_cpu, cuda=_cuda, first_HK=first_HK, end_HK=end_HK, backoff_HK=backoff_HK, word_G=word_G, sums_G=sums_G,
        numbers_H=numbers_H,
    )  # fmt: skip
    return run(children, siblings, numbers_H, np.uint64(seed), float(inverse), tries)


def check_siblings(children: Children, siblings: Siblings, numbers_H: Any) -> None:
    """Raise TypeError or ValueError unless dtypes and lengths of children, siblings and numbers fit together."""
    first_HK, end_HK, backoff_HK = children
    word_G, sums_G, _ = siblings
    check.dtype(first_HK, np.uint32, np.int64)
    check.dtype(end_HK, first_HK.dtype)
    check.dtype(backoff_HK, np.float32)
    check.dtype(word_G, np.uint32)
    check.dtype(sums_G, np.float64)
    check.dtype(numbers_H, np.int64)
    if len(numbers_H) != len(first_HK):
        raise ValueError(f"got {len(first_HK)} histories and {len(numbers_H)} numbers; pass one of each per history")
    if len(sums_G) != len(word_G):
        raise ValueError(f"got {len(word_G)} words and {len(sums_G)} sums; pass one of each per node")


@njit(nogil=True, cache=True)
def weigh_levels(first_K, end_K, backoff_K, sums_G, symbols, inverse, mass_L):
    """Fill mass_L (K + 1,): the mass of level m and of all longer histories. Return the sum of all masses."""
    K, total, log10 = len(first_K), 0.0, 0.0
    for m in range(K, -1, -1):
        log10 = backed_off(backoff_K, log10, m)
        first, end = range_of(first_K, end_K, symbols, m)
        if end > first:
            total += sums_G[end - 1] * factor_of(log10, inverse)
        mass_L[m] = total
    return total


@njit(nogil=True, cache=True)
def range_of(first_K, end_K, symbols, m):
    """Return the nodes of a level: the first, and the one after the last."""
    return (np.int64(first_K[m - 1]), np.int64(end_K[m - 1])) if m else (np.int64(0), np.int64(symbols))


@njit(nogil=True, cache=True)
def backed_off(backoff_K, log10, m):
    """Return the log10 of the backoffs of level m from that of level m + 1."""
    return log10 + np.float64(backoff_K[m]) if m < len(backoff_K) else log10


@njit(nogil=True, cache=True)
def factor_of(log10, inverse):
    """Return the factor of the weights of a level from the log10 of its backoffs."""
    return raised(log10, inverse) if log10 > MIN_LOG10 else 0.0


@njit(nogil=True, cache=True)
def try_to_draw(first_K, end_K, word_G, sums_G, symbols, mass_L, stream, t):
    """Return (node, level, word) of try t; node -1: a longer history also has the word. Some mass must be above 0."""
    m = len(first_K)
    x = uniform_of(stream, 2 * t) * mass_L[0]
    while m > 0 and mass_L[m] <= x:
        m -= 1
    low, end = range_of(first_K, end_K, symbols, m)
    high = end - 1
    y = uniform_of(stream, 2 * t + 1) * sums_G[high]
    while low < high:
        middle = (low + high) // 2
        if sums_G[middle] > y:
            high = middle
        else:
            low = middle + 1
    word = np.int64(word_G[low])
    if m < len(first_K) and contains(word_G, np.int64(first_K[m]), np.int64(end_K[m]), word):
        low = np.int64(-1)
    return low, m, word


@njit(nogil=True, cache=True)
def _cpu(children, siblings, numbers_H, seed, inverse, tries):
    (first_HK, end_HK, backoff_HK), (word_G, sums_G, symbols) = children, siblings
    H, K = first_HK.shape
    id_H, mass_L = np.empty(H, np.int32), np.empty(K + 1)
    for h in range(H):
        first_K, end_K = first_HK[h], end_HK[h]
        total = weigh_levels(first_K, end_K, backoff_HK[h], sums_G, symbols, inverse, mass_L)
        id_H[h] = NOT_DRAWN if total > 0 else NO_WORD
        stream, t = stream_of(seed, numbers_H[h]), 0
        while id_H[h] == NOT_DRAWN and t < tries:
            node, _, word = try_to_draw(first_K, end_K, word_G, sums_G, symbols, mass_L, stream, t)
            if node >= 0:
                id_H[h] = word
            t += 1
    return id_H


def _cuda(children, siblings, numbers_H, seed, inverse, tries):
    import cupy

    H, K = children.first_HK.shape
    id_H = cupy.empty(H, np.int32)
    if H:
        fn = kernel("distribution/draw_words", "draw_words", CHILD=check.INTEGER[children.first_HK.dtype], **CONSTANTS)
        ranges = map(cupy.ascontiguousarray, children)
        args = *ranges, H, K, *siblings, numbers_H, seed, inverse, tries, id_H
        launch(fn, grid_for(H, THREADS), THREADS, args, shared_bytes=8 * THREADS * (K + 1))
    return id_H


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `nodes_and_histories`; half of the sizes with one try, which may fail."""
    made, _ = nodes_and_histories(rng, size)
    return {**made, "tries": MAX_TRIES if size % 2 else 1}


def nodes_and_histories(rng: np.random.Generator, size: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return (arguments of `draw_words`, prob_G), from `histories_and_children`; single words come first."""
    made = histories_and_children(rng, size, False)
    (first_HK, end_HK, backoff_HK), (word_G, value_G, value_V) = made["children"], made["values"]
    V, H = len(value_V), len(first_HK)
    inverse = (1.0, 0.5, 2.0, 1 / 0.7)[size % 4]
    word_G, prob_G = np.concatenate([np.arange(V, dtype=np.uint32), word_G]), np.concatenate([value_V, value_G])
    # Siblings begin where a range does.
    starts = np.unique(np.concatenate([first_HK[end_HK > first_HK].astype(np.int64) + V, [V, len(word_G)]]))
    sums_G = sum_children(prob_G, word_G, starts, inverse, 1 if size >= 8 else -1)
    made = {
        "children": Children(first_HK + first_HK.dtype.type(V), end_HK + end_HK.dtype.type(V), backoff_HK),
        "siblings": Siblings(word_G, sums_G, V),
        "numbers_H": rng.permutation(2 * H)[:H],
        "seed": size << 40,
        "inverse": inverse,
    }
    return made, prob_G
