"""Find the pairs of suffixes and histories whose keys are in a table (core.kenlm_probing).

A pair's key is base ^ term: a number of the suffix and one of the history. A bit filter answers most pairs; beside it
lies a hash table of the keys, in the same order.
"""

from __future__ import annotations

import numpy as np
from numpy import int64, uint64

from ..compile import njit
from ..intrinsics import trailing_zeros

SLOT_BITS = 5  # 2**SLOT_BITS bits of the filter share a slot of the table
PAIRS_PER_TILE = 1 << 14


@njit(nogil=True, inline="always")
def _bit_of(key, tile_bits, bits):
    """Return the bit of a key in the filter: its lowest `tile_bits` bits, which name a block, then its highest ones."""
    return (key << uint64(64 - tile_bits) | key >> uint64(tile_bits)) >> uint64(64 - bits)


@njit(nogil=True, cache=True)
def fill_filter(keys, tile_bits, bits, filter, table):
    """Set the bit of each key, and put (key, slot) into a hash table in the order of these bits."""
    for slot in range(len(keys)):
        key = keys[slot]
        if key:
            bit = _bit_of(key, tile_bits, bits)
            filter[bit >> uint64(6)] |= uint64(1) << (bit & uint64(63))
            at = int64(bit >> uint64(SLOT_BITS))
            while table[at, 0]:
                at = at + 1 if at + 1 < len(table) else 0
            table[at, 0], table[at, 1] = key, uint64(slot)


@njit(nogil=True, cache=True)
def _slot_of(key, bit, table):
    """Return the slot of a key, or -1."""
    at = int64(bit >> uint64(SLOT_BITS))
    while table[at, 0]:
        if table[at, 0] == key:
            return int64(table[at, 1])
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
def find_pairs(begin, end, base_S, tile_S, begin_S, end_S, term_H, tile_H, tile_bits, bits, filter, table):
    """Return rows (slot, suffix, history) of the pairs of suffixes `begin` to `end` - 1 that have keys in the table.

    Suffixes and histories with the same words between go together in tiles whose keys have the same lowest bits, so
    that a tile reads parts of filter and table that fit a core's cache.
    """
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
                            j = h + trailing_zeros(hits)  # type: ignore[call-arg]
                            hits &= hits - uint64(1)
                            key = base ^ term_H[j]
                            slot = _slot_of(key, _bit_of(key, tile_bits, bits), table)
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
