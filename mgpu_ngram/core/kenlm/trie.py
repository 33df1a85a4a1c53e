"""The n-grams of KenLM's tries: plain, quantised, with array pointers, or both.

KenLM's trie is reversed: its root is the last word, the children of w2 ... wn are the n-grams w1 ... wn. An order is an
array of entries with as few bits as possible: the word w1, the values, and the number of its first child (lm/trie.cc).
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import uint64

from mgpu_ngram.core.kenlm.binary_file import ARRAY, QUANTIZED, TRIE, UNIGRAM_V, KenlmFile, plain_backoffs
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import load_u64
from mgpu_ngram.kernels.score.score_by_keys import SIGN

QUANTIZER_VERSION, ARRAY_VERSION = 2, 0
PROB_BITS, BACKOFF_BITS = 31, 32  # bits of values without quantisation; a probability lacks its sign, always negative
PAD_BYTES = 8  # after an array of entries, so that 8 bytes can be read at each


@dataclass(frozen=True)
class Packing:
    """How the n-grams of a KenLM trie are packed, from order 2 on.

    prob_bits     bits of the codes for probabilities, 1 to 25; 0: float32 values
    backoff_bits  bits of the codes for backoffs, 2 to 25: KenLM reserves two codes for zeros
    pointer_bits  the greatest number of high bits of pointers that a table holds, up to 255; None: entries hold whole
                  pointers
    """

    prob_bits: int = 0
    backoff_bits: int = 0
    pointer_bits: int | None = None

    @property
    def kind(self) -> int:
        """The type of the model in its header."""
        return TRIE + QUANTIZED * bool(self.prob_bits) + ARRAY * (self.pointer_bits is not None)


@dataclass(frozen=True)
class Pointers:
    """The pointers of the `count` n-grams of an order to the `children` of the next order.

    chopped  high bits of a pointer that are stored in a table, not in the entry (lm/bhiksha.cc)
    """

    count: int
    children: int
    chopped: int = 0

    @classmethod
    def chopping(cls, count: int, children: int, most: int) -> Pointers:
        """Return the pointers that take the fewest bits in total, with at most `most` chopped bits."""
        bits = children.bit_length()
        cost = [(children >> (bits - x)) * 64 - (count + 1) * x for x in range(min(bits, most) + 1)]
        return cls(count, children, cost.index(min(cost)))

    @property
    def inline(self) -> int:
        """Bits of a pointer in an entry."""
        return self.children.bit_length() - self.chopped

    @property
    def values(self) -> int:
        """Values of the table of high bits."""
        return (self.children >> self.inline) + 1


def table_bytes(pointers: Pointers) -> int:
    """Return the bytes of the table of high bits: a header, the values, and room to align them."""
    return 8 + 8 * pointers.values + 7


@dataclass(frozen=True)
class Entries:
    """An array of `count` entries of `bits` bits each, from byte `at` of a file."""

    at: int
    bits: int
    count: int

    @property
    def end(self) -> int:
        """The offset after the array, which has room for one more entry: the end of the last one's children."""
        return self.at + ((1 + self.count) * self.bits + 7) // 8 + PAD_BYTES


class KenlmTrie:
    """The sections of a KenLM trie.

    end  the offset after the n-grams
    """

    def __init__(self, file: KenlmFile):
        """Find the sections. Raises InputError if the file is too short for them."""
        self._file, counts, at = file, file.header.counts, file.search
        self._prob_bits, self._backoff_bits = PROB_BITS, BACKOFF_BITS
        self._centers: list[np.ndarray] = []
        if file.header.quantized:
            at = self._read_centers(at)
        self._unigrams = file.array(at, UNIGRAM_V, counts[0] + 2)
        at += self._unigrams.nbytes
        self._word_bits = counts[0].bit_length()
        self._pointers: list[Pointers] = []
        self._tables: list[np.ndarray] = []
        self._entries: list[Entries] = []
        most = 0
        if file.header.has_arrays and len(counts) > 2:
            version, most = file.array(at, np.dtype(np.uint8), 2).tolist()
            if version != ARRAY_VERSION:
                raise file.damaged(f"its pointers have version {version} instead of {ARRAY_VERSION}")
        for count, children in zip(counts[1:-1], counts[2:], strict=True):
            pointers = Pointers.chopping(count, children, most)
            if file.header.has_arrays:
                table = file.array(-(-at // 8) * 8 + 8, np.dtype("<u8"), pointers.values)
                self._tables.append(table)
                at += table_bytes(pointers)
            bits = self._word_bits + self._prob_bits + self._backoff_bits + pointers.inline
            self._pointers.append(pointers)
            at = self._add(Entries(at, bits, count))
        self.end = self._add(Entries(at, self._word_bits + self._prob_bits, counts[-1]))

    def levels(self) -> Iterator[Ngrams]:
        """Yield the n-grams of orders 1 to N. Raises InputError for a damaged file."""
        V = len(self._file.hash_V)
        ids = np.arange(V, dtype=np.uint32)[:, None]
        yield Ngrams(ids, self._unigrams["prob"][:V].copy(), plain_backoffs(self._unigrams["backoff"][:V]))
        first = self._unigrams["next"][: V + 1].astype(np.int64)
        for n in range(2, self._file.header.order + 1):
            word_G = self._field(n, 0, self._word_bits, np.uint32)
            if not (first[0] == 0 and first[-1] == len(word_G) and (first[1:] >= first[:-1]).all()):
                raise self._file.damaged(f"its {n - 1}-grams do not cover all {n}-grams")
            if (word_G >= V).any():
                raise self._file.damaged(f"an id in its {n}-grams is not one of the ids of {V:,} words")
            whole = np.empty((len(word_G), n), np.uint32)
            whole[:, 0] = word_G
            whole[:, 1:] = np.repeat(ids, np.diff(first), axis=0)
            ids = whole
            yield Ngrams(ids, *self._values(n))
            if n < self._file.header.order:
                first = self._first_children(n)

    def _read_centers(self, at: int) -> int:
        """Read the values of codes; return the offset after them."""
        file = self._file
        version, prob_bits, backoff_bits = file.array(at, np.dtype(np.uint8), 3).tolist()
        if version != QUANTIZER_VERSION or not 1 <= min(prob_bits, backoff_bits) <= max(prob_bits, backoff_bits) <= 25:
            raise file.damaged(f"its codes have version {version}, {prob_bits} and {backoff_bits} bits")
        self._prob_bits, self._backoff_bits = prob_bits, backoff_bits
        at += 8
        for bits in [prob_bits, backoff_bits] * (file.header.order - 2) + [prob_bits]:
            self._centers.append(file.array(at, np.dtype("<f4"), 1 << bits))
            at += self._centers[-1].nbytes
        return at

    def _add(self, entries: Entries) -> int:
        self._file.check_size(entries.end)
        self._entries.append(entries)
        return entries.end

    def _field(self, n: int, begin: int, bits: int, dtype: type, more: int = 0) -> np.ndarray:
        """Return `bits` bits of all entries of an order, from bit `begin` of each, and of `more` entries after them."""
        entries = self._entries[n - 2]
        values: np.ndarray = np.empty(entries.count + more, dtype)
        _unpack(self._file.data, 8 * entries.at + begin, entries.bits, bits, values)
        return values

    def _values(self, n: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the probabilities and backoffs of an order."""
        at, longest = self._word_bits, n == self._file.header.order
        if self._centers:  # the code of the backoff precedes that of the probability
            probs, backoffs = self._centers[2 * n - 4], None if longest else self._centers[2 * n - 3]
            skipped = 0 if longest else self._backoff_bits
            prob = probs[self._field(n, at + skipped, self._prob_bits, np.uint32)]
            if backoffs is None:
                return prob, None
            return prob, plain_backoffs(backoffs[self._field(n, at, self._backoff_bits, np.uint32)])
        prob = (self._field(n, at, PROB_BITS, np.uint32) | SIGN).view(np.float32)
        if longest:
            return prob, None
        return prob, plain_backoffs(self._field(n, at + PROB_BITS, BACKOFF_BITS, np.uint32).view(np.float32))

    def _first_children(self, n: int) -> np.ndarray:
        """Return (count + 1,) int64: the first child of each n-gram of an order, and the end of the last one's."""
        pointers = self._pointers[n - 2]
        begin = self._word_bits + self._prob_bits + self._backoff_bits
        first = self._field(n, begin, pointers.inline, np.int64, more=1)
        if not self._tables:
            return first
        high = np.searchsorted(self._tables[n - 2], np.arange(len(first), dtype=np.uint64), "right") - 1
        children: np.ndarray = high << pointers.inline | first
        return children


@njit(nogil=True, cache=True)
def _unpack(data, begin, stride, bits, values):
    """Set values[i] to the `bits` bits (57 at most) of data from bit begin + i * stride on."""
    mask = (uint64(1) << uint64(bits)) - uint64(1)
    for i in range(len(values)):
        at = begin + i * stride
        values[i] = load_u64(data, at >> 3) >> uint64(at & 7) & mask
