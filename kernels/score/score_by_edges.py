"""Score text with the edge table of a trie: as `score_tokens`, with one memory access for most n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uint64

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick, to_host
from ..intrinsics import prefetch
from ..launch import grid_for, kernel, launch
from ..trie.child_filters import filter_bit
from ..trie.edges import EdgeTable, edge_home, make_edges, probe_edges
from .score_tokens import THREADS, check_order, text_and_trie

BATCH = 64  # start positions of walks that a CPU follows together
NOT_MET = np.float32(1)  # no log10 probability is positive


def score_by_edges(table: EdgeTable, order: int, begin: int, end: int, codes_T: Any) -> tuple[Any, Any]:
    """Return the log10 probability and the order of the longest match of every token.

    order  order of the table's trie, 1 to 96. The trie must hold every suffix of its n-grams; no log10 probability is
           above 0
    begin, end, codes_T  as in `score_tokens`

    Returns prob_T (T,) float32 and order_T (T,) uint8, equal to those of `score_tokens`.
    """
    slots_E2, words_V2 = table.slots_E2, table.words_V2
    check.dtype(slots_E2, np.uint64)
    check.dtype(words_V2, np.uint64)
    check.dtype(codes_T, np.uint32)
    check_order(order)
    run = pick(cpu=_cpu, cuda=_cuda, slots_E2=slots_E2, words_V2=words_V2, codes_T=codes_T)
    return run(table, order, begin, end, codes_T)


def _cpu(table, order, begin, end, codes_T):
    slots_E2 = table.slots_E2
    flat = slots_E2.reshape(-1), slots_E2.view(np.float32).reshape(-1), table.words_V2.view(np.float32)
    return _score(table, *flat, order, begin, end, codes_T)


@njit(nogil=True, cache=True)
def _score(table, numbers, values, values_V4, order, begin, end, codes_T):
    """As on a GPU: walk from BATCH positions together, so that their slots are prefetched together.

    Columns of met and weights are starts of walks; the last order - 1 positions before the batch come first.
    Tests of filters and keys are branch-free, because a processor would mispredict them.
    """
    slots_E2, words_V2, _, _, _, node_bits, check_bits, filter_bits = table
    T, ahead, step = len(codes_T), order - 1, uint64(1) << uint64(check_bits)
    tag_shift, node_mask = uint64(node_bits + filter_bits), (uint64(1) << uint64(node_bits)) - uint64(1)
    prob_T, order_T = np.zeros(T, np.float32), np.zeros(T, np.uint8)
    met, weights = np.full((order, ahead + BATCH), NOT_MET), np.zeros((order, ahead + BATCH), np.float32)
    room = BATCH + 1  # one more: rejected candidates are written past the last accepted one
    nodes, filters, words = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.int64)
    starts, goes_on, far = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    found_at = np.empty(room, np.int64)
    slots, tags = np.empty(room, np.uint64), np.empty(room, np.uint64)
    for base in range(-1, T, BATCH):  # -1 is before the first sentence
        size, walks = min(BATCH, T - base), 0
        for i in range(size):
            code = codes_T[base + i] if base + i >= 0 else np.uint32(0)
            word = np.int64(code) - 1 if code else begin
            met[0, ahead + i] = NOT_MET
            if word >= 0:
                met[0, ahead + i], weights[0, ahead + i] = values_V4[word, 2], values_V4[word, 3]
                nodes[walks], filters[walks], starts[walks] = word, words_V2[word, 0], i
                walks += 1
        for k in range(1, order):
            asked = 0
            for a in range(walks):
                t = base + starts[a] + k
                if t < T:
                    word = np.int64(codes_T[t]) - 1 if codes_T[t] else end
                    nodes[asked], words[asked], starts[asked] = nodes[a], word, starts[a]
                    goes_on[asked] = codes_T[t] != 0
                    bit = filter_bit(word, 64 if k == 1 else filter_bits)
                    asked += np.int64(filters[a] >> bit & uint64(1)) & np.int64(word >= 0)
            for a in range(asked):
                slots[a], tags[a] = edge_home(table, nodes[a], words[a])
                prefetch(numbers, np.int64(slots[a] << uint64(1)))
            for i in range(size):
                met[k, ahead + i] = NOT_MET
            walks, fars = 0, 0
            for a in range(asked):
                at, tag = slots[a] << uint64(1), tags[a]
                entry, next_entry = numbers[at], numbers[at + uint64(2)]
                stored, next_stored = entry >> tag_shift, next_entry >> tag_shift
                first = (stored == tag) & (entry != 0)
                second = (stored > tag) & (next_stored == tag + step)
                found = first | second
                entry = next_entry if second else entry
                at = (at + (uint64(second) << uint64(1))) << uint64(1)
                prob, column = values[at + uint64(2)], ahead + starts[a]
                met[k, column], weights[k, column] = prob if found else NOT_MET, values[at + uint64(3)]
                nodes[walks], filters[walks] = np.int64(entry & node_mask), entry >> uint64(node_bits)
                found_at[walks] = starts[a]
                walks += np.int64(found) & goes_on[a]
                far[fars] = a
                fars += np.int64((stored > tag) & (next_stored > tag + step))
            for b in range(fars):
                prefetch(numbers, np.int64((slots[far[b]] + uint64(2)) << uint64(1)))
            for b in range(fars):
                a = far[b]
                slot = probe_edges(table, slots[a] + uint64(2), tags[a] + step + step)
                if slot >= 0:
                    column, entry = ahead + starts[a], slots_E2[slot, 0]
                    met[k, column], weights[k, column] = values[4 * slot + 2], values[4 * slot + 3]
                    nodes[walks], filters[walks] = np.int64(entry & node_mask), entry >> uint64(node_bits)
                    found_at[walks] = starts[a]
                    walks += goes_on[a]
            starts, found_at = found_at, starts
        for i in range(size):
            t, column = base + i, ahead + i
            if t < 0 or (codes_T[t] == 0 and end < 0):
                continue
            prob, matched = met[0, column] if codes_T[t] else values_V4[end, 2], 1
            while matched < order and met[matched, column - matched] != NOT_MET:
                prob = met[matched, column - matched]
                matched += 1
            longest = ahead if t > 0 and codes_T[t - 1] else min(ahead, 1)  # words before t in its sentence
            for m in range(matched, longest + 1):
                if met[m - 1, column - m] == NOT_MET:
                    break
                prob += weights[m - 1, column - m]
            prob_T[t], order_T[t] = prob, matched
        for k in range(order):
            for i in range(ahead):
                met[k, i], weights[k, i] = met[k, size + i], weights[k, size + i]
    return prob_T, order_T


def _cuda(table, order, begin, end, codes_T):
    import cupy

    T = len(codes_T)
    prob_T, order_T = cupy.empty(T, np.float32), cupy.empty(T, np.uint8)
    if T:
        fn = kernel("score/score_by_edges", "score_by_edges")
        args = (*table.map_arrays(check.aligned), order, begin, end, codes_T, T, prob_T, order_T)
        launch(fn, grid_for(T, THREADS - order + 1), THREADS, args, shared_bytes=8 * order * THREADS)
    return prob_T, order_T


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return the text and the trie of `score_tokens`."""
    made = text_and_trie(rng, size)
    table = make_edges(*made["index"][:2], *made["values"][:2])
    return {"table": table.map_arrays(to_host)} | {name: made[name] for name in ("order", "begin", "end", "codes_T")}
