"""Score text with a trie: the probability of every token after the tokens before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..compile import njit
from ..dispatch import pick
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch
from ..trie.edges import check_backoffs
from ..trie.find_children import TrieIndex, find_child, sample_every_fanout

VALUE = {np.dtype(np.float32): "float", np.dtype(np.uint8): "u8", np.dtype(np.uint16): "u16"}
VARIANTS = tuple({"CHILD": child, "VALUE": value} for child in check.INTEGER.values() for value in VALUE.values())
THREADS = 256
MAX_ORDER = 96  # shared memory holds so many rows of THREADS times 8 bytes; a match's order is a byte


class TrieValues(NamedTuple):
    """The values of a trie's nodes.

    prob_G     (G,) float32, log10; of a quantised trie (core.trie.Trie) uint8 or uint16
    backoff_M  (M,) as prob_G
    words_V2, centers  of a quantised trie, float32: the values of single words, and the values of codes
    """

    prob_G: Any
    backoff_M: Any
    words_V2: Any = None
    centers: Any = None


def score_tokens(
    index: TrieIndex, values: TrieValues, order: int, begin: int, end: int, codes_T: Any
) -> tuple[Any, Any]:
    """Return the log10 probability and the order of the longest match of every token.

    order      of the trie, 1 to 96. The trie must hold every suffix of its n-grams
    begin, end  words below V that precede a sentence and that end it (<s> and </s>), or -1 for none
    codes_T    (T,) uint32, word + 1, or 0 for `end`; after a 0 the next sentence starts with `begin`. The first token
               starts a sentence

    Returns prob_T (T,) float32 and order_T (T,) uint8; both are 0 at a sentence end without `end`. P(w | h) is the
    probability of the longest n-gram h' w of the trie, times the backoff weights of the longer histories, shortest
    first (Katz, 1987). The float32 sum has KenLM's order.
    """
    word_G, first_child_M, samples, sample_starts, fanout = index
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
    check_backoffs(backoff_M, first_child_M)
    arrays = {
        "word_G": word_G, "first_child_M": first_child_M, "samples": samples, "sample_starts": sample_starts,
        "prob_G": prob_G, "backoff_M": backoff_M, "codes_T": codes_T, "words_V2": words_V2, "centers": centers,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    return run(
        word_G, first_child_M, samples, sample_starts, fanout, prob_G, backoff_M, order, begin, end, codes_T,
        words_V2, centers,
    )  # fmt: skip


def check_order(order: int) -> None:
    """Raise ValueError if the shared memory of a block does not hold this order."""
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order is {order} but must be 1 to {MAX_ORDER}; prune the model")


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
def _cpu(
    word_G, first_child_M, samples, sample_starts, fanout, prob_G, backoff_M, order, begin, end, codes_T,
    words_V2, centers,
):  # fmt: skip
    prob_T, order_T = np.zeros(len(codes_T), np.float32), np.zeros(len(codes_T), np.uint8)
    before, now = np.empty(order, np.int64), np.empty(order, np.int64)  # nodes of the last 1, 2, ... words
    length = 0  # how many nodes `before` holds
    begins = True
    for t in range(len(codes_T)):
        if begins:
            before[0], length = begin, min(order - 1, 1) if begin >= 0 else 0
        begins = codes_T[t] == 0
        word = end if begins else np.int64(codes_T[t]) - 1
        if word < 0:
            continue
        now[0], matched = word, 1
        for m in range(length):  # all searches of this word wait for memory together
            if before[m] < len(first_child_M) - 1:
                first, last = np.int64(first_child_M[before[m]]), np.int64(first_child_M[before[m] + 1])
                prefetch(word_G, (first + last) >> 1)  # type: ignore[call-arg]
        while matched < order and matched <= length:
            child = find_child(word_G, first_child_M, samples, sample_starts, fanout, before[matched - 1], word)
            if child < 0:
                break
            now[matched] = child
            matched += 1
            if matched < order:
                prefetch(first_child_M, child)  # type: ignore[call-arg]
        prob = _value(prob_G, words_V2, centers, now[matched - 1], matched, 0)
        for m in range(matched, length + 1):
            prob += _value(backoff_M, words_V2, centers, before[m - 1], m, 1)
        prob_T[t], order_T[t] = prob, matched
        length = min(matched, order - 1)
        before, now = now, before
    return prob_T, order_T


def _cuda(
    word_G, first_child_M, samples, sample_starts, fanout, prob_G, backoff_M, order, begin, end, codes_T,
    words_V2, centers,
):  # fmt: skip
    import cupy

    T = len(codes_T)
    prob_T, order_T = cupy.empty(T, np.float32), cupy.empty(T, np.uint8)
    if T:
        types = {"CHILD": check.INTEGER[first_child_M.dtype], "VALUE": VALUE[prob_G.dtype]}
        fn = kernel("score/score_tokens", "score_tokens", **types)
        index = samples, sample_starts, len(sample_starts) - 1, fanout, len(first_child_M) - 1
        coded = (0, 0) if centers is None else map(check.aligned, (words_V2, centers))  # 0: a null pointer
        values = prob_G, backoff_M, *coded
        args = (word_G, first_child_M, *index, *values, order, begin, end, codes_T, T, prob_T, order_T)
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
