"""Score text with a trie: the probability of every token after the preceding tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch
from ..trie.edges import require_backoffs
from ..trie.find_children import MIN_INDEXED, TrieIndex, narrowed_range, sample_every_fanout

VALUE_TYPES = {np.dtype(np.float32): "float", np.dtype(np.uint8): "u8", np.dtype(np.uint16): "u16"}
VARIANTS = tuple({"CHILD": child, "VALUE": value} for child in check.INTEGER.values() for value in VALUE_TYPES.values())
THREADS = 256
BATCH = 256  # start positions of walks that a CPU follows together
MAX_SCORED_ORDER = 96  # shared memory holds so many rows of THREADS times 8 bytes; a match's order is a byte


class TrieValues(NamedTuple):
    """The values of a trie's nodes.

    prob_G     (G,) float32, log10; for a quantised trie (core.trie.Trie) uint8 or uint16
    backoff_M  (M,) as prob_G
    words_V2, centers  for a quantised trie, float32: the values of single words, and the values of codes
    """

    prob_G: Any
    backoff_M: Any
    words_V2: Any = None
    centers: Any = None


def score_tokens(
    index: TrieIndex, values: TrieValues, order: int, begin: int, end: int, codes_T: Any
) -> tuple[Any, Any]:
    """Return the log10 probability and the order of the longest match of every token.

    order      order of the trie, 1 to 96. The trie must hold every suffix of its n-grams
    begin, end  words below V that precede and end a sentence (<s> and </s>), or -1 for none
    codes_T    (T,) uint32, word + 1, or 0 for `end`; after a 0 the next sentence starts with `begin`. The first token
               starts a sentence

    Returns prob_T (T,) float32 and order_T (T,) uint8; both are 0 at a sentence end without `end`. P(w | h) is the
    probability of the longest n-gram h' w of the trie, times the backoff weights of the longer histories, shortest
    first (Katz, 1987). The float32 sum has KenLM's order.
    """
    word_G, first_child_M, samples, sample_starts, _ = index
    prob_G, backoff_M, words_V2, centers = values
    check.dtype(word_G, np.uint32)
    check.dtype(first_child_M, np.uint32, np.int64)
    if centers is None:
        check.dtype(prob_G, np.float32)
    else:
        check.dtype(prob_G, np.uint8, np.uint16)
        check.dtype(words_V2, np.float32)
        check.dtype(centers, np.float32)
        _check_centers(centers, prob_G.dtype, order)
    check.dtype(backoff_M, prob_G.dtype)
    check.dtype(codes_T, np.uint32)
    check_order(order)
    require_backoffs(backoff_M, first_child_M)
    arrays = {
        "word_G": word_G, "first_child_M": first_child_M, "samples": samples, "sample_starts": sample_starts,
        "prob_G": prob_G, "backoff_M": backoff_M, "codes_T": codes_T, "words_V2": words_V2, "centers": centers,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(index, values, order, begin, end, codes_T)


def check_order(order: int) -> None:
    """Raise ValueError if the shared memory of a block does not hold this order."""
    if not 1 <= order <= MAX_SCORED_ORDER:
        raise ValueError(f"order is {order} but must be 1 to {MAX_SCORED_ORDER}; make a model of a lower order")


def _check_centers(centers: Any, code: Any, order: int) -> None:
    """Raise ValueError unless every code of every order from 2 on has a centre."""
    wanted = order - 1, 2, 1 << 8 * code.itemsize
    if centers.shape != wanted:
        raise ValueError(f"centers has shape {centers.shape} but must have {wanted} for {code.name} and order {order}")


@njit(nogil=True, cache=True)
def _value(values, words_V2, centers, node, n, kind):
    """Return the log10 probability (kind 0) or backoff (kind 1) of a node of order n."""
    if centers is None:
        return values[node]
    return words_V2[node, kind] if n == 1 else centers[n - 2, kind, values[node]]


@njit(nogil=True, cache=True)
def _cpu(index, values, order, begin, end, codes_T):
    """As on a GPU: walk from BATCH positions together, so that a core waits for the memory of all walks at once.

    Columns of met are starts of walks; the last order - 1 positions before the batch come first. Row k holds the
    nodes of k + 1 words, or -1. Compactions and searches are branch-free, because a processor would mispredict them.
    """
    word_G, first_child_M, samples, sample_starts, fanout = index
    prob_G, backoff_M, words_V2, centers = values
    T, M, ahead = len(codes_T), len(first_child_M) - 1, order - 1
    prob_T, order_T = np.zeros(T, np.float32), np.zeros(T, np.uint8)
    met = np.full((order, ahead + BATCH), -1)
    room = BATCH + 1  # one more: rejected walks are written past the last accepted one
    starts, nodes, words = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    firsts, sizes = np.empty(room, np.int64), np.empty(room, np.int64)
    for base in range(-1, T, BATCH):  # -1 is before the first sentence
        size, walks = min(BATCH, T - base), 0
        for i in range(size):
            code = codes_T[base + i] if base + i >= 0 else np.uint32(0)
            node = np.int64(code) - 1 if code else begin
            met[0, ahead + i], nodes[walks], starts[walks] = node, node, i
            goes_on = (node >= 0) & (node < M)
            prefetch(first_child_M, node if goes_on else 0)
            walks += np.int64(goes_on)
        for k in range(1, order):
            asked = 0
            for a in range(walks):
                t, node = base + starts[a] + k, nodes[a]
                word = np.int64(codes_T[t]) - 1 if t < T and codes_T[t] else end
                first = np.int64(first_child_M[node])
                children = np.int64(first_child_M[node + 1]) - first
                starts[asked], words[asked], firsts[asked], sizes[asked] = starts[a], word, first, children
                asked += np.int64((t < T) & (word >= 0) & (children > 0))
            for a in range(asked):
                if sizes[a] > MIN_INDEXED:
                    first, last = np.uint64(firsts[a]), np.uint64(firsts[a] + sizes[a] - 1)
                    low, high = narrowed_range(samples, sample_starts, np.uint64(fanout), first, last, words[a])
                    firsts[a], sizes[a] = low, high - low + 1
                prefetch(word_G, firsts[a] + (sizes[a] >> 1))
            longest = 1
            for a in range(asked):
                longest = max(longest, sizes[a])
            while longest > 1:  # the last child whose word is not above, of all walks in step
                for a in range(asked):
                    half = sizes[a] >> 1
                    firsts[a] += half if word_G[firsts[a] + half] <= words[a] else 0
                    sizes[a] -= half
                    prefetch(word_G, firsts[a] + (sizes[a] >> 1))
                longest -= longest >> 1
            for i in range(size):
                met[k, ahead + i] = -1
            walks = 0
            for a in range(asked):
                child, start = firsts[a], starts[a]
                found = word_G[child] == words[a]
                met[k, ahead + start] = child if found else -1
                nodes[walks], starts[walks] = child, start
                goes_on = found & (child < M) & (codes_T[base + start + k] != 0)
                prefetch(first_child_M, child if goes_on else 0)
                walks += np.int64(goes_on)
        for is_sum in range(2):  # first prefetch the values
            for i in range(size):
                t, column = base + i, ahead + i
                if t < 0 or (codes_T[t] == 0 and end < 0):
                    continue
                node, matched = met[0, column] if codes_T[t] else end, 1
                while matched < order and met[matched, column - matched] >= 0:
                    node = met[matched, column - matched]
                    matched += 1
                if not is_sum:
                    prefetch(prob_G, node)
                else:
                    prob_T[t], order_T[t] = _value(prob_G, words_V2, centers, node, matched, 0), matched
                longest = ahead if t > 0 and codes_T[t - 1] else min(ahead, 1)  # words before t in its sentence
                for m in range(matched, longest + 1):
                    node = met[m - 1, column - m]
                    if node < 0:
                        break
                    if not is_sum:
                        prefetch(backoff_M, node)
                    else:
                        prob_T[t] += _value(backoff_M, words_V2, centers, node, m, 1)
        for k in range(order):
            for i in range(ahead):
                met[k, i] = met[k, size + i]
    return prob_T, order_T


def _cuda(index, values, order, begin, end, codes_T):
    import cupy

    word_G, first_child_M, samples, sample_starts, fanout = index
    prob_G, backoff_M, words_V2, centers = values
    T = len(codes_T)
    prob_T, order_T = cupy.empty(T, np.float32), cupy.empty(T, np.uint8)
    if T:
        types = {"CHILD": check.INTEGER[first_child_M.dtype], "VALUE": VALUE_TYPES[prob_G.dtype]}
        fn = kernel("score/score_tokens", "score_tokens", **types)
        samples_of_words = samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1
        coded = (0, 0) if centers is None else map(check.aligned, (words_V2, centers))  # 0: a null pointer
        args = (
            word_G, first_child_M, *samples_of_words, prob_G, backoff_M, *coded, order, begin, end, codes_T, T, prob_T,
            order_T,
        )  # fmt: skip
        launch(fn, grid_for(T, THREADS - order + 1), THREADS, args, shared_bytes=8 * order * THREADS)
    return prob_T, order_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return `text_and_trie`; by size the values are float32 or codes of 1 or 2 bytes."""
    made = text_and_trie(rng, size)
    if size % 3 == 1:
        code = np.uint8 if size % 2 else np.uint16
        prob_G, backoff_M = (rng.integers(0, 50, len(made["values"][i])).astype(code) for i in range(2))
        words_V2 = -rng.random((int(made["index"].first_child_M[0]), 2), np.float32)
        centers = -rng.random((2, 2, np.iinfo(code).max + 1), np.float32)
        made["values"] = TrieValues(prob_G, backoff_M, words_V2, centers)
    return made


def text_and_trie(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Return a text of sentences of 1 to 30 words, and a trigram model of it with about one word per 20 tokens."""
    V = 3 + size // 20
    words_T = np.minimum(rng.zipf(1.3, size) - 1, V - 1)
    pairs = np.unique(words_T[:-1] * V + words_T[1:])[::2]
    first_2 = np.searchsorted(pairs // V, np.arange(V + 1)) + V
    triples = np.unique(np.repeat(np.arange(len(pairs)), 2) * V + rng.integers(0, V, 2 * len(pairs)))
    triples = triples[np.isin(pairs[triples // V] % V * V + triples % V, pairs)]
    first_3 = np.searchsorted(triples // V, np.arange(len(pairs) + 1)) + V + len(pairs)
    word_G = np.concatenate([np.arange(V), pairs % V, triples % V]).astype(np.uint32)
    first_child_M = np.concatenate([first_2[:-1], first_3]).astype(np.uint32)
    samples, sample_starts = sample_every_fanout(word_G, 32)
    codes_T = (words_T + 1).astype(np.uint32)
    codes_T[rng.random(size) < 1 / 15] = 0
    return {
        "index": TrieIndex(word_G, first_child_M, samples, sample_starts, 32),
        "values": TrieValues(-rng.random(len(word_G), np.float32) * 5, -rng.random(V + len(pairs), np.float32)),
        "order": 3,
        "begin": min(1, V - 1) if size % 3 else -1,
        "end": 2 if size % 5 else -1,
        "codes_T": codes_T,
    }
