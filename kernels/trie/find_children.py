"""Walk down a trie: the child of a node by a word."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import array_module, pick
from ..launch import grid_for, kernel, launch
from .child_filters import example_children

MIN_INDEXED = 512  # children of a node that a CPU searches by the index; the words of fewer are few cache lines
VARIANTS = tuple({"CHILD": child} for child in check.INTEGER.values())


class TrieIndex(NamedTuple):
    """The nodes of a trie and the index over their words, as arguments of `find_children`."""

    word_G: Any
    first_child_M: Any
    samples: Any
    sample_starts: Any
    fanout: int


def find_children(
    word_G: Any, first_child_M: Any, samples: Any, sample_starts: Any, fanout: int, nodes_Q: Any, words_Q: Any
) -> Any:
    """Return the child of each node by a word.

    word_G         (G,) uint32, words of the nodes of a trie in breadth-first order (or of one level of it)
    first_child_M  (M + 1,) uint32 or int64: node m's children are first_child_M[m] to first_child_M[m + 1] - 1,
                   by rising word; M <= G; nodes from M on have no children
    samples, sample_starts, fanout  the index over word_G from `sample_every_fanout`
    nodes_Q        (Q,) int64; -1 stands for no node, which has no children
    words_Q        (Q,) uint32

    Returns children_Q (Q,) int64: nodes, or -1. A search reads at most fanout + 1 neighbouring words on each level of
    the index, K-ary as in Kaldewey et al., "Parallel search on video cards" (2009).
    """
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    check.dtype(samples, np.uint32)
    check.dtype(sample_starts, np.int64)
    check.dtype(nodes_Q, np.int64)
    check.dtype(words_Q, np.uint32)
    arrays = {
        "word_G": word_G, "first_child_M": first_child_M, "samples": samples, "sample_starts": sample_starts,
        "nodes_Q": nodes_Q, "words_Q": words_Q,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(word_G, first_child_M, samples, sample_starts, fanout, nodes_Q, words_Q)


def sample_every_fanout(word_G: Any, fanout: int) -> tuple[Any, Any]:
    """Return (samples, sample_starts): level t = 1, 2, ... is every fanout**t-th word, down to a level of `fanout`.

    This is a static B+-tree over all ranges of siblings at once. If a range is too long to search, its words on the
    level above select `fanout` of its words. samples (sum of all levels,) uint32, sample_starts (levels + 1,) int64.
    """
    xp = array_module(word_G)
    levels = [word_G]
    while len(levels[-1]) > fanout:
        levels.append(levels[-1][::fanout])
    starts = np.cumsum([0, *map(len, levels[1:])]).astype(np.int64)
    return xp.concatenate([*levels[1:], word_G[:0]]), xp.asarray(starts)


@njit(nogil=True, cache=True)
def _cpu(word_G, first_child_M, samples, sample_starts, fanout, nodes_Q, words_Q):
    children_Q = np.empty(len(nodes_Q), np.int64)
    for q in range(len(nodes_Q)):
        children_Q[q] = find_child(
            word_G, first_child_M, samples, sample_starts, fanout, nodes_Q[q], np.int64(words_Q[q])
        )
    return children_Q


@njit(nogil=True, cache=True)
def find_child(word_G, first_child_M, samples, sample_starts, fanout, node, word):
    """Return the child of `node` by `word`, or -1."""
    if node < 0 or node >= len(first_child_M) - 1:
        return -1
    first, last = np.int64(first_child_M[node]), np.int64(first_child_M[node + 1]) - 1
    if first > last:
        return -1
    if last - first >= MIN_INDEXED:
        first, last = narrowed_range(samples, sample_starts, np.uint64(fanout), np.uint64(first), np.uint64(last), word)
    size = last - first + 1
    while size > 1:  # the last child whose word is not above, without a branch that a core would have to guess
        half = size >> 1
        first += half if word_G[first + half] <= word else 0
        size -= half
    return first if word_G[first] == word else -1


@njit(nogil=True, cache=True)
def narrowed_range(samples, sample_starts, fanout, first, last, word):
    """Return (first, last) of at most `fanout` neighbours of a long range, among which the word is if it is a child.

    As in include/trie.cuh. Unsigned, because signed divisions also round down.
    """
    t, step = np.int64(0), np.uint64(1)
    while t < len(sample_starts) - 1 and last // step - first // step > fanout:
        step *= fanout
        t += 1
    low, high = first // step, last // step
    while t > 0:
        at = np.uint64(sample_starts[t - 1])
        while low < high:
            middle = (low + high + np.uint64(1)) >> np.uint64(1)
            if samples[at + middle] <= word:
                low = middle
            else:
                high = middle - np.uint64(1)
        t -= 1
        step //= fanout
        begin = low * fanout
        low, high = max(begin, first // step), min(begin + fanout - np.uint64(1), last // step)
    return np.int64(low), np.int64(high)


def _cuda(word_G, first_child_M, samples, sample_starts, fanout, nodes_Q, words_Q):
    import cupy

    Q = len(nodes_Q)
    children_Q = cupy.empty(Q, np.int64)
    if Q:
        fn = kernel("trie/find_children", "find_children", CHILD=check.INTEGER[first_child_M.dtype])
        index = samples, sample_starts, len(sample_starts) - 1, fanout
        args = (word_G, first_child_M, *index, len(first_child_M) - 1, nodes_Q, words_Q, Q, children_Q)
        launch(fn, grid_for(Q, 256), 256, args)
    return children_Q


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return queries at the nodes of `example_children`: half are for one of its children, the others random."""
    first_child_M = example_children(rng, size)
    M = len(first_child_M) - 1
    words = [np.sort(rng.choice(3 * run + 5, run, replace=False)) for run in np.diff(first_child_M).tolist()]
    word_G = np.concatenate([*words, []]).astype(np.uint32)
    fanout = 4 + size % 40
    samples, sample_starts = sample_every_fanout(word_G, fanout)
    nodes_Q = rng.integers(-1, max(M, 1), size)
    words_Q = rng.integers(0, 5 + 3 * (size // 2), size).astype(np.uint32)
    if len(word_G):
        picked_Q = rng.integers(0, len(word_G), size)
        known_Q = rng.random(size) < 0.5
        nodes_Q[known_Q] = np.searchsorted(first_child_M, picked_Q[known_Q], "right") - 1
        words_Q[known_Q] = word_G[picked_Q[known_Q]]
    return {
        "word_G": word_G,
        "first_child_M": first_child_M.astype(np.uint32 if size % 2 else np.int64),
        "samples": samples,
        "sample_starts": sample_starts,
        "fanout": fanout,
        "nodes_Q": nodes_Q,
        "words_Q": words_Q,
    }
