"""Score one word after each of many states, and return the states after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import array_module, pick, to_host
from ..launch import grid_for, kernel, launch
from ..trie.child_filters import child_filters, filter_bit
from ..trie.edges import EdgeTable, find_edge, make_edges
from ..trie.find_children import TrieIndex, find_children
from .score_tokens import check_order, text_and_trie

EMPTY = -1  # the state of no words
MAX_HISTORIES = (1 << 31) - 1
PIECE = 1 << 24  # nodes whose states are found at once
WORD_TYPES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
VARIANTS = tuple({"WORD": word} for word in WORD_TYPES.values())
THREADS = 256


class StateTable(NamedTuple):
    """The arrays that a step needs in addition to the edge table.

    A state is the longest suffix of the words so far that can be extended or has a backoff; earlier words cannot affect
    later scores. It is the number of its node, or EMPTY. These are KenLM's states (Heafield, "KenLM: Faster and Smaller
    Language Model Queries", 2011, section 4.1).

    nodes_M2  (M, 2) uint64, for each history: the 64-bit filter of its children (`child_filters`); then its log10
              backoff as a float32 (lower half) and the node of its longest proper suffix (upper half; 2^32 - 1: EMPTY)
    state_G   (G,) int32: the state after the words of each node
    """

    nodes_M2: Any
    state_G: Any


def make_states(index: TrieIndex, suffix_M: Any, backoff_M: Any) -> StateTable:
    """Return the states of a trie.

    suffix_M   (M,) int64: the node of the longest proper suffix, or EMPTY
    backoff_M  (M,) float32, log10; -0 for a node that is not a state

    Raises OverflowError for more than MAX_HISTORIES histories.
    """
    word_G, first_child_M, samples, sample_starts, fanout = index
    xp, (M, G) = array_module(word_G), (len(backoff_M), len(word_G))
    V = int(first_child_M[0])
    if M > MAX_HISTORIES:
        raise OverflowError(f"{M:,} histories exceed {MAX_HISTORIES:,}")
    state_G = xp.full(G, EMPTY, np.int32)
    keeps_M = (backoff_M != 0) | ~xp.signbit(backoff_M)
    # A suffix is shorter than its node, so it lies before the node's order: V words, then their children, ...
    begin, end = 0, min(V, M)
    while begin < M:
        shorter = state_G[suffix_M[begin:end]] if begin else xp.full(end, EMPTY, np.int32)
        state_G[begin:end] = xp.where(keeps_M[begin:end], xp.arange(begin, end, dtype=np.int32), shorter)
        begin, end = end, min(int(first_child_M[end]), M)
    for first in range(max(M, V), G, PIECE):  # of the highest order, no histories
        nodes = xp.arange(first, min(first + PIECE, G))
        parent = xp.searchsorted(first_child_M, nodes.astype(first_child_M.dtype), side="right") - 1
        words = word_G[first : first + PIECE]
        suffix = find_children(word_G, first_child_M, samples, sample_starts, fanout, suffix_M[parent], words)
        suffix = xp.where(suffix_M[parent] < 0, words.astype(np.int64), suffix)
        state_G[first : first + PIECE] = xp.where(suffix < 0, np.int32(EMPTY), state_G[suffix])
    filter_M = child_filters(word_G, first_child_M, M, 64)
    links_M2 = xp.stack([backoff_M.view(np.uint32), suffix_M.astype(np.uint32)], axis=1)
    return StateTable(xp.stack([filter_M, links_M2.view(np.uint64)[:, 0]], axis=1), state_G)


def step_states(
    table: EdgeTable,
    order: int,
    states: StateTable,
    states_B: Any,
    words_B: Any,
    unit: float = 1.0,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Return the logarithm of the probability of a word after each state, and the state after it.

    order     order of the table's trie, 1 to 96, as for `score_by_edges`
    states_B  (B,) int32; numbers that are not nodes count as EMPTY
    words_B   (B,) int32 or int64; words that the model lacks are word 0, <unk>
    unit      unit of the logarithm: 1 for log10, ln 10 for natural logarithms
    out       arrays to fill and return

    Returns prob_B (B,) float32 and next_B (B,) int32. A log10 probability has the same bits as KenLM's: that of the
    longest match plus the backoffs of the longer histories, from the shortest on.
    """
    check.dtype(table.slots_E2, np.uint64)
    check.dtype(states.nodes_M2, np.uint64)
    check.dtype(states.state_G, np.int32)
    check.dtype(states_B, np.int32)
    check.dtype(words_B, *WORD_TYPES)
    check_order(order)
    if len(states_B) != len(words_B):
        raise ValueError(f"got {len(states_B)} states and {len(words_B)} words; pass one word for each state")
    arrays = {
        "slots_E2": table.slots_E2, "words_V2": table.words_V2, **states._asdict(), "states_B": states_B,
        "words_B": words_B,
    }  # fmt: skip
    run = pick(cpu=_cpu, cuda=_cuda, **arrays)
    xp = array_module(states_B)
    out = (xp.empty(len(states_B), np.float32), xp.empty(len(states_B), np.int32)) if out is None else out
    run(table, order, states, states_B, words_B, float32(unit), *out)
    return out


@njit(nogil=True, cache=True)
def _cpu(table, order, states, states_B, words_B, unit, prob_B, next_B):
    slots_E2, words_V2, (nodes_M2, state_G) = table.slots_E2, table.words_V2, states
    values_E4, values_V4, links_M4 = slots_E2.view(np.float32), words_V2.view(np.float32), nodes_M2.view(np.uint32)
    backoffs_M4, missing = nodes_M2.view(np.float32), np.empty(order, np.float32)
    for b in range(len(states_B)):
        word, node, missed = np.int64(words_B[b]), np.int64(states_B[b]), 0
        if word < 0 or word >= len(words_V2):
            word = np.int64(0)
        if node >= len(nodes_M2):
            node = np.int64(EMPTY)
        prob, found = values_V4[word, 2], word
        while node >= 0:
            if nodes_M2[node, 0] >> filter_bit(word, 64) & uint64(1):
                child, slot = find_edge(table, node, word)
                if slot >= 0:
                    prob, found = values_E4[slot, 2], child
                    break
            missing[missed] = backoffs_M4[node, 2]
            missed += 1
            suffix = links_M4[node, 3]
            node = np.int64(suffix) if suffix != np.uint32(0xFFFFFFFF) else np.int64(EMPTY)
        for m in range(missed - 1, -1, -1):
            prob += missing[m]
        prob_B[b], next_B[b] = prob * unit, state_G[found]


def _cuda(table, order, states, states_B, words_B, unit, prob_B, next_B):
    B, nodes_M2 = len(states_B), states.nodes_M2
    if B:
        fn = kernel("score/step_states", "step_states", WORD=WORD_TYPES[words_B.dtype])
        of_states = check.aligned(nodes_M2), len(nodes_M2), states.state_G, len(table.words_V2)
        args = *table.map_arrays(check.aligned), *of_states, states_B, words_B, B, unit, prob_B, next_B
        launch(fn, grid_for(B, THREADS), THREADS, args)


def states_of_a_text(rng: np.random.Generator, size: int) -> tuple[dict[str, Any], StateTable]:
    """Return what `text_and_trie` returns, and the states of that model."""
    made = text_and_trie(rng, size)
    index, M = made["index"], len(made["values"].backoff_M)
    V, suffix_M = int(index.first_child_M[0]), np.full(M, EMPTY, np.int64)
    suffix_M[V:] = index.word_G[V:M]  # of a trigram model, histories have at most two words
    return made, make_states(index, suffix_M, made["values"].backoff_M)


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return a trigram model of a text, states of it, and words, of which a few are unknown."""
    made, states = states_of_a_text(rng, size)
    index, values = made["index"], made["values"]
    table = make_edges(index.word_G, index.first_child_M, values.prob_G, values.backoff_M)
    states_B = rng.integers(-1, len(values.backoff_M) + 1, size).astype(np.int32)
    words_B = rng.integers(-1, int(index.first_child_M[0]) + 1, size).astype(np.int32 if size % 2 else np.int64)
    return {
        "table": table.map_arrays(to_host), "order": made["order"], "states": states, "states_B": states_B,
        "words_B": words_B, "unit": 1.0 if size % 3 else float(np.log(10)),
    }  # fmt: skip
