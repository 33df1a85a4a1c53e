"""The words of a model and their ids."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from llvmlite import ir
from numba import njit, types, uint32, uint64
from numba.extending import intrinsic

UNKNOWN = b"<unk>"  # id 0 of every model


class Words:
    """The V words of a model, in the order of their ids; word 0 is <unk>.

    offsets_V  (V + 1,) int64 and
    data       uint8: word v is data[offsets_V[v]:offsets_V[v + 1]]

    Words are bytes; as str they are UTF-8, with a surrogate (as os.fsdecode gives) for each byte that is none.
    """

    def __init__(self, offsets_V: np.ndarray, data: np.ndarray):
        self.offsets_V, self.data = read_only(offsets_V), read_only(data)

    @classmethod
    def of(cls, words: list[str | bytes]) -> Words:
        """Words from a list; the first one is "<unk>"."""
        encoded = [_bytes(word) for word in words]
        offsets_V = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(offsets_V, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets_V) - 1

    def __iter__(self) -> Iterator[str]:
        return map(self.word, range(len(self)))

    def __contains__(self, word: object) -> bool:
        return isinstance(word, (str, bytes)) and (self.id(word) > 0 or _bytes(word) == UNKNOWN)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Words)
            and np.array_equal(self.offsets_V, other.offsets_V)
            and np.array_equal(self.data, other.data)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Words({len(self):,} words)"

    def word(self, v: int) -> str:
        """Word v. Raises IndexError unless 0 <= v < V."""
        return self.symbol(v).decode("utf-8", "surrogateescape")

    def symbol(self, v: int) -> bytes:
        """The bytes of word v. Raises IndexError unless 0 <= v < V."""
        if not 0 <= v < len(self):
            raise IndexError(f"word id {v} is not one of the {len(self):,} ids from 0 on")
        return self.data[self.offsets_V[v] : self.offsets_V[v + 1]].tobytes()

    def id(self, word: str | bytes) -> int:
        """The id of `word`, 0 when it is unknown."""
        symbol = np.frombuffer(_bytes(word), np.uint8)
        return int(find_word(symbol, 0, len(symbol), self.offsets_V, self.data, self.slots_C))

    def ids(self, offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        """ids (n,) uint32 of the n words data[offsets[i]:offsets[i + 1]], 0 for unknown ones; releases the GIL.

        offsets  (n + 1,) int64
        data     uint8
        """
        ids = np.empty(len(offsets) - 1, np.uint32)
        _find_words(read_only(offsets), read_only(data), self.offsets_V, self.data, self.slots_C, ids)
        return ids

    @cached_property
    def slots_C(self) -> np.ndarray:
        """The table in which `find_word` looks words up."""
        slots_C, duplicate = index_words(self)
        if duplicate >= 0:
            raise ValueError(f"word {duplicate} is {self.word(duplicate)!r}, as an earlier one is; give each word once")
        return slots_C


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written, as that of a mapped file: kernels are compiled for these alone."""
    view = array.view()
    view.flags.writeable = False
    return view


def _bytes(word: str | bytes) -> bytes:
    return word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word


def index_words(words: Words) -> tuple[np.ndarray, int]:
    """(slots_C, the first word that an earlier one equals or -1).

    slots_C  (C,) uint64, open addressing: the upper half of a word's hash, then its id; 0 is empty, so <unk>,
             like any word that is not in it, is found as 0
    """
    slots_C = np.zeros(1 << (2 * len(words)).bit_length(), np.uint64)  # less than half of them are used
    return slots_C, _fill_slots(words.offsets_V, words.data, slots_C)


@intrinsic
def _load(typing, array, i):
    """The 8 bytes array[i : i + 8] as a little-endian uint64, at any alignment."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(at, align=1)

    return types.uint64(array, types.int64), generate


@njit(nogil=True, cache=True)
def load_8(text, i):
    """The bytes from i on, 8 or up to the end of the text, as a little-endian uint64."""
    if i + 8 <= len(text):
        return _load(text, i)  # type: ignore[call-arg]
    chunk = uint64(0)
    for k in range(len(text) - i):
        chunk |= uint64(text[i + k]) << uint64(8 * k)
    return chunk


@njit(nogil=True, cache=True)
def _chunk(text, i, stop):
    """The bytes text[i:stop], 8 at most."""
    chunk = load_8(text, i)
    return chunk if stop - i >= 8 else chunk & ((uint64(1) << uint64(8 * (stop - i))) - uint64(1))


@njit(nogil=True, cache=True)
def equal_words(text, start, stop, other, other_start, other_stop):
    """Whether text[start:stop] and other[other_start:other_stop] are the same bytes."""
    if stop - start != other_stop - other_start:
        return False
    for i in range(0, stop - start, 8):
        if _chunk(text, start + i, stop) != _chunk(other, other_start + i, other_stop):
            return False
    return True


@njit(nogil=True, cache=True)
def find_word(text, start, stop, offsets_V, data, slots_C):
    """The id of the word text[start:stop], 0 when it is not in the table."""
    slot = _find_slot(_hash(text, start, stop), text, start, stop, offsets_V, data, slots_C)
    return slots_C[slot] & uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def _find_slot(h, text, start, stop, offsets_V, data, slots_C):
    """The slot that holds a word of hash h, or the empty one where it belongs."""
    mask = uint64(len(slots_C) - 1)
    slot = h & mask
    while slots_C[slot]:
        if (slots_C[slot] ^ h) >> uint64(32) == 0:
            v = slots_C[slot] & uint64(0xFFFFFFFF)
            if equal_words(text, start, stop, data, offsets_V[v], offsets_V[v + uint64(1)]):
                break
        slot = (slot + uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def _hash(text, start, stop):
    """Any function of the bytes that spreads well in both halves; no file holds it."""
    h = uint64(0)
    for i in range(start, stop, 8):
        h = (h ^ _chunk(text, i, stop)) * uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> uint64(32))) * uint64(0xD6E8FEB86659FD93)
        h ^= h >> uint64(32)
    return h


@njit(nogil=True, cache=True)
def _fill_slots(offsets_V, data, slots_C):
    """Enter all words but word 0; return the first duplicate, or -1."""
    for v in range(1, len(offsets_V) - 1):
        start, stop = offsets_V[v], offsets_V[v + 1]
        h = _hash(data, start, stop)
        slot = _find_slot(h, data, start, stop, offsets_V, data, slots_C)
        if slots_C[slot]:
            return v
        slots_C[slot] = (h >> uint64(32)) << uint64(32) | uint64(v)
    return -1


@njit(nogil=True, cache=True)
def _find_words(offsets, words, offsets_V, data, slots_C, ids):
    for i in range(len(ids)):
        ids[i] = uint32(find_word(words, offsets[i], offsets[i + 1], offsets_V, data, slots_C))
