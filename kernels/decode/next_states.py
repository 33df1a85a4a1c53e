"""Advance the states of an n-gram model by a word, many at once, and return the children of the new histories."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..distribution.find_histories import Children, check_backoffs
from ..launch import grid_for, kernel, launch
from ..score.score_tokens import text_and_trie
from ..trie.find_children import TrieIndex, find_child

VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())
THREADS = 256


def next_states(
    index: TrieIndex, nodes_RK: Any, words_R: Any, begin: int, first_M: Any, backoff_M: Any, neutral: float = -0.0
) -> tuple[Any, Children]:
    """Return the states after one more word, and their children and backoffs.

    nodes_RK   (R, K) int64, a state: the nodes of the last 1, 2, ..., K words, K one less than the order of the trie;
               -1 if the trie lacks these words or the history is shorter
    words_R    (R,) int64, words below V; -1 begins a sentence after any state
    begin      the word below V that precedes every sentence (<s>), or -1 for none
    first_M    (M + 1,) of first_child_M's dtype: ranges to return for the children of each node, such as
               index.first_child_M
    backoff_M  (M,) float32, in any scale; or (0,) if the trie has no backoffs
    neutral    the backoff without effect: -0 for logarithms, 1 for probabilities

    Returns the new nodes_RK, and first_HK, end_HK, backoff_HK as `find_histories` returns for the whole histories.
    The node of the last k + 1 words is the child, by the new word, of the node of the k words before it. So no step
    reads older words. KenLM's states omit nodes that have neither children nor a backoff (Heafield, "KenLM:
    Faster and Smaller Language Model Queries", 2011, section 4.1); the scores are the same.
    """
    word_G, first_child_M, samples, sample_starts, _ = index
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(first_M, first_child_M.dtype)
    check.dtype(nodes_RK, np.int64)
    check.dtype(words_R, np.int64)
    check.dtype(backoff_M, np.float32)
    check_backoffs(backoff_M, first_child_M)
    if len(nodes_RK.shape) != 2 or len(nodes_RK) != len(words_R) or len(first_M) != len(first_child_M):
        raise ValueError(
            f"got states of shape {nodes_RK.shape}, {len(words_R)} words, and {len(first_M)} ranges for "
            f"{len(first_child_M)} of the trie; pass one word for each state, and one range for each node"
        )
    arrays = {
        "word_G": word_G, "first_child_M": first_child_M, "samples": samples, "sample_starts": sample_starts,
        "nodes_RK": nodes_RK, "words_R": words_R, "first_M": first_M, "backoff_M": backoff_M,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    new_RK, *children = run(index, nodes_RK, words_R, begin, first_M, backoff_M, np.float32(neutral))
    return new_RK, Children(*children)


@njit(nogil=True, cache=True)
def _cpu(index, nodes_RK, words_R, begin, first_M, backoff_M, neutral):
    word_G, first_child_M, samples, sample_starts, fanout = index
    shape = R, K = nodes_RK.shape
    new_RK = np.full(shape, np.int64(-1))
    first_RK, end_RK = np.zeros(shape, first_M.dtype), np.zeros(shape, first_M.dtype)
    backoff_RK = np.full(shape, neutral)
    for r in range(R):
        word = words_R[r]
        for k in range(K):
            node = word if word >= 0 else np.int64(begin)
            if k > 0:
                if word < 0 or nodes_RK[r, k - 1] < 0:
                    continue
                node = find_child(word_G, first_child_M, samples, sample_starts, fanout, nodes_RK[r, k - 1], word)
            new_RK[r, k] = node
            if node >= 0:
                first_RK[r, k], end_RK[r, k] = first_M[node], first_M[node + 1]
                if len(backoff_M):
                    backoff_RK[r, k] = backoff_M[node]
    return new_RK, first_RK, end_RK, backoff_RK


def _cuda(index, nodes_RK, words_R, begin, first_M, backoff_M, neutral):
    import cupy

    word_G, first_child_M, samples, sample_starts, fanout = index
    shape = R, K = nodes_RK.shape
    new_RK, backoff_RK = cupy.empty(shape, np.int64), cupy.empty(shape, np.float32)
    first_RK, end_RK = cupy.empty(shape, first_M.dtype), cupy.empty(shape, first_M.dtype)
    if R * K:
        fn = kernel("decode/next_states", "next_states", CHILD=check.INTEGER[first_child_M.dtype])
        args = (
            word_G, first_child_M, samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1,
            cupy.ascontiguousarray(nodes_RK), words_R, R, K, begin, first_M,
            backoff_M if len(backoff_M) else np.uintp(0), neutral, new_RK, first_RK, end_RK, backoff_RK,
        )  # fmt: skip
        launch(fn, grid_for(R * K, THREADS), THREADS, args)
    return new_RK, first_RK, end_RK, backoff_RK


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a trigram model of a text, states after two of its words, and next words; one in 9 begins a sentence."""
    made = text_and_trie(rng, size)
    index, backoff_M = made["index"], made["values"].backoff_M
    dtype = np.uint32 if size % 2 else np.int64
    index = index._replace(first_child_M=index.first_child_M.astype(dtype))
    words_T = made["codes_T"].astype(np.int64) - 1
    R = max(0, size // 4 - 2)
    nodes_RK = np.full((R, 2), -1, np.int64)
    for i in range(2):
        nodes_RK = _cpu(index, nodes_RK, words_T[i : R + i], made["begin"], index.first_child_M, backoff_M, 0)[0]
    words_R = np.where(rng.random(R) < 1 / 9, -1, words_T[2 : R + 2])
    return {
        "index": index,
        "nodes_RK": nodes_RK,
        "words_R": words_R,
        "begin": made["begin"],
        "first_M": index.first_child_M // dtype(2),
        "backoff_M": backoff_M[:0] if size % 5 == 2 else backoff_M,
    }
