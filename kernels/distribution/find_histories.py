"""Find histories in a trie: the children and the backoff of their last words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..launch import current_limits, grid_for, kernel, launch
from ..score.score_tokens import text_and_trie
from ..trie.find_children import TrieIndex, find_child

FEW_WALKS = 64  # per multiprocessor: as many as it has warps
VARIANTS = tuple({"CHILD": child, "LANES": lanes} for child in check.INTEGER.values() for lanes in (1, 32))


class Positions(NamedTuple):
    """Histories as positions of a text.

    codes_T      (T,) uint32, word + 1, words below V; 0 ends a sentence
    positions_H  (H,) int64, 0 to T: the history of position t is the words before codes_T[t] in its sentence
    begin        the word below V that precedes every sentence (<s>), or -1 for none
    """

    codes_T: Any
    positions_H: Any
    begin: int


class Children(NamedTuple):
    """The children and the backoff of the last 1, ..., K words of each history.

    first_HK, end_HK  (H, K) uint32 or int64: the children of the last k + 1 words are nodes first to end - 1, by
                      rising word; both 0 for no children
    backoff_HK        (H, K) float32, backoffs of these words; neutral if the trie lacks the words
    """

    first_HK: Any
    end_HK: Any
    backoff_HK: Any


def find_histories(
    index: TrieIndex, order: int, positions: Positions, backoff_M: Any, neutral: float = -0.0
) -> Children:
    """Return the children and the backoff of the last 1, 2, ... words of each history.

    order      order N of the trie, at least 1; a history has at most K = N - 1 words
    backoff_M  (M,) float32, in any scale; or (0,) if the trie has no backoffs
    neutral    the backoff without effect: -0 for logarithms (x + -0 is x, also for -0), 1 for probabilities

    Returns first_HK, end_HK (H, K) of first_child_M's dtype and backoff_HK (H, K) float32. The children of the last
    k + 1 words of history h are the nodes first_HK[h, k] to end_HK[h, k] - 1. If the history is shorter, or the trie
    lacks these words, both are 0 and the backoff is `neutral`. Without backoffs every backoff is `neutral`.
    """
    word_G, first_child_M, samples, sample_starts, _ = index
    codes_T, positions_H, _ = positions
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(codes_T, np.uint32)
    check.dtype(positions_H, np.int64)
    check.dtype(backoff_M, np.float32)
    check_backoffs(backoff_M, first_child_M)
    arrays = {
        "word_G": word_G, "first_child_M": first_child_M, "samples": samples, "sample_starts": sample_starts,
        "codes_T": codes_T, "positions_H": positions_H, "backoff_M": backoff_M,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return Children(*run(index, order, positions, backoff_M, np.float32(neutral)))


def check_backoffs(backoff_M, first_child_M):
    """Raise ValueError unless the trie has one backoff per node, or no backoffs."""
    if len(backoff_M) not in (0, len(first_child_M) - 1):
        raise ValueError(f"got {len(backoff_M)} backoffs for {len(first_child_M) - 1} nodes; pass one of each, or none")


@njit(nogil=True, cache=True)
def _cpu(index, order, positions, backoff_M, neutral):
    word_G, first_child_M, samples, sample_starts, fanout = index
    codes_T, positions_H, begin = positions
    shape = len(positions_H), order - 1
    first_HK, end_HK = np.zeros(shape, first_child_M.dtype), np.zeros(shape, first_child_M.dtype)
    backoff_HK = np.full(shape, neutral)
    for h in range(len(positions_H)):
        t = positions_H[h]
        for k in range(order - 1):
            at = t - 1 - k  # position of the first of these words; -1 is before the first sentence
            if at < -1:
                break
            code = codes_T[at] if at >= 0 else np.uint32(0)
            node = np.int64(code) - 1 if code else begin
            at += 1
            while node >= 0 and at < t:
                word = np.int64(codes_T[at]) - 1
                node = find_child(word_G, first_child_M, samples, sample_starts, fanout, node, word)
                at += 1
            if node >= 0:
                first_HK[h, k], end_HK[h, k] = first_child_M[node], first_child_M[node + 1]
                if len(backoff_M):
                    backoff_HK[h, k] = backoff_M[node]
            if code == 0:
                break  # the sentence begins here
    return first_HK, end_HK, backoff_HK


def _cuda(index, order, positions, backoff_M, neutral):
    import cupy

    word_G, first_child_M, samples, sample_starts, fanout = index
    codes_T, positions_H, begin = positions
    shape = H, K = len(positions_H), order - 1
    first_HK, end_HK = cupy.empty(shape, first_child_M.dtype), cupy.empty(shape, first_child_M.dtype)
    backoff_HK = cupy.empty(shape, np.float32)
    if H * K:
        lanes = 32 if fits_a_warp(K, fanout) and H * K <= FEW_WALKS * current_limits()[0] else 1
        sizes = {"CHILD": check.INTEGER[first_child_M.dtype], "LANES": lanes}
        fn = kernel("distribution/find_histories", "find_histories", **sizes)
        samples_of_words = samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1
        backoffs = backoff_M if len(backoff_M) else 0  # 0: a null pointer
        asked = K, codes_T, positions_H, H, begin, neutral
        args = (word_G, first_child_M, *samples_of_words, backoffs, *asked, first_HK, end_HK, backoff_HK)
        threads = 256 if lanes == 1 else 32
        launch(fn, grid_for(H * K * lanes, threads), threads, args)
    return first_HK, end_HK, backoff_HK


def fits_a_warp(K: int, fanout: int) -> bool:
    """Return whether one warp can walk K words in a trie of that fanout."""
    return K <= 32 and fanout in (2, 4, 8, 16, 32)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a trigram model of a text and its histories: at all positions, or at some in random order."""
    made = text_and_trie(rng, size)
    index, backoff_M = made["index"], made["values"].backoff_M
    positions_H = np.arange(size + 1) if size % 3 == 2 else rng.integers(0, size + 1, size)
    return {
        "index": index._replace(first_child_M=index.first_child_M.astype(np.uint32 if size % 2 else np.int64)),
        "order": made["order"],
        "positions": Positions(made["codes_T"], positions_H, made["begin"]),
        "backoff_M": backoff_M[:0] if size % 5 == 2 else backoff_M,
    }
