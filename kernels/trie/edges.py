"""The layout of the edge table of a trie, which GPU and CPU share: see `EdgeTable`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, uint64

from .. import check
from ..count.radix_sort import radix_sort
from ..dispatch import array_module

LINE_BYTES = 64  # of a cache of a CPU
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd; as in include/edges.cuh


@dataclass(frozen=True)
class EdgeTable:
    """(node, word) -> child, with the child's values beside it, so that a lookup is one memory access most times.

    slots_E4   (E, 4) uint32, E even: child node, 0 in an empty slot; tag; the bits of the child's log10 probability and
               of its log10 backoff (float32)
    words_V2   (V, 2) float32, the same values of the nodes of single words
    buckets    pairs of slots that a key may be at home in
    word_bits, key_bits, check_bits

    A key is node << word_bits | word, key_bits long, scrambled by a bijection to x; its home is bucket
    x * buckets >> key_bits. Keys lie by rising x, each in the first free slot from its home on, so the layout depends
    on nothing but the keys. A tag is how many slots a key lies past its home, then the last check_bits bits of x:
    with the slot these tell the key, so nothing is found that is not there (Knuth, vol. 3, 6.4, exercise 13).
    """

    slots_E4: Any
    words_V2: Any
    buckets: int
    word_bits: int
    key_bits: int
    check_bits: int


def scramble(keys: Any, bits: int) -> Any:
    """A bijection of uint64 numbers of `bits` bits, 2 to 64."""
    mask, half = np.uint64((1 << bits) - 1), np.uint64(bits // 2)
    keys = keys ^ (keys >> half)
    keys = keys * FIRST & mask
    keys = keys ^ (keys >> half)
    keys = keys * SECOND & mask
    return keys ^ (keys >> half)


def home_bucket(x: Any, buckets: int, bits: int) -> Any:
    """x * buckets >> bits, of uint64 numbers of `bits` bits; fewer than 2**32 buckets."""
    x = x << np.uint64(64 - bits)
    low, high, half, B = x & np.uint64(0xFFFFFFFF), x >> np.uint64(32), np.uint64(32), np.uint64(buckets)
    return (high * B + (low * B >> half)) >> half


@njit(nogil=True, inline="always")
def edge_home(buckets, word_bits, key_bits, check_bits, node, word):
    """(the slot from which on (node, word) may lie, its tag there); as in include/edges.cuh."""
    mask = uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - key_bits)
    half = uint64(key_bits // 2)
    x = (uint64(node) << uint64(word_bits)) | uint64(word)
    x ^= x >> half
    x = x * uint64(0x9E3779B97F4A7C15) & mask
    x ^= x >> half
    x = x * uint64(0xD6E8FEB86659FD93) & mask
    x ^= x >> half
    tag = x & ((uint64(1) << uint64(check_bits)) - uint64(1))
    x <<= uint64(64 - key_bits)
    thirty_two = uint64(32)
    low, high = x & uint64(0xFFFFFFFF), x >> thirty_two
    slot = ((high * uint64(buckets) + (low * uint64(buckets) >> thirty_two)) >> thirty_two) << uint64(1)
    return slot, tag


@njit(nogil=True, inline="always")
def probe_edges(slots_E4, check_bits, slot, tag):
    """The slot that has a key, from its home on; -1 where none has it."""
    slot, step = np.int64(slot), uint64(1) << uint64(check_bits)
    while True:
        child = slots_E4[slot, 0]
        if child == 0:
            return -1
        if slots_E4[slot, 1] == tag:
            return slot
        slot += 1
        tag += step


@njit(nogil=True, inline="always")
def find_edge(slots_E4, buckets, word_bits, key_bits, check_bits, node, word):
    """The slot of (node, word), -1 without one."""
    slot, tag = edge_home(buckets, word_bits, key_bits, check_bits, node, word)
    return probe_edges(slots_E4, check_bits, slot, tag)


def key_layout(words: int, histories: int, buckets: int) -> tuple[int, int, int]:
    """(word_bits, key_bits, check_bits) of an `EdgeTable`."""
    word_bits = max(1, (words - 1).bit_length())
    key_bits = word_bits + max(1, (histories - 1).bit_length())
    return word_bits, key_bits, max(0, -(-(1 << key_bits) // buckets) - 1).bit_length()


def make_edges(word_G: Any, first_child_M: Any, prob_G: Any, backoff_M: Any, load: float = 0.5) -> EdgeTable:
    """The edge table of a trie, beside its arrays (core.trie.Trie), which have fewer than 2**32 nodes.

    prob_G, backoff_M  float32
    load  share of the slots that are used, at most; a little less where keys would lie too far from home
    """
    xp = array_module(word_G)
    G, M, V = len(word_G), len(first_child_M) - 1, int(first_child_M[0])
    word_bits, key_bits, _ = key_layout(V, M, 1)
    if G >= 1 << 32 or key_bits > 64:
        raise OverflowError(f"an edge table holds 2**32 - 1 nodes in keys of 64 bits, not {G:,} in {key_bits}")
    node_E = xp.arange(V, G, dtype=np.uint64)
    parent_E = (xp.searchsorted(first_child_M, node_E.astype(first_child_M.dtype), side="right") - 1).astype(np.uint64)
    check.dtype(prob_G, np.float32)
    check_backoffs(backoff_M, first_child_M)
    x_E = scramble(parent_E << np.uint64(word_bits) | word_G[V:], key_bits)
    x_E, node_E = radix_sort(xp.stack([x_E << np.uint64(64 - key_bits), node_E]), key_bits)
    x_E >>= np.uint64(64 - key_bits)
    buckets = max(1, int(len(x_E) / (2 * load)))
    while True:
        *_, check_bits = key_layout(V, M, buckets)
        home_E = 2 * home_bucket(x_E, buckets, key_bits).astype(np.int64)
        slot_E = _settled(home_E)
        if not len(slot_E) or int((slot_E - home_E).max()) < 1 << 32 >> check_bits:
            break
        buckets = buckets * 5 // 4 + 1
    last = max(2 * buckets, int(slot_E[-1]) + 2 if len(slot_E) else 0)  # a search ends at an empty slot
    slots_E4 = _cleared(last + last % 2, xp)
    values_E = xp.zeros((len(node_E), 4), np.uint32)
    values_E[:, 0] = node_E
    values_E[:, 1] = ((slot_E - home_E) << check_bits) + (x_E & np.uint64((1 << check_bits) - 1)).astype(np.int64)
    node_E = node_E.astype(np.int64)
    values_E[:, 2] = prob_G[node_E].view(np.uint32)
    weights_G = xp.concatenate([backoff_M, xp.zeros(G - M, np.float32)])
    values_E[:, 3] = weights_G[node_E].view(np.uint32)
    slots_E4[slot_E] = values_E
    words_V2 = xp.stack([prob_G[:V], weights_G[:V]], axis=1)
    return EdgeTable(slots_E4, words_V2, buckets, word_bits, key_bits, check_bits)


def check_backoffs(backoff_M: Any, first_child_M: Any) -> None:
    """Raise ValueError where the histories of a trie have no backoffs."""
    if len(backoff_M) != len(first_child_M) - 1:
        raise ValueError(
            f"the trie has {len(backoff_M):,} backoffs for {len(first_child_M) - 1:,} histories, and scores need them; "
            "make it again with backoffs"
        )


def _cleared(slots: int, xp: Any) -> Any:
    """Empty slots; none of them, and no bucket, lies in two lines of a cache."""
    if xp is not np:
        return xp.zeros((slots, 4), np.uint32)
    room = np.zeros(4 * slots + LINE_BYTES // 4, np.uint32)
    start = -room.ctypes.data % LINE_BYTES // 4
    return room[start : start + 4 * slots].reshape(slots, 4)


def _settled(home_E: Any) -> Any:
    """The first free slot from home on, of each key in turn; homes rise."""
    xp = array_module(home_E)
    place_E = xp.arange(len(home_E))
    past_E = home_E - place_E
    step = 1
    while step < len(past_E):  # a running maximum, in log2(E) steps
        past_E = xp.concatenate([past_E[:step], xp.maximum(past_E[step:], past_E[:-step])])
        step *= 2
    return past_E + place_E
