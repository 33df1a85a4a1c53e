"""The edge table of a trie, whose layout GPU and CPU share: see `EdgeTable`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64

from mgpu_ngram.kernels.common.radix_sort import radix_sort

from .. import check
from ..common.wide_products import wide_product
from ..compile_cpu import njit
from ..dispatch import array_module
from ..intrinsics import multiply_high
from .child_filters import child_filters
from .edge_keys import edge_keys, scramble

LINE_BYTES = 64  # bytes of a cache line of a CPU


class EdgeTable(NamedTuple):
    """A hash table (node, word) -> child and its values; most lookups take one memory access.

    slots_E2   (E, 2) uint64, E even. The first number is an entry, 0 in an empty slot: the child node in the lowest
               node_bits bits, then the filter of the child's own children (`child_filters`), then a tag in the
               remaining bits. The second number is the child's log10 probability (lower half) and log10 backoff (upper
               half), as float32
    words_V2   (V, 2) uint64, the same for the nodes of single words, with a 64-bit filter instead of an entry
    buckets    number of home buckets, of two slots each
    word_bits, key_bits, node_bits, check_bits, filter_bits

    A key is node << word_bits | word, key_bits long. A bijection scrambles it to x. The integer part of
    x * buckets / 2**key_bits is its home bucket; the first check_bits bits of the fraction distinguish keys of one
    home. Keys are stored by rising x, each in the first free slot from its home on, so the keys alone determine the
    layout.

    A tag is the distance of a key from its home in slots, followed by the complement of its check_bits bits. Slot
    and tag determine the key, so every match is exact (Knuth, vol. 3, 6.4, exercise 13). For the same slot, a greater
    key has a smaller tag: its home is later, or its fraction is greater; an empty slot has tag 0. So a search ends at
    the first tag that is not above its own.
    """

    slots_E2: Any
    words_V2: Any
    buckets: int
    word_bits: int
    key_bits: int
    node_bits: int
    check_bits: int
    filter_bits: int

    def map_arrays(self, fn: Callable[[Any], Any]) -> EdgeTable:
        """Return the table with `fn` applied to its arrays, such as a copy to a device."""
        return self._replace(slots_E2=fn(self.slots_E2), words_V2=fn(self.words_V2))


@njit(nogil=True, inline="always")
def edge_home(table, node, word):
    """Return (the first slot that (node, word) may be in, its tag there); as in include/edges.cuh."""
    x = scramble(uint64(node) << uint64(table.word_bits) | uint64(word), table.key_bits) << uint64(64 - table.key_bits)
    slot = multiply_high(x, uint64(table.buckets)) << uint64(1)
    return slot, ~(x * uint64(table.buckets)) >> uint64(64 - table.check_bits)


@njit(nogil=True, inline="always")
def probe_edges(table, slot, tag):
    """Return the slot of a key, searched from its home on, or -1."""
    shift, step = uint64(table.node_bits + table.filter_bits), uint64(1) << uint64(table.check_bits)
    slot = np.int64(slot)
    while table.slots_E2[slot, 0] >> shift > tag:
        slot += 1
        tag += step
    entry = table.slots_E2[slot, 0]
    return slot if entry != 0 and entry >> shift == tag else -1


@njit(nogil=True, inline="always")
def find_edge(table, node, word):
    """Return (child, its slot) of (node, word), or (-1, -1)."""
    slot, tag = edge_home(table, node, word)
    found = probe_edges(table, slot, tag)
    if found < 0:
        return np.int64(-1), found
    return np.int64(table.slots_E2[found, 0] & ((uint64(1) << uint64(table.node_bits)) - uint64(1))), found


def key_layout(words: int, histories: int, nodes: int, buckets: int) -> tuple[int, int, int, int]:
    """Return (word_bits, key_bits, node_bits, check_bits) of an `EdgeTable`."""
    word_bits = max(1, (words - 1).bit_length())
    key_bits = word_bits + max(1, (histories - 1).bit_length())
    check_bits = max(1, key_bits + 1 - buckets.bit_length())  # fractions of a home are buckets / 2**key_bits apart
    return word_bits, key_bits, max(1, (nodes - 1).bit_length()), check_bits


def make_edges(word_G: Any, first_child_M: Any, prob_G: Any, backoff_M: Any, load: float = 0.5) -> EdgeTable:
    """Return the edge table of a trie (core.trie.Trie).

    prob_G, backoff_M  float32
    load  greatest share of used slots; it is lowered if entries would have no bit left for a filter

    Raises OverflowError if the keys of the trie's histories and words need more than 64 bits.
    """
    xp = array_module(word_G)
    G, M, V = len(word_G), len(first_child_M) - 1, int(first_child_M[0])
    word_bits, key_bits, node_bits, _ = key_layout(V, M, G, 1)
    if key_bits > 64:
        raise OverflowError(f"{M:,} histories by {V:,} words need keys of {key_bits} bits, and an edge table holds 64")
    check.dtype(prob_G, np.float32)
    require_backoffs(backoff_M, first_child_M)
    x_E, node_E = radix_sort(edge_keys(word_G, first_child_M, word_bits, key_bits), key_bits)
    buckets = max(1, int(len(x_E) / (2 * load)))
    while True:
        *_, check_bits = key_layout(V, M, G, buckets)
        slot_E, past_E, fraction_E = _placed(x_E, buckets)
        filter_bits = 64 - node_bits - check_bits - (int(past_E.max()).bit_length() if len(past_E) else 0)
        if filter_bits > 0:
            break
        buckets = buckets * 5 // 4 + 1
    filter_G = xp.concatenate([child_filters(word_G, first_child_M, V, filter_bits), xp.zeros(G - M, np.uint64)])
    value_G = xp.stack([prob_G, xp.concatenate([backoff_M, xp.zeros(G - M, np.float32)])], axis=1).view(np.uint64)
    tag_E = past_E << np.uint64(check_bits) | ~fraction_E >> np.uint64(64 - check_bits)
    at_E = node_E.view(np.int64)
    entry_E = (tag_E << np.uint64(filter_bits) | filter_G[at_E]) << np.uint64(node_bits) | node_E
    slots_E2 = _cleared(max(2 * buckets, int(slot_E[-1]) + 2 if len(slot_E) else 0), xp)  # empty slots end searches
    slots_E2[slot_E] = xp.stack([entry_E, value_G[at_E, 0]], axis=1)
    words_V2 = xp.stack([filter_G[:V], value_G[:V, 0]], axis=1)
    return EdgeTable(
        slots_E2=slots_E2,
        words_V2=words_V2,
        buckets=buckets,
        word_bits=word_bits,
        key_bits=key_bits,
        node_bits=node_bits,
        check_bits=check_bits,
        filter_bits=filter_bits,
    )


def require_backoffs(backoff_M: Any, first_child_M: Any) -> None:
    """Raise ValueError if the histories of a trie have no backoffs."""
    if len(backoff_M) != len(first_child_M) - 1:
        raise ValueError(
            f"the trie has {len(backoff_M):,} backoffs for {len(first_child_M) - 1:,} histories, and scores need them; "
            "make it again with backoffs"
        )


def _placed(x_E: Any, buckets: int) -> tuple[Any, Any, Any]:
    """Return (slot_E int64, slots past its home, fraction that distinguishes keys of one home) of each key."""
    bucket_E, fraction_E = wide_product(x_E, buckets)
    home_E = (bucket_E << np.uint64(1)).view(np.int64)
    slot_E = _settled(home_E)
    return slot_E, (slot_E - home_E).view(np.uint64), fraction_E


def _cleared(slots: int, xp: Any) -> Any:
    """Return an even number of empty slots. No slot and no bucket crosses a cache line."""
    slots += slots % 2
    if xp is not np:
        return xp.zeros((slots, 2), np.uint64)
    room = np.zeros(2 * slots + LINE_BYTES // 8, np.uint64)
    start = -room.ctypes.data % LINE_BYTES // 8
    return room[start : start + 2 * slots].reshape(slots, 2)


def _settled(home_E: Any) -> Any:
    """Return the first free slot from its home on, for each key in turn; homes rise."""
    xp = array_module(home_E)
    place_E = xp.arange(len(home_E))
    past_E = home_E - place_E
    step = 1
    while step < len(past_E):  # a running maximum, in log2(E) steps
        past_E = xp.concatenate([past_E[:step], xp.maximum(past_E[step:], past_E[:-step])])
        step *= 2
    return past_E + place_E
