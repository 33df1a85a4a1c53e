"""The hash table from the words of a model to their ids; include/word_table.cuh reads the same layout on a GPU."""

from __future__ import annotations

import numpy as np
from numpy import uint64

from ..compile_cpu import njit
from .load_bytes import word_chunk
from .murmur import find_hash, murmur_hash

HELD = 24  # bytes of a word that its slot holds


def index_words(offsets_V: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, int]:
    """Return (slots_C, the first word that equals an earlier one or -1) for words in host memory.

    Of equal words, the table has the first.

    slots_C  (C,) uint64, an open-addressing table. A slot is four numbers: the first HELD bytes of a word, padded with
             zeros, then its length (upper half) and id (lower half). Word 0 has no slot: `find_word` returns 0 for
             it, as for any unknown word.
    """
    V = len(offsets_V) - 1
    slots_C = np.zeros(4 << (3 * V // 2).bit_length(), np.uint64)  # at most two thirds of the slots are used
    return slots_C, int(_fill_slots(offsets_V, data, slots_C))


@njit(nogil=True, cache=True)
def equal_words(text, start, stop, other, other_start, other_stop):
    """Return whether text[start:stop] and other[other_start:other_stop] are the same bytes."""
    if stop - start != other_stop - other_start:
        return False
    for i in range(0, stop - start, 8):
        if word_chunk(text, start + i, stop) != word_chunk(other, other_start + i, other_stop):
            return False
    return True


@njit(nogil=True, cache=True)
def _mix(h, chunk):
    """Return a word's hash extended by 8 of its bytes; the lower half, which selects the slot, is well mixed."""
    h = (h ^ chunk) * uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> uint64(32))) * uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> uint64(32))


@njit(nogil=True, inline="always")
def held_bytes(text, start, stop):
    """Return (three numbers: the bytes of the word text[start:stop] that a slot holds; the word's hash)."""
    first, second, third = word_chunk(text, start, stop), uint64(0), uint64(0)
    h = _mix(uint64(stop - start), first)
    if stop - start > 8:
        second = word_chunk(text, start + 8, stop)
        h = _mix(h, second)
        if stop - start > 16:
            third = word_chunk(text, start + 16, stop)
            for i in range(start + 16, stop, 8):
                h = _mix(h, word_chunk(text, i, stop))
    return first, second, third, h


@njit(nogil=True, inline="always")
def home_slot(h, slots_C):
    """Return the index in slots_C of the first slot that a word of hash h may be in."""
    return uint64(4) * h & uint64(len(slots_C) - 1)


@njit(nogil=True, inline="always")
def find_slot(held, text, start, stop, offsets_V, data, slots_C):
    """Return the index of the slot that holds the word text[start:stop], or of the empty slot where it belongs.

    held  the result of `held_bytes`
    """
    first, second, third, h = held
    slot = home_slot(h, slots_C)
    while True:
        last = slots_C[slot + uint64(3)]
        other = (slots_C[slot] ^ first) | (slots_C[slot + uint64(1)] ^ second) | (slots_C[slot + uint64(2)] ^ third)
        if other | ((last >> uint64(32)) ^ uint64(stop - start)) == 0:  # one branch: four are mispredicted more often
            v = last & uint64(0xFFFFFFFF)
            if stop - start <= HELD:
                return slot
            if equal_words(text, start + HELD, stop, data, offsets_V[v] + HELD, offsets_V[v + uint64(1)]):
                return slot
        elif last == 0:
            return slot
        slot = (slot + uint64(4)) & uint64(len(slots_C) - 1)


@njit(nogil=True, cache=True)
def find_word(text, start, stop, offsets_V, data, slots_C):
    """Return the id of the word text[start:stop], or 0 if the table lacks it.

    offsets_V  empty: only hashes of words are known, and slots_C is from `index_hashes`
    """
    if len(offsets_V) == 0:
        return find_hash(murmur_hash(text, start, stop), slots_C)
    slot = find_slot(held_bytes(text, start, stop), text, start, stop, offsets_V, data, slots_C)
    return slots_C[slot + uint64(3)] & uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def _fill_slots(offsets_V, data, slots_C):
    """Insert all words but word 0, equal ones once; return the first duplicate, or -1."""
    duplicate = -1
    for v in range(1, len(offsets_V) - 1):
        start, stop = offsets_V[v], offsets_V[v + 1]
        held = first, second, third, _ = held_bytes(data, start, stop)
        slot = find_slot(held, data, start, stop, offsets_V, data, slots_C)
        if slots_C[slot + uint64(3)]:
            duplicate = v if duplicate < 0 else duplicate
            continue
        slots_C[slot], slots_C[slot + uint64(1)], slots_C[slot + uint64(2)] = first, second, third
        slots_C[slot + uint64(3)] = uint64(stop - start) << uint64(32) | uint64(v)
    return duplicate
