"""The words of a model and their ids, without counts; those of counted text are in `core.counts.vocabulary`."""

# mypy: allow-untyped-defs

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy import uint32

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.utf8 import to_bytes, to_text
from mgpu_ngram.kernels.common.ascii import SPACE
from mgpu_ngram.kernels.common.murmur import index_hashes
from mgpu_ngram.kernels.common.word_table import find_word, index_words
from mgpu_ngram.kernels.compile_cpu import njit, read_only

UNKNOWN = b"<unk>"  # id 0 of every model
MAX_LINE_BYTES = 2 << 30  # with other data that is read at once below 4 GiB, because positions are uint32
_WORD = re.compile(r"\S+", re.ASCII)


class Words:
    """The V words of a model, in the order of their ids; word 0 is <unk>.

    offsets_V  (V + 1,) int64
    data       uint8: word v is data[offsets_V[v]:offsets_V[v + 1]]

    Words are bytes. As str they are UTF-8, with a surrogate for each invalid byte (as in os.fsdecode).
    """

    def __init__(self, offsets_V: np.ndarray, data: np.ndarray):
        self.offsets_V, self.data = read_only(offsets_V), read_only(data)

    @classmethod
    def of(cls, words: list[str | bytes]) -> Words:
        """Return the words of a list; the first one must be "<unk>"."""
        encoded = [_bytes(word) for word in words]
        offsets_V = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(offsets_V, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets_V) - 1

    def __iter__(self) -> Iterator[str]:
        return map(self.word, range(len(self)))

    def __contains__(self, word: object) -> bool:
        return isinstance(word, (str, bytes)) and (self.id(word) > 0 or word in (UNKNOWN, UNKNOWN.decode()))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Words)
            and np.array_equal(self.offsets_V, other.offsets_V)
            and np.array_equal(self.data, other.data)
        )

    __hash__ = None  # type: ignore[assignment]  # __eq__ compares arrays

    def __repr__(self) -> str:
        return f"Words({len(self):,} words)"

    def word(self, v: int) -> str:
        """Return word v as str. Raises IndexError unless 0 <= v < V."""
        return to_text(self.symbol(v))

    def symbol(self, v: int) -> bytes:
        """Return the bytes of word v. Raises IndexError unless 0 <= v < V, InputError unless v is a whole number."""
        try:
            v = operator.index(v)
        except TypeError:
            raise InputError(f"word id is {v!r} but must be a whole number") from None
        if not 0 <= v < len(self):
            raise IndexError(f"word id {v} is not one of the {len(self):,} ids from 0 on")
        symbol: bytes = self.data[self.offsets_V[v] : self.offsets_V[v + 1]].tobytes()
        return symbol

    def id(self, word: str | bytes) -> int:
        """Return the id of `word`, 0 if it is unknown. Raises InputError unless it is str or bytes."""
        if not isinstance(word, (str, bytes)):
            raise InputError(f"word is {word!r} but must be str or bytes")
        symbol = np.frombuffer(_bytes(word), np.uint8)
        return int(find_word(symbol, 0, len(symbol), *self.table))

    def find(self, word: bytes) -> int:
        """As `id`, by a search of all words: without the index, which takes 50 times as long to make."""
        found_R = np.flatnonzero(np.diff(self.offsets_V) == len(word))
        for k, byte in enumerate(word):
            found_R = found_R[self.data[self.offsets_V[found_R] + k] == byte]
        return int(found_R[0]) if len(found_R) else 0

    def ids(self, offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Return ids (n,) uint32 of the n words data[offsets[i]:offsets[i + 1]], 0 for unknown ones; releases the GIL.

        offsets  (n + 1,) int64
        data     uint8
        """
        ids = np.empty(len(offsets) - 1, np.uint32)
        _find_words(read_only(offsets), read_only(data), *self.table, ids)
        return ids

    def ids_of_ngrams(self, offsets: np.ndarray, data: np.ndarray, order: int) -> np.ndarray:
        """Return ids (n, order) uint32 of the words of n n-grams, 0 for unknown words; releases the GIL.

        offsets  (n + 1,) int64
        data     uint8: n-gram i is data[offsets[i]:offsets[i + 1]], its words separated by one space
        """
        ids = np.empty((len(offsets) - 1, order), np.uint32)
        _find_ngrams(read_only(offsets), read_only(data), *self.table, ids)
        return ids

    def kept(self, kept_V: np.ndarray) -> Words:
        """Return the words where `kept_V` (V,) is true; word 0 must stay."""
        if kept_V.all():
            return self
        lengths_V = np.diff(self.offsets_V)
        offsets_V = np.concatenate([[0], np.cumsum(lengths_V[kept_V])])
        return Words(offsets_V, self.data[: self.offsets_V[-1]][np.repeat(kept_V, lengths_V)])

    @cached_property
    def slots_C(self) -> np.ndarray:
        """The table in which `find_word` looks words up."""
        slots_C, duplicate = index_words(self.offsets_V, self.data)
        if duplicate >= 0:
            raise ValueError(f"word {duplicate} is {self.word(duplicate)!r}, as an earlier one is; give each word once")
        return slots_C

    @property
    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The last arguments of `find_word`: (offsets_V, data, slots_C)."""
        return self.offsets_V, self.data, self.slots_C

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that store the words, by name."""
        return {"offsets_V": self.offsets_V, "data": self.data}


class HashedWords(Words):
    """The words of a model that stores only their hashes. Words of a text can be looked up, but not listed.

    hash_V  (V,) uint64, `murmur_hash` of each word; the entry of <unk> is unused
    """

    def __init__(self, hash_V: np.ndarray, name: str):
        """`name` of the file, for messages."""
        self.hash_V, self._name = hash_V, name

    def __len__(self) -> int:
        return len(self.hash_V)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedWords) and np.array_equal(self.hash_V[1:], other.hash_V[1:])

    __hash__ = None

    @property
    def offsets_V(self) -> np.ndarray:
        """Raise InputError, because the model has no words."""
        raise InputError(
            f"{self._name!r} holds only hashes of its words, so it can only score text. For other uses, build it with "
            "its words (build_binary without -v), or give the ARPA file"
        )

    data = offsets_V

    def symbol(self, v: int) -> bytes:
        """Return b"<unk>" for word 0. Raises InputError for other words."""
        return self.offsets_V.tobytes() if v else UNKNOWN

    def find(self, word: bytes) -> int:
        return self.id(word)

    @cached_property
    def slots_C(self) -> np.ndarray:
        return index_hashes(self.hash_V)

    @property
    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return read_only(np.empty(0, np.int64)), read_only(np.empty(0, np.uint8)), self.slots_C

    def kept(self, kept_V: np.ndarray) -> HashedWords:
        return HashedWords(self.hash_V[kept_V], self._name)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"hash_V": self.hash_V[1:]}


def split_words(text: str) -> list[str]:
    """Return the words of a string, between the white space of C's isspace; `str.split` knows more white space."""
    return _WORD.findall(text)


def line_of(text: str | bytes, name: str) -> bytes:
    """Return a string of words as a line; newlines become white space. Raises InputError, which names `name`."""
    if not isinstance(text, (str, bytes)):
        raise InputError(f"{name} is {text!r} but must be a string of words")
    try:
        line = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        what = f"has {error.object[error.start]!r} at {error.start}, which UTF-8 cannot write"
        raise InputError(f"{name} {what} ({error.reason}); leave it out, or give bytes") from None
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{name} has {len(line):,} bytes but may have at most {MAX_LINE_BYTES:,}; split it")
    return line.replace(b"\n", b" ") + b"\n"


def _bytes(word: str | bytes) -> bytes:
    return to_bytes(word) if isinstance(word, str) else word


@njit(nogil=True, cache=True)
def _find_words(offsets, words, offsets_V, data, slots_C, ids):
    for i in range(len(ids)):
        ids[i] = uint32(find_word(words, offsets[i], offsets[i + 1], offsets_V, data, slots_C))


@njit(nogil=True, cache=True)
def _find_ngrams(offsets, ngrams, offsets_V, data, slots_C, ids):
    G, N = ids.shape
    for g in range(G):
        at, end = offsets[g], offsets[g + 1]
        for n in range(N):
            stop = end if n == N - 1 else at
            while stop < end and ngrams[stop] != SPACE:
                stop += 1
            ids[g, n] = uint32(find_word(ngrams, at, stop, offsets_V, data, slots_C))
            at = min(stop + 1, end)
