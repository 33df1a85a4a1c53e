"""Words scored one at a time on the host, from state to state, as KenLM's programs do.

A state is the longest suffix of the words so far that can be extended or has a backoff; earlier words cannot affect
later scores. It is stored as its node in the trie, or EMPTY; shorter n-grams have lower nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mgpu_ngram.core.arpa import UNK_LOG10
from mgpu_ngram.core.model_file import BackoffModel
from mgpu_ngram.core.trie import Trie
from mgpu_ngram.engine.trie import edges_of
from mgpu_ngram.kernels.common.words import find_word
from mgpu_ngram.kernels.compile import njit, read_only
from mgpu_ngram.kernels.dispatch import array_module
from mgpu_ngram.kernels.score.step_states import EMPTY
from mgpu_ngram.kernels.trie.edges import find_edge


def model_arguments(model: BackoffModel) -> tuple:
    """Return the first arguments of `score_word` and `score_words`. Raises InputError for a model without backoffs."""
    model.check_scores()
    trie = model.trie.decoded()
    backoff_M = signed_backoffs(trie)
    edges = model.edges or edges_of(trie)
    arrays = edges.slots_E2, trie.prob_G[: trie.symbols].copy(), backoff_M, trie.suffixes(), np.array(trie.starts)
    bits = edges.word_bits, edges.key_bits, edges.node_bits, edges.check_bits, edges.filter_bits
    return *map(read_only, arrays), edges.buckets, *bits


def signed_backoffs(trie: Trie) -> Any:
    """Return (M,) float32: backoffs whose zeros have KenLM's signs, so that sums have the same bits.

    A history that cannot be extended has -0; a state need not remember it (lm/blank.hh).
    """
    xp = array_module(trie.backoff_M)
    zero_M = xp.where(xp.diff(trie.first_child_M) > 0, np.float32(0), np.float32(-0.0))
    backoff_M = xp.where(trie.backoff_M == 0, zero_M, trie.backoff_M)
    if trie.prob_G[0] == UNK_LOG10:  # KenLM remembers an <unk> that the file lacks (lm/model.cc, InitializeFromARPA)
        backoff_M[:1] += np.float32(0)
    return backoff_M


@njit(nogil=True, inline="always")
def _suffix(suffix_M, starts_N, node):
    return np.int64(suffix_M[node]) if node >= starts_N[1] else EMPTY


@njit(nogil=True, cache=True)
def score_word(
    slots_E2, prob_V, backoff_M, suffix_M, starts_N,
    buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, node, word,
):  # fmt: skip
    """Return (log10 probability, order of the longest match, node of the state after) of a word after a state.

    Tries the longest history first, because it usually has the word.
    """
    order = len(starts_N) - 1
    backoffs, missed = np.empty(order, np.float32), 0
    prob, found = prob_V[word], word
    while node != EMPTY and missed < order:
        child, slot = find_edge(slots_E2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, node, word)
        if slot >= 0:
            prob, found = slots_E2.view(np.float32)[slot, 2], child
            break
        backoffs[missed] = backoff_M[node]
        missed += 1
        node = _suffix(suffix_M, starts_N, node)
    for m in range(missed - 1, -1, -1):  # KenLM's order: from the shortest
        prob += backoffs[m]
    matched = 1
    while found >= starts_N[matched]:
        matched += 1
    if matched == order:  # an n-gram of the highest order is no history; its longest suffix is
        found = EMPTY
        if node != EMPTY:
            node, found = _suffix(suffix_M, starts_N, node), word
            if node != EMPTY:
                found, _ = find_edge(
                    slots_E2, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, node, word
                )
    while found != EMPTY and backoff_M[found] == 0 and np.signbit(backoff_M[found]):
        found = _suffix(suffix_M, starts_N, found)
    return prob, matched, found


@njit(nogil=True, cache=True)
def score_words(
    slots_E2, prob_V, backoff_M, suffix_M, starts_N,
    buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, offsets_V, data, slots_C, node, text, end
):  # fmt: skip
    """Return (the float32 sum, each word's log10 probability, order of the longest match, and id).

    text  bytes of words between white space
    end   the id of a last word, or -1
    """
    most = len(text) // 2 + 2
    prob_T, order_T, id_T = np.empty(most, np.float32), np.empty(most, np.int64), np.empty(most, np.int64)
    letters = np.frombuffer(text, np.uint8)
    total, T, start = np.float32(0), 0, 0
    for i in range(len(text) + 1):
        if i < len(text) and letters[i] != 32 and not 9 <= letters[i] <= 13:
            continue
        if i > start:
            id_T[T] = find_word(letters, start, i, offsets_V, data, slots_C)
            T += 1
        start = i + 1
    if end >= 0:
        id_T[T] = end
        T += 1
    for t in range(T):
        prob_T[t], order_T[t], node = score_word(
            slots_E2, prob_V, backoff_M, suffix_M, starts_N,
            buckets, word_bits, key_bits, node_bits, check_bits, filter_bits, node, id_T[t],
        )  # fmt: skip
        total += prob_T[t]
    return total, prob_T[:T], order_T[:T], id_T[:T]
