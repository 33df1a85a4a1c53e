"""Draw words from the most probable words of distributions, without making a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..common.draws import stream_of
from ..common.powers import MIN_LOG10, raised
from ..common.sorted_search import first_from
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import LANES, grid_for, kernel, launch
from .draw_words import (
    CONSTANTS,
    MAX_TRIES,
    NO_WORD,
    NOT_DRAWN,
    THREADS,
    Siblings,
    backed_off,
    check_siblings,
    factor_of,
    nodes_and_histories,
    range_of,
    try_to_draw,
    weigh_levels,
)
from .find_histories import Children
from .sum_children import sum_children

VARIANTS = tuple({"CHILD": child} | CONSTANTS for child in check.INTEGER.values())


class Ranking(NamedTuple):
    """The probabilities of nodes, and the single words by rank.

    prob_G         (G,) float32, log10
    ranked_V       (V,) uint32: the single words by falling probability, ties by id
    ranked_sums_V  (V,) float64: running sums of the weights of these words, as in `sum_children`
    """

    prob_G: Any
    ranked_V: Any
    ranked_sums_V: Any


class Limits(NamedTuple):
    """The words that may be drawn.

    top_k     the top_k most probable words only, ties by lower id; 0: all
    top_p     the most probable words only, as few as reach this share of the weight of all words; 1: all
    left_out  a word with weight 0, as in `sum_children`, and without a rank; -1: no word
    """

    top_k: int = 0
    top_p: float = 1.0
    left_out: int = -1


ALL = Limits()


def draw_ranked(
    children: Children,
    siblings: Siblings,
    ranking: Ranking,
    numbers_H: Any,
    seed: int,
    inverse: float = 1.0,
    limits: Limits = ALL,
    tries: int = MAX_TRIES,
) -> Any:
    """Return one word for each history, drawn from the most probable words of its smoothed row.

    children, siblings, numbers_H, seed, inverse, tries  as in `draw_words`
    ranking  the ranking, whose sums are for the same `inverse`

    Returns id_H (H,) int32, as `draw_words`.

    A word is drawn as in `draw_words`. It is accepted if fewer than top_k words rank above it, and if it ranks first or
    these words weigh less than top_p times all words (rejection sampling). A word that ranks below a rejected one is
    rejected at once. Words rank by log10 probability in float64, the sum from the longest history on. The words above
    one are counted and weighed by their single probabilities, and corrected for the children of each history. Sums of
    float64 are in a fixed order, so every device draws the same words.
    """
    check_siblings(children, siblings, numbers_H)
    first_HK, end_HK, backoff_HK = children
    word_G, sums_G, symbols = siblings
    prob_G, ranked_V, ranked_sums_V = ranking
    check.dtype(prob_G, np.float32)
    check.dtype(ranked_V, np.uint32)
    check.dtype(ranked_sums_V, np.float64)
    if len(prob_G) != len(word_G):
        raise ValueError(f"got {len(word_G)} words and {len(prob_G)} probabilities; pass one of each per node")
    if not len(ranked_V) == len(ranked_sums_V) == symbols:
        raise ValueError(
            f"got {len(ranked_V)} ranks and {len(ranked_sums_V)} sums for {symbols} words; pass one of each per word"
        )
    run = pick(
        cpu=_cpu, cuda=_cuda, first_HK=first_HK, end_HK=end_HK, backoff_HK=backoff_HK, word_G=word_G, prob_G=prob_G,
        sums_G=sums_G, ranked_V=ranked_V, ranked_sums_V=ranked_sums_V, numbers_H=numbers_H,
    )  # fmt: skip
    limits = limits._replace(top_p=float(limits.top_p))
    return run(children, siblings, ranking, numbers_H, np.uint64(seed), float(inverse), limits, tries)


@njit(nogil=True, cache=True)
def _cpu(children, siblings, ranking, numbers_H, seed, inverse, limits, tries):
    (first_HK, end_HK, backoff_HK), (word_G, sums_G, symbols) = children, siblings
    top_k, top_p, left_out = limits
    H, K = first_HK.shape
    id_H, mass_L = np.empty(H, np.int32), np.empty(K + 1)
    for h in range(H):
        first_K, end_K, backoff_K = first_HK[h], end_HK[h], backoff_HK[h]
        total = weigh_levels(first_K, end_K, backoff_K, sums_G, symbols, inverse, mass_L)
        id_H[h] = NOT_DRAWN if total > 0 else NO_WORD
        stream, t = stream_of(seed, numbers_H[h]), 0
        bound, bound_word, all_words = -np.inf, 0, -1.0
        while id_H[h] == NOT_DRAWN and t < tries:
            node, level, word = try_to_draw(first_K, end_K, word_G, sums_G, symbols, mass_L, stream, t)
            t += 1
            if node < 0:
                continue
            log10 = 0.0
            for m in range(K, level - 1, -1):
                log10 = backed_off(backoff_K, log10, m)
            value = np.float64(ranking.prob_G[node]) + log10
            if not _is_above(value, word, bound, bound_word):
                continue
            levels = first_K, end_K, backoff_K
            count, mass, covered = _above(levels, siblings, ranking, inverse, left_out, value, word, all_words < 0)
            if all_words < 0:
                all_words = total - covered
            if (top_k == 0 or count < top_k) and (count == 0 or mass < top_p * all_words):
                id_H[h] = word
            bound, bound_word = value, word
    return id_H


@njit(nogil=True, cache=True)
def _is_above(value, word, other, other_word):
    return value > other or (value == other and word < other_word)


@njit(nogil=True, cache=True)
def _weight(prob, inverse):
    log10 = np.float64(prob)
    return raised(log10, inverse) if log10 > MIN_LOG10 else 0.0


@njit(nogil=True, cache=True)
def _above(levels, siblings, ranking, inverse, left_out, value, word, wants_covered):
    """Return how many words rank above a word, and their weight; and the weight that longer histories cover."""
    (first_K, end_K, backoff_K), (word_G, _, symbols) = levels, siblings
    prob_G, ranked_V, ranked_sums_V = ranking
    log10, count = 0.0, 0
    sum_P, covered_P = np.zeros(LANES), np.zeros(LANES)
    for m in range(len(first_K), 0, -1):
        lower_log10 = backed_off(backoff_K, log10, m - 1)
        factor, lower_factor = factor_of(log10, inverse), factor_of(lower_log10, inverse)
        first, end = range_of(first_K, end_K, symbols, m)
        lower_first, lower_end = range_of(first_K, end_K, symbols, m - 1)
        for i in range(first, end):
            child, lane = np.int64(word_G[i]), (i - first) % LANES
            if child == left_out:
                continue
            at = child if m == 1 else first_from(word_G, lower_first, lower_end, child)
            if _is_above(np.float64(prob_G[i]) + log10, child, value, word):
                sum_P[lane] += _weight(prob_G[i], inverse) * factor
                count += 1
            is_above = _is_above(np.float64(prob_G[at]) + lower_log10, child, value, word)
            if is_above or wants_covered:
                lower = _weight(prob_G[at], inverse) * lower_factor
                covered_P[lane] += lower
                if is_above:
                    sum_P[lane] -= lower
                    count -= 1
        log10 = lower_log10
    for half in (16, 8, 4, 2, 1):
        for lane in range(half):
            sum_P[lane] += sum_P[lane + half]
            covered_P[lane] += covered_P[lane + half]
    low, high = 0, symbols
    while low < high:
        middle = (low + high) // 2
        other = np.int64(ranked_V[middle])
        if _is_above(np.float64(prob_G[other]) + log10, other, value, word):
            low = middle + 1
        else:
            high = middle
    count += low
    if left_out >= 0 and _is_above(np.float64(prob_G[left_out]) + log10, left_out, value, word):
        count -= 1
    mass = sum_P[0] + ranked_sums_V[low - 1] * factor_of(log10, inverse) if low else sum_P[0]
    return count, mass, covered_P[0]


def _cuda(children, siblings, ranking, numbers_H, seed, inverse, limits, tries):
    import cupy

    H, K = children.first_HK.shape
    id_H = cupy.empty(H, np.int32)
    if H:
        fn = kernel(
            "distribution/draw_ranked", "draw_ranked", CHILD=check.INTEGER[children.first_HK.dtype], **CONSTANTS
        )
        ranges = map(cupy.ascontiguousarray, children)
        nodes = siblings.word_G, ranking.prob_G, siblings.sums_G, siblings.symbols, *ranking[1:]
        args = *ranges, H, K, *nodes, numbers_H, seed, inverse, *limits, tries, id_H
        launch(fn, grid_for(32 * H, THREADS), THREADS, args, shared_bytes=8 * THREADS * (K + 1))
    return id_H


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the example of `draw_words`; by size draw from the best words, from a share of all, or from both."""
    made, prob_G = nodes_and_histories(rng, size)
    V, left_out = made["siblings"].symbols, 1 if size >= 8 else -1
    ranked_V = np.argsort(-prob_G[:V], kind="stable").astype(np.uint32)
    ranked_sums_V = sum_children(prob_G[ranked_V], ranked_V, np.array([V]), made["inverse"], left_out)
    top_p = 0.9 if size % 3 != 1 or size % 2 else 1.0
    return {
        **made,
        "ranking": Ranking(prob_G, ranked_V, ranked_sums_V),
        "limits": Limits(10 if size % 3 == 1 else 0, top_p, left_out),
    }
