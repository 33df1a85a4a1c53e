"""Documents as bags of words: the words of each document and their counts."""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy import uint32, uint64

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.kernels.compile_cpu import njit, read_only

MAX_COUNT = 2**32 - 1  # greatest count of a word in a document
MAX_WORDS = 2**32 - 1  # words of a vocabulary: ids are uint32
STRIP_PAIRS = 1 << 20  # pairs that are checked at once


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of words of D documents, a compressed sparse row matrix. `make_bags` makes valid ones; `check` checks them.

    starts_D1  (D + 1,) int64: document d has the pairs starts_D1[d] to starts_D1[d + 1]; it may have none
    words_P    (P,) uint32, word ids, ascending and unique within a document
    counts_P   (P,) uint32, at least 1
    num_words  V, the number of words of the vocabulary
    """

    starts_D1: np.ndarray
    words_P: np.ndarray
    counts_P: np.ndarray
    num_words: int

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields: another thread may compute a cached property while the object is pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def documents(self) -> int:
        """Return D, the number of documents."""
        return len(self.starts_D1) - 1

    @property
    def pairs(self) -> int:
        """Return P, the number of (document, word) pairs."""
        return len(self.words_P)

    @cached_property
    def tokens(self) -> int:
        """Return the number of tokens: the sum of all counts."""
        return int(self.counts_P.sum(dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.starts_D1.nbytes + self.words_P.nbytes + self.counts_P.nbytes

    def __len__(self) -> int:
        return self.documents

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Bags)
            and self.num_words == other.num_words
            and np.array_equal(self.starts_D1, other.starts_D1)
            and np.array_equal(self.words_P, other.words_P)
            and np.array_equal(self.counts_P, other.counts_P)
        )

    __hash__ = None  # type: ignore[assignment]  # __eq__ compares arrays

    def __repr__(self) -> str:
        return f"Bags({self.documents:,} documents, {self.pairs:,} pairs, {self.num_words:,} words)"

    def slice(self, first: int, last: int) -> Bags:
        """Return documents first to last - 1, with words and counts as views."""
        if not 0 <= first <= last <= self.documents:
            raise IndexError(f"documents {first} to {last} are outside the {self.documents:,} documents")
        starts_D1 = self.starts_D1[first : last + 1]
        pairs = slice(int(starts_D1[0]), int(starts_D1[-1]))
        return Bags(starts_D1 - starts_D1[0], self.words_P[pairs], self.counts_P[pairs], self.num_words)

    def lengths_D(self) -> np.ndarray:
        """Return (D,) int64, the tokens of each document."""
        lengths_D: np.ndarray = _lengths(read_only(self.starts_D1), read_only(self.counts_P))
        return lengths_D

    def blocks(self, tokens: int) -> Iterator[Bags]:
        """Yield consecutive documents in blocks of at most `tokens` tokens; a longer document is a block of its own."""
        ends_D = np.cumsum(self.lengths_D())
        first, before = 0, 0
        while first < self.documents:
            last = max(first + 1, int(np.searchsorted(ends_D, before + tokens, "right")))
            yield self.slice(first, last)
            first, before = last, int(ends_D[last - 1])

    def check(self, name: str = "the bags of words") -> Bags:
        """Return self. Raises InputError, which names `name`, unless the arrays are as documented in the class."""
        _check_shape(self.starts_D1, self.words_P, self.counts_P, name)
        p = int(_first_wrong(read_only(self.starts_D1), read_only(self.words_P), read_only(self.counts_P)))
        if p < 0:
            _check_words(self.words_P, self.starts_D1, self.num_words, name)
            return self
        d = document_at(self.starts_D1, p)
        if not self.counts_P[p]:
            raise InputError(f"document {d:,} of {name} has word {self.words_P[p]:,} 0 times; leave the pair out")
        raise InputError(
            f"document {d:,} of {name} has word {self.words_P[p]:,} after {self.words_P[p - 1]:,}, "
            "but the words of a document ascend; sort them"
        )


def empty_corpus(name: str, documents: int) -> InputError:
    """Return the error for a corpus without any word."""
    what = f"has {documents:,} documents but no word in them" if documents else "is empty"
    return InputError(f"{name} {what}; give at least one document with a word of the vocabulary")


def make_bags(
    starts_D1: Any, words_P: Any, counts_P: Any, num_words: int, name: str = "the matrix", first: int = 0
) -> Bags:
    """Return the bags of a compressed sparse row matrix from any source, after checks.

    starts_D1  (D + 1,) integers, from 0 to P, ascending
    words_P    (P,) integers, ids from 0 to num_words - 1, in any order
    counts_P   (P,) integers or floats with whole values, from 0 to MAX_COUNT
    name       name of the matrix, for messages
    first      number of the first document, for messages

    Sums entries of the same document and word, and leaves zeros out. Does not copy valid uint32 arrays. Raises
    InputError for fractions, negative counts, NaN, infinities, counts above MAX_COUNT, and ids outside the vocabulary.
    """
    starts_D1, words_P, counts_P = (np.asarray(array) for array in (starts_D1, words_P, counts_P))
    if not 0 <= num_words <= MAX_WORDS:
        raise InputError(f"{name} has {num_words:,} words but a vocabulary holds up to {MAX_WORDS:,}; merge rare words")
    if words_P.dtype.kind not in "iu":
        raise InputError(f"the word ids of {name} are of dtype {words_P.dtype} but must be integers; convert them")
    if counts_P.dtype.kind not in "iufb":
        raise InputError(f"the counts of {name} are of dtype {counts_P.dtype} but must be whole numbers; convert them")
    _check_shape(starts_D1, words_P, counts_P, name)
    starts_D1 = starts_D1.astype(np.int64, copy=False)
    _check_words(words_P, starts_D1, num_words, name, first)
    _check_counts(counts_P, starts_D1, name, first)
    words_P, counts_P = (np.ascontiguousarray(array, uint32) for array in (words_P, counts_P))
    if _first_wrong(read_only(starts_D1), read_only(words_P), read_only(counts_P)) < 0:
        return Bags(starts_D1, words_P, counts_P, num_words)
    keys_P = words_P.astype(np.uint64) << np.uint64(32) | counts_P
    ends_D, too_large = _sum_duplicates(read_only(starts_D1), keys_P)
    if too_large >= 0:
        raise InputError(
            f"document {first + too_large:,} of {name} has a word over {MAX_COUNT:,} times in its duplicate entries; "
            "cut the document"
        )
    pairs = int(ends_D[-1])
    words_P, counts_P = (keys_P[:pairs] >> np.uint64(32)).astype(uint32), keys_P[:pairs].astype(uint32)
    return Bags(ends_D, words_P, counts_P, num_words)


def join_bags(blocks: Iterable[Bags]) -> Bags:
    """Return the documents of one or more blocks as one value. Raises InputError if their vocabularies differ."""
    parts = list(blocks)
    if not parts:
        raise InputError("there are no bags of words to join; give one block or more")
    sizes = sorted({part.num_words for part in parts})
    if len(sizes) > 1:
        raise InputError(
            f"blocks with vocabularies of {sizes[0]:,} and {sizes[-1]:,} words cannot be joined; use one vocabulary"
        )
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([0, *(part.pairs for part in parts)])
    starts = [part.starts_D1[:-1] + end for part, end in zip(parts, ends.tolist(), strict=False)]
    words, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("words_P", "counts_P"))
    return Bags(np.concatenate([*starts, ends[-1:]]), words, counts, sizes[0])


def document_at(starts_D1: np.ndarray, p: int) -> int:
    """Return the document that has the pair p."""
    return int(np.searchsorted(starts_D1, p, "right")) - 1


def check_vocabulary(words: Any, num_words: int, name: str, matrix: str) -> None:
    """Raise InputError unless there are as many words as columns.

    words         a sized collection
    name, matrix  names of the vocabulary and of the bags, for the message
    """
    if len(words) != num_words:
        raise InputError(
            f"{name} has {len(words):,} words but {matrix} has {num_words:,} columns; "
            "give the vocabulary that was used to count the words"
        )


def check_starts(starts_D1: np.ndarray, pairs: int, name: str) -> None:
    """Raise InputError, which names the matrix, unless its row starts ascend from 0 to the number of pairs."""
    if starts_D1.dtype.kind not in "iu" or starts_D1.ndim != 1 or not len(starts_D1):
        raise InputError(
            f"the row starts of {name} are {starts_D1.dtype} of shape {starts_D1.shape}; give 1 + D integers"
        )
    falls = np.flatnonzero(starts_D1[1:] < starts_D1[:-1])[:1]
    if starts_D1[0] != 0 or starts_D1[-1] != pairs or len(falls):
        where = f" and fall at document {falls[0]:,}" if len(falls) else ""
        raise InputError(
            f"the row starts of {name} go from {starts_D1[0]:,} to {starts_D1[-1]:,}{where}, "
            f"but must ascend from 0 to {pairs:,}; the file or matrix is damaged, make it again"
        )


def _check_shape(starts_D1: np.ndarray, words_P: np.ndarray, counts_P: np.ndarray, name: str) -> None:
    if words_P.ndim != 1 or words_P.shape != counts_P.shape:
        raise InputError(f"{name} has word ids of shape {words_P.shape} and counts of {counts_P.shape}; give P of each")
    check_starts(starts_D1, len(words_P), name)


def _check_words(words_P: np.ndarray, starts_D1: np.ndarray, num_words: int, name: str, first: int = 0) -> None:
    for p in () if not len(words_P) else (int(words_P.argmin()), int(words_P.argmax())):
        if not 0 <= words_P[p] < num_words:
            d = first + document_at(starts_D1, p)
            raise InputError(
                f"document {d:,} of {name} has the word id {words_P[p]:,}, but the ids of "
                f"{num_words:,} words go from 0 to {num_words - 1:,}; correct the id or the number of words"
            )


def _check_counts(counts_P: np.ndarray, starts_D1: np.ndarray, name: str, first: int) -> None:
    if counts_P.dtype.kind in "ub" and counts_P.dtype.itemsize < 8:  # all their values are counts
        return
    for start in range(0, len(counts_P), STRIP_PAIRS):
        strip = counts_P[start : start + STRIP_PAIRS]
        if strip.dtype.kind == "f":
            strip = strip.astype(np.float64)  # float32 would round the limit up
        right = (strip >= 0) & (strip <= MAX_COUNT) & (strip == np.floor(strip))
        if not right.all():
            p = start + int(np.argmin(right))
            raise wrong_count(f"document {first + document_at(starts_D1, p):,} of {name}", counts_P[p].item())


def wrong_count(where: str, count: float) -> InputError:
    """Return the error for a count that is not a whole number from 0 to MAX_COUNT."""
    if count != count:
        way_out = "replace missing counts by 0, as fillna(0) of pandas does"
    else:
        way_out = "give how often each word occurs, not weights such as tf-idf"
    return InputError(
        f"{'Negative values in data: ' if count < 0 else ''}{where} has the count "
        f"{'NaN' if count != count else count}, but counts are whole numbers from 0 to {MAX_COUNT:,}; "
        f"{way_out}"
    )


@njit(nogil=True, cache=True)
def _first_wrong(starts_D1, words_P, counts_P):
    """Return the first pair with a count of 0 or a word that is not above the one before; -1 if all are sound."""
    for d in range(len(starts_D1) - 1):
        for p in range(starts_D1[d], starts_D1[d + 1]):
            if counts_P[p] == 0 or (p > starts_D1[d] and words_P[p] <= words_P[p - 1]):
                return p
    return -1


@njit(nogil=True, cache=True)
def _sum_duplicates(starts_D1, keys_P):
    """Sort the keys word << 32 | count of every document, sum counts of equal words and leave zeros out, in place.

    Returns (the new starts, the first document with a sum above MAX_COUNT or -1).
    """
    new_D1 = np.zeros(len(starts_D1), np.int64)
    low = uint64(0xFFFFFFFF)
    to = 0
    for d in range(len(starts_D1) - 1):
        keys_P[starts_D1[d] : starts_D1[d + 1]].sort()
        p = starts_D1[d]
        while p < starts_D1[d + 1]:
            word = keys_P[p] >> uint64(32)
            total = uint64(0)
            while p < starts_D1[d + 1] and keys_P[p] >> uint64(32) == word:
                total += keys_P[p] & low
                p += 1
            if total > low:
                return new_D1, d
            if total > 0:
                keys_P[to] = (word << uint64(32)) | total
                to += 1
        new_D1[d + 1] = to
    return new_D1, -1


@njit(nogil=True, cache=True)
def _lengths(starts_D1, counts_P):
    lengths_D = np.zeros(len(starts_D1) - 1, np.int64)
    for d in range(len(lengths_D)):
        for p in range(starts_D1[d], starts_D1[d + 1]):
            lengths_D[d] += counts_P[p]
    return lengths_D
