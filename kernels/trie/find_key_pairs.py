"""Find the pairs of suffixes and histories whose keys are in a hash table, such as that of a KenLM probing model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy import int64, uint64

from mgpu_ngram.kernels.common.count_true import count_true

from .. import check
from ..compile_cpu import njit
from ..dispatch import pick
from ..intrinsics import trailing_zeros
from ..launch import grid_for, kernel, launch

FILTER_BITS = 64  # bits of the CPU's filter for each key
BLOCK_BITS = 17  # of the filter that a core keeps in its cache: 16 KiB
SLOT_BITS = 5  # 2**SLOT_BITS bits of the filter share a slot of the table beside it
TAGS = 1 << 40  # a slot of the table: 24 bits of a key, times TAGS, and a slot of keys_C, plus 1
PAIRS_PER_TILE = 1 << 14
PAIRS_PER_TASK = 1 << 26
GPU_FILTER_BITS = 16  # bits of the GPU's filter for each key: 30 MB for 15 M keys fit the cache of a large GPU


def find_key_pairs(base_S: Any, begin_S: Any, end_S: Any, term_H: Any, keys_C: Any, threads: int = 1) -> Any:
    """Return (slot_G, suffix_G, history_G) int64 of the pairs whose keys are in the table, by suffix, then history.

    base_S   (S,) uint64, a number of each suffix
    begin_S, end_S  (S,) int64: suffix s is paired with histories begin_S[s] to end_S[s] - 1. Two suffixes have the same
             histories or none in common
    term_H   (H,) uint64, a number of each history. The key of a pair is base ^ term; pairs with key 0 are not found
    keys_C   (C,) uint64, a table with linear probing from slot key % C on; 0: an empty slot, of which at least one
             exists
    threads  threads of a CPU
    """
    for array in base_S, term_H, keys_C:
        check.dtype(array, np.uint64)
    for array in begin_S, end_S:
        check.dtype(array, np.int64)
    arrays = {"base_S": base_S, "begin_S": begin_S, "end_S": end_S, "term_H": term_H, "keys_C": keys_C}
    return pick(cpu=_cpu, cuda=_cuda, **arrays)(base_S, begin_S, end_S, term_H, keys_C, threads)


def _cpu(base_S, begin_S, end_S, term_H, keys_C, threads):
    """A bit filter answers most pairs; beside it lies a hash table of parts of the keys, in the same order."""
    bits = max(8, (FILTER_BITS * int(np.count_nonzero(keys_C))).bit_length())
    tile_bits = max(1, bits - BLOCK_BITS)
    filter, table = np.zeros(1 << (bits - 6), np.uint64), np.zeros(1 << (bits - SLOT_BITS), np.uint64)
    _fill(keys_C, tile_bits, bits, filter, table)
    starts_H = np.zeros(len(term_H) + 1, np.int64)
    starts_H[begin_S] = starts_H[end_S] = 1
    tile_S, tile_H = _reversed(base_S, tile_bits), _reversed(term_H, tile_bits)
    by_S, by_H = np.lexsort((tile_S, end_S, begin_S)), np.lexsort((tile_H, np.cumsum(starts_H)[:-1]))
    base_S, tile_S, begin_S, end_S = base_S[by_S], tile_S[by_S], begin_S[by_S], end_S[by_S]
    term_H, tile_H = term_H[by_H], tile_H[by_H]
    pairs_S = np.cumsum(end_S - begin_S)
    pairs = int(pairs_S[-1]) if len(pairs_S) else 0
    cuts = np.searchsorted(pairs_S, np.arange(PAIRS_PER_TASK, pairs, PAIRS_PER_TASK))
    cuts = np.unique([0, *cuts, len(base_S)])

    def task(begin, end):
        suffixes, place = (base_S, tile_S, begin_S, end_S), (keys_C, tile_bits, bits, filter, table)
        return _find_pairs(begin, end, suffixes, (term_H, tile_H), place)

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(task, cuts[:-1].tolist(), cuts[1:].tolist()))
    slot_G, s_G, h_G = np.concatenate([np.empty((0, 3), np.int64), *parts]).T
    suffix_G, history_G = by_S[s_G], by_H[h_G]
    order = np.lexsort((history_G, suffix_G))
    return slot_G[order], suffix_G[order], history_G[order]


def _reversed(keys, bits):
    """Return the lowest bits of keys as uint32, the lowest bit first. Sorted, keys are grouped by any of these bits."""
    tile = np.zeros(len(keys), np.uint32)
    for bit in range(bits):
        tile |= ((keys >> np.uint64(bit)).astype(np.uint32) & np.uint32(1)) << np.uint32(bits - 1 - bit)
    return tile


@njit(nogil=True, inline="always")
def _bit_of(key, tile_bits, bits):
    """Return the bit of a key in the filter: its lowest `tile_bits` bits (the block), then its highest bits."""
    return (key << uint64(64 - tile_bits) | key >> uint64(tile_bits)) >> uint64(64 - bits)


@njit(nogil=True, inline="always")
def _tag(key, tile_bits):
    """Return the bits of a key that its place in the table does not imply, shifted to leave room for a slot."""
    return (key >> uint64(tile_bits)) * uint64(TAGS)


@njit(nogil=True, cache=True)
def _fill(keys, tile_bits, bits, filter, table):
    """Set the bit of each key, and put its tag and slot into a hash table in the order of these bits."""
    for slot in range(len(keys)):
        key = keys[slot]
        if key:
            bit = _bit_of(key, tile_bits, bits)
            filter[bit >> uint64(6)] |= uint64(1) << (bit & uint64(63))
            at = int64(bit >> uint64(SLOT_BITS))
            while table[at]:
                at = at + 1 if at + 1 < len(table) else 0
            table[at] = _tag(key, tile_bits) | uint64(slot + 1)


@njit(nogil=True, cache=True)
def _slot_of(key, keys_C, tile_bits, bits, table):
    """Return the slot of a key, or -1."""
    at, tag, slots = int64(_bit_of(key, tile_bits, bits) >> uint64(SLOT_BITS)), _tag(key, tile_bits), uint64(TAGS - 1)
    while table[at]:
        if table[at] & ~slots == tag:
            slot = int64(table[at] & slots) - 1
            if keys_C[slot] == key:
                return slot
        at = at + 1 if at + 1 < len(table) else 0
    return -1


@njit(nogil=True, inline="always")
def _hits(base, term_H, begin, end, tile_bits, bits, filter):
    """Return the filter's bits of the keys of one suffix and at most 64 histories; without branches."""
    hits = uint64(0)
    for k in range(end - begin):
        bit = _bit_of(base ^ term_H[begin + k], tile_bits, bits)
        hits |= (filter[bit >> uint64(6)] >> (bit & uint64(63)) & uint64(1)) << uint64(k)
    return hits


@njit(nogil=True, cache=True)
def _find_pairs(begin, end, suffixes, histories, place):
    """Return rows (slot, suffix, history) of the pairs of suffixes `begin` to `end` - 1 that have keys in the table.

    Suffixes and histories with the same words between go together in tiles whose keys have the same lowest bits, so
    that a tile reads parts of filter and table that fit a core's cache.
    """
    (base_S, tile_S, begin_S, end_S), (term_H, tile_H) = suffixes, histories
    keys_C, tile_bits, bits, filter, table = place
    found, size, s = np.empty((1024, 3), np.int64), 0, begin
    while s < end:
        first, last, stop = begin_S[s], end_S[s], s + 1
        while stop < end and begin_S[stop] == first and end_S[stop] == last:
            stop += 1
        halvings = 0  # of suffixes and of histories, by their lowest bits
        while halvings < tile_bits and ((stop - s) * (last - first)) >> (2 * halvings + 2) >= PAIRS_PER_TILE:
            halvings += 1
        down = np.uint32(tile_bits - halvings)
        ends = np.zeros((1 << halvings) + 1, np.int64)
        for h in range(first, last):
            ends[(tile_H[h] >> down) + 1] += 1
        ends[0] = first
        for tile in range(1 << halvings):
            ends[tile + 1] += ends[tile]
        while s < stop:
            next_s = s + 1
            while next_s < stop and tile_S[next_s] >> down == tile_S[s] >> down:
                next_s += 1
            for tile in range(1 << halvings):
                for i in range(s, next_s):
                    base = base_S[i]
                    for h in range(ends[tile], ends[tile + 1], 64):
                        hits = _hits(base, term_H, h, min(h + 64, ends[tile + 1]), tile_bits, bits, filter)
                        while hits:
                            j = h + trailing_zeros(hits)
                            hits &= hits - uint64(1)
                            key = base ^ term_H[j]
                            slot = _slot_of(key, keys_C, tile_bits, bits, table)
                            if slot >= 0:
                                if size == len(found):
                                    found = _doubled(found)
                                found[size, 0], found[size, 1], found[size, 2] = slot, i, j
                                size += 1
            s = next_s
    return found[:size]


@njit(nogil=True, cache=True)
def _doubled(found):
    whole = np.empty((2 * len(found), 3), np.int64)
    whole[: len(found)] = found
    return whole


def _cuda(base_S, begin_S, end_S, term_H, keys_C, threads):
    """One warp a suffix. Most tests are one read of the filter, from the GPU's cache."""
    import cupy

    S, C = len(base_S), len(keys_C)
    base_S, begin_S, end_S, term_H, keys_C = map(cupy.ascontiguousarray, (base_S, begin_S, end_S, term_H, keys_C))
    stored = count_true(keys_C != 0)
    bits = max(5, (GPU_FILTER_BITS * stored).bit_length())
    filter = cupy.zeros(1 << (bits - 5), np.uint32)
    launch(kernel("trie/find_key_pairs", "fill_filter"), grid_for(C, 256), 256, (keys_C, C, 64 - bits, filter))
    room, found = stored, None
    while S and (found is None or found > room):  # more pairs than keys: two pairs have one key
        room = found or room
        columns_3G, count = cupy.empty((3, room), np.int64), cupy.zeros(1, np.uint64)
        table = keys_C, C, 64 - bits, filter
        arguments = base_S, begin_S, end_S, S, term_H, *table, count, room, columns_3G
        launch(kernel("trie/find_key_pairs", "find_key_pairs"), grid_for(S, 8), 256, arguments)
        found = int(count[0])
    if not found:
        return (*(cupy.empty(0, np.int64) for _ in range(3)),)
    slot_G, suffix_G, history_G = columns_3G[:, :found]
    order = cupy.argsort(suffix_G * len(term_H) + history_G)
    return slot_G[order], suffix_G[order], history_G[order]


def example(rng: np.random.Generator, size: int = 10_000) -> dict[str, Any]:
    """Return groups of a few suffixes and histories, one group of many, and a table with keys of some pairs."""
    H = size // 2
    cuts = np.unique([0, H, *rng.integers(min(H, 300), H + 1, H // 8)])
    group_S = np.where(rng.random(size) < 0.1, 0, rng.integers(0, max(1, len(cuts) - 1), size))
    begin_S, end_S = cuts[group_S], cuts[np.minimum(group_S + 1, len(cuts) - 1)]
    base_S, term_H = (rng.integers(0, 1 << 63, n, np.uint64) for n in (size, H))
    some = np.flatnonzero((end_S > begin_S) & (rng.random(size) < 0.5))
    keys = base_S[some] ^ term_H[rng.integers(begin_S[some], end_S[some])]
    keys = np.unique(np.concatenate([keys, rng.integers(1, 1 << 63, size // 4, np.uint64)]))
    keys_C = np.zeros(max(len(keys) + 1, 3 * len(keys) // 2), np.uint64)
    keys_C[place_keys(keys, len(keys_C))] = keys
    return {"base_S": base_S, "begin_S": begin_S, "end_S": end_S, "term_H": term_H, "keys_C": keys_C}


@njit(nogil=True, cache=True)
def place_keys(keys, slots):
    """Return (G,) int64: the slots of distinct keys in a table with linear probing."""
    used, slot_G = np.zeros(slots, np.uint8), np.empty(len(keys), np.int64)
    for g in range(len(keys)):
        slot = int64(keys[g] % uint64(slots))
        while used[slot]:
            slot = slot + 1 if slot + 1 < slots else int64(0)
        used[slot], slot_G[g] = 1, slot
    return slot_G
