"""The symbols of counted text, with counts and first positions: of a corpus by id, or of chunks by hash.

A model keeps its words without counts (`core.ngrams.words`). Counting tasks read hashes alone (`engine.count.lexicon`).
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import uint64

from mgpu_ngram.core.lazy_import import LazyModule
from mgpu_ngram.core.storage.crc import PartCrc
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.count.suffix_texts import WordTexts, word_texts

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

SPECIALS = (b"<unk>", b"<s>", b"</s>")  # the first words of every word vocabulary, with these ids:
UNK_ID, START_ID, END_ID = 0, 1, 2


@dataclass(frozen=True)
class Vocabulary:
    """V symbols with their counts and first positions.

    unit            "word", "byte" or "id"
    offsets_V       (V + 1,) int64
    data            uint8: symbol v is data[offsets_V[v]:offsets_V[v + 1]]; a word's bytes, or one
                    byte, or a token id as 4 little-endian bytes
    counts_V        (V,) int64, occurrences in the corpus
    first_source_V  (V,) int32, the input of the first occurrence, -1 if there is none
    first_offset_V  (V,) int64, byte offset of the first occurrence in the (decompressed) input

    Ids of words: <unk> 0, <s> 1, </s> 2, then by falling count, ties by bytes. Bytes and token ids: only those that
    occur, by rising value.
    """

    unit: str
    offsets_V: np.ndarray
    data: np.ndarray
    counts_V: np.ndarray
    first_source_V: np.ndarray
    first_offset_V: np.ndarray

    def __len__(self) -> int:
        return len(self.counts_V)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields: another thread may compute a cached property while the object is pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def symbol(self, v: int) -> bytes:
        """Return the bytes of symbol v."""
        return self.data[self.offsets_V[v] : self.offsets_V[v + 1]].tobytes()

    @cached_property
    def as_text(self) -> bool:
        """Whether the symbols are words and each is valid UTF-8; computed once."""
        return vocabulary_is_text(self)

    @cached_property
    def texts(self) -> WordTexts:
        """The words as `join_texts` takes them; made once."""
        return word_texts(self.offsets_V, self.data)

    def arrays(self) -> dict[str, Any]:
        """Return its arrays by name."""
        return {name: getattr(self, name) for name in SYMBOL_ARRAYS if name != "hash_V"}

    def with_arrays(self, named: dict[str, Any]) -> Vocabulary:
        """Return the vocabulary with other arrays, such as views of a file."""
        return replace(self, **named)


def words_to_arrow(offsets_V: np.ndarray, data: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """Return words as an Arrow array, without a copy.

    kind  large_binary by default; large_string is not validated
    """
    buffers = [None, pa.py_buffer(offsets_V), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.large_binary(), len(offsets_V) - 1, buffers)


def words_from_arrow(words: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets_V (V + 1,) int64 from 0, and data uint8, of an Arrow array of large_binary."""
    if len(words) == 0:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets, data = words.buffers()
    ends = np.frombuffer(offsets, np.int64)[words.offset : words.offset + len(words) + 1]
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return ends - ends[0], whole[ends[0] : ends[-1]]


def vocabulary_is_text(vocabulary: Vocabulary) -> bool:
    """Return whether the symbols are words and each is valid UTF-8."""
    if vocabulary.unit != "word":
        return False
    try:
        # No cast: it would import pyarrow.compute, which takes 0.04 s.
        words_to_arrow(vocabulary.offsets_V, vocabulary.data, pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class SymbolIndex:
    """Finds the id of a symbol: an open-addressing table over the bytes of a vocabulary's symbols."""

    def __init__(self, vocabulary: Vocabulary):
        capacity = 1 << (2 * len(vocabulary)).bit_length()  # less than half of the slots are used
        self.vocabulary = vocabulary
        self.slots_C = np.full(capacity, -1, np.int32)
        _index_symbols(vocabulary.offsets_V, vocabulary.data, self.slots_C)

    def find(self, symbol: bytes) -> int:
        """Return the id of `symbol`, or -1 if the vocabulary lacks it."""
        offsets_V, data = self.vocabulary.offsets_V, self.vocabulary.data
        return int(self.slots_C[_slot_of(np.frombuffer(symbol, np.uint8), offsets_V, data, self.slots_C)])


@njit(nogil=True, cache=True)
def _slot_of(symbol, offsets_V, data, slots_C):
    """Return the slot that holds `symbol`, or the empty slot where it belongs."""
    h = uint64(0xCBF29CE484222325)  # FNV-1a
    for c in symbol:
        h = (h ^ uint64(c)) * uint64(0x100000001B3)
    slot = (h ^ (h >> uint64(32))) & uint64(len(slots_C) - 1)
    while slots_C[slot] >= 0:
        at, end = offsets_V[slots_C[slot]], offsets_V[slots_C[slot] + 1]
        if end - at == len(symbol):
            i = 0
            while i < len(symbol) and data[at + i] == symbol[i]:
                i += 1
            if i == len(symbol):
                break
        slot = (slot + uint64(1)) & uint64(len(slots_C) - 1)
    return slot


@njit(nogil=True, cache=True)
def _index_symbols(offsets_V, data, slots_C):
    for v in range(len(offsets_V) - 1):
        slots_C[_slot_of(data[offsets_V[v] : offsets_V[v + 1]], offsets_V, data, slots_C)] = v


class HashCollision(Exception):
    """Two words have the same 64-bit hash under this seed; the run starts again with the next seed."""


class SpecialInText(Exception):
    """<unk>, <s> or </s> occurs in a text that must not contain it. Arguments: source_index, offset, word."""


SYMBOL_ARRAYS = ("hash_V", "offsets_V", "data", "counts_V", "first_source_V", "first_offset_V")


@dataclass
class LocalVocabulary:
    """The symbols of one or more chunks before they become a `Vocabulary`; arrays all NumPy or all CuPy.

    hash_V  (V,) uint64, by which symbols are joined; the other arrays as in `Vocabulary`
    """

    hash_V: Any
    offsets_V: Any
    data: Any
    counts_V: Any
    first_source_V: Any
    first_offset_V: Any
    tokens: int = 0
    lines: int = 0
    unfinished_lines: int = 0  # number of the lines that get no </s>; see `LmplzText`
    size_bytes: int = 0
    checksums: list[PartCrc] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.columns())

    def columns(self) -> list[Any]:
        """Its arrays in the order of `SYMBOL_ARRAYS`."""
        return [getattr(self, name) for name in SYMBOL_ARRAYS]

    def arrays(self) -> dict[str, Any]:
        """Return its arrays by name."""
        return {name: getattr(self, name) for name in SYMBOL_ARRAYS}

    def with_arrays(self, named: dict[str, Any]) -> LocalVocabulary:
        """Return the vocabulary with other arrays, such as of another device."""
        return replace(self, **named)
