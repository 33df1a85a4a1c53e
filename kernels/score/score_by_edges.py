"""Score text with the edge table of a trie: as `score_tokens`, with one memory access for most n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .. import check
from ..dispatch import pick, to_host
from ..launch import grid_for, kernel, launch
from ..trie.edges import find_edge, make_edges
from .score_tokens import THREADS, check_order, text_and_trie


def score_by_edges(
    slots_E4: Any,
    words_V2: Any,
    buckets: int,
    word_bits: int,
    key_bits: int,
    check_bits: int,
    order: int,
    begin: int,
    end: int,
    codes_T: Any,
) -> tuple[Any, Any]:
    """Return the log10 probability and the order of the longest match of every token.

    slots_E4, words_V2, buckets, word_bits, key_bits, check_bits  an `EdgeTable`
    order    of its trie, 1 to 96; every suffix of an n-gram is in it, too; no log10 probability is above 0
    begin, end, codes_T  as `score_tokens` takes them

    Returns prob_T (T,) float32 and order_T (T,) uint8, the same as those of `score_tokens`.
    """
    check.dtype(slots_E4, np.uint32)
    check.dtype(words_V2, np.float32)
    check.dtype(codes_T, np.uint32)
    check_order(order)
    run = pick(cpu=_cpu, cuda=_cuda, slots_E4=slots_E4, words_V2=words_V2, codes_T=codes_T)
    return run(slots_E4, words_V2, buckets, word_bits, key_bits, check_bits, order, begin, end, codes_T)


def _cpu(slots_E4, words_V2, buckets, word_bits, key_bits, check_bits, order, begin, end, codes_T):
    values_E4 = slots_E4.view(np.float32)
    return _score(slots_E4, values_E4, words_V2, buckets, word_bits, key_bits, check_bits, order, begin, end, codes_T)


@njit(nogil=True, cache=True)
def _score(slots_E4, values_E4, words_V2, buckets, word_bits, key_bits, check_bits, order, begin, end, codes_T):
    prob_T, order_T = np.zeros(len(codes_T), np.float32), np.zeros(len(codes_T), np.uint8)
    before, now = np.empty(order, np.int64), np.empty(order, np.int64)  # nodes of the last 1, 2, ... words, and
    weights, next_weights = np.empty(order, np.float32), np.empty(order, np.float32)  # their backoffs
    length = 0  # how many of them there are, of words before
    begins = True
    for t in range(len(codes_T)):
        if begins:
            before[0], length = begin, min(order - 1, 1) if begin >= 0 else 0
            weights[0] = words_V2[begin, 1]
        begins = codes_T[t] == 0
        word = end if begins else np.int64(codes_T[t]) - 1
        if word < 0:
            continue
        now[0], matched = word, 1
        prob, next_weights[0] = words_V2[word, 0], words_V2[word, 1]
        while matched < order and matched <= length:
            slot = find_edge(slots_E4, buckets, word_bits, key_bits, check_bits, before[matched - 1], word)
            if slot < 0:
                break
            now[matched] = slots_E4[slot, 0]
            prob, next_weights[matched] = values_E4[slot, 2], values_E4[slot, 3]
            matched += 1
        for m in range(matched, length + 1):
            prob += weights[m - 1]
        prob_T[t], order_T[t] = prob, matched
        length = min(matched, order - 1)
        before, now = now, before
        weights, next_weights = next_weights, weights
    return prob_T, order_T


def _cuda(slots_E4, words_V2, buckets, word_bits, key_bits, check_bits, order, begin, end, codes_T):
    import cupy

    T = len(codes_T)
    prob_T, order_T = cupy.zeros(T, np.float32), cupy.zeros(T, np.uint8)
    if T:
        fn = kernel("score/score_by_edges", "score_by_edges")
        table = slots_E4, words_V2, buckets, word_bits, key_bits, check_bits
        args = (*table, order, begin, end, codes_T, T, prob_T, order_T)
        launch(fn, grid_for(T, THREADS - order + 1), THREADS, args, shared_bytes=8 * order * THREADS)
    return prob_T, order_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """The text and the trie of `score_tokens`."""
    made = text_and_trie(rng, size)
    table = make_edges(made["word_G"], made["first_child_M"], made["prob_G"], made["backoff_M"])
    return {name: to_host(value) if name.endswith(("E4", "V2")) else value for name, value in vars(table).items()} | {
        name: made[name] for name in ("order", "begin", "end", "codes_T")
    }  # fmt: skip
