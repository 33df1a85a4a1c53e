"""The counts format of SRILM's ngram-count: an n-gram a line, its words separated by spaces, a tab, its count."""

# mypy: allow-untyped-defs

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import uint32

from mgpu_ngram.core.decimals import MAX_DIGITS
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.inputs.read_text import read_list
from mgpu_ngram.kernels.common.ascii import NEWLINE
from mgpu_ngram.kernels.common.find_tokens import is_delimiter
from mgpu_ngram.kernels.common.word_table import find_word
from mgpu_ngram.kernels.compile_cpu import njit, read_only

FINE, NO_WORDS, NO_NUMBER, FRACTION, TOO_LARGE = range(5)
WRONG = {
    NO_WORDS: "has no count after its word; a line is the words of an n-gram, a tab and its count",
    NO_NUMBER: "ends with {token!r}, which is not a count; a line is the words of an n-gram, a tab and its count",
    FRACTION: "has the count {token}, but counts must be whole numbers; round them, or count without weights",
    TOO_LARGE: "has the count {token}, but a count must have 18 digits or fewer; correct it",
}


class SrilmCounts:
    """A counts file, plain or compressed, as a source of `estimate`: `SrilmCounts("srilm.counts.gz")`.

    path       absolute path; the file is read on demand
    max_order  the highest order of its n-grams
    """

    def __init__(self, path: str | os.PathLike[str]):
        check_path(path, "path")
        self.path = os.path.abspath(path)

    @cached_property
    def max_order(self) -> int:
        return read_srilm_counts(self.path).max_order


@dataclass(frozen=True)
class NgramLines:
    """The n-grams of a counts file, in the order of its L lines, in host memory.

    text      uint8, the whole text; each line ends with a newline
    starts_L  (L,) int64, where each line begins
    words_L   (L,) int64, number of words of each line; 0 for an empty line
    counts_L  (L,) int64
    name      name of the file, for messages
    """

    text: np.ndarray
    starts_L: np.ndarray
    words_L: np.ndarray
    counts_L: np.ndarray
    name: str

    @cached_property
    def max_order(self) -> int:
        return int(self.words_L.max(initial=0))

    def of_order(self, n: int) -> np.ndarray:
        """Return the lines of n-grams with a count above 0."""
        return np.flatnonzero((self.words_L == n) & (self.counts_L > 0))

    def single_words(self) -> dict[bytes, int]:
        """Return the words of the 1-grams and their counts."""
        found, rows = dict[bytes, int](), self.of_order(1)
        ends = np.append(self.starts_L[1:], len(self.text))
        for start, end, count in zip(self.starts_L[rows], ends[rows], self.counts_L[rows].tolist(), strict=True):
            word = _words_of(self.text[start:end].tobytes())[0]
            found[word] = found.get(word, 0) + count
        return found

    def ids(self, rows: np.ndarray, n: int, table: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        """Return ids (R, n) uint32 of the words of R lines of n words; 0 for words that the table lacks."""
        ids = np.empty((len(rows), n), np.uint32)
        _find(read_only(self.text), self.starts_L[rows], *table, ids)
        return ids

    def wrong(self, row: int, what: str) -> InputError:
        """Return the error of a line."""
        return InputError(f"line {row + 1:,} of {self.name!r} {what}")

    def ngram(self, row: int) -> str:
        """Return the words of a line."""
        end = self.starts_L[row + 1] if row + 1 < len(self.starts_L) else len(self.text)
        words = _words_of(self.text[self.starts_L[row] : end].tobytes())
        return b" ".join(words[:-1]).decode("utf-8", "backslashreplace")


def read_srilm_counts(path: str | os.PathLike[str]) -> NgramLines:
    """Return the n-grams of a counts file, plain or compressed (gzip, bz2, xz, zstd).

    Words end at white space, as in text. Raises InputError with the number of the first wrong line, and for fractional
    counts.
    """
    text = read_only(np.frombuffer(read_list(path), np.uint8))
    starts_L = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(text == NEWLINE) + 1])[:-1]
    words_L, counts_L = np.empty(len(starts_L), np.int64), np.zeros(len(starts_L), np.int64)
    code, row = _parse(text, starts_L, words_L, counts_L)
    lines = NgramLines(text, starts_L, words_L, counts_L, os.fspath(path))
    if code != FINE:
        end = starts_L[row + 1] if row + 1 < len(starts_L) else len(text)
        token = _words_of(text[starts_L[row] : end].tobytes())[-1].decode("utf-8", "backslashreplace")
        raise lines.wrong(row, WRONG[code].format(token=token))
    if not lines.max_order:
        raise InputError(f"{lines.name!r} has no n-grams; give the counts that ngram-count -write wrote")
    return lines


def _words_of(line: bytes) -> list[bytes]:
    """Return the words of a line, as `find_tokens` divides it."""
    return line.replace(b"\0", b" ").replace(b"\t", b" ").replace(b"\r", b" ").strip(b" \n").split(b" ")


@njit(nogil=True, cache=True)
def _parse(text, starts_L, words_L, counts_L):
    """Fill words_L and counts_L; return (FINE or what is wrong, the line)."""
    for row in range(len(starts_L)):
        at, tokens, start, stop = starts_L[row], 0, np.int64(0), np.int64(0)
        while text[at] != NEWLINE:
            if is_delimiter(text[at]):
                at += 1
                continue
            start, tokens = at, tokens + 1
            while not is_delimiter(text[at]):
                at += 1
            stop = at
        words_L[row] = max(0, tokens - 1)
        if not tokens:
            continue
        code = _count_of(text, start, stop, counts_L, row)
        if tokens == 1:
            code = NO_WORDS
        if code != FINE:
            return code, row
    return FINE, 0


@njit(nogil=True, cache=True)
def _count_of(text, start, stop, counts_L, row):
    """Store the number text[start:stop]; return FINE or what is wrong."""
    value, is_number, is_fraction = np.int64(0), True, False
    for i in range(start, stop):
        c = text[i]
        if 48 <= c <= 57:
            value = 10 * value + np.int64(c) - 48
        elif c == 46 or ((c == 101 or c == 69 or c == 43 or c == 45) and i > start):  # . e E + -
            is_fraction = True
        else:
            is_number = False
    if not is_number or not 48 <= text[start] <= 57:
        return NO_NUMBER
    if is_fraction:
        return FRACTION
    counts_L[row] = value
    return TOO_LARGE if stop - start > MAX_DIGITS else FINE


@njit(nogil=True, cache=True)
def _find(text, starts_R, offsets_V, data, slots_C, ids):
    for r in range(len(starts_R)):
        at = starts_R[r]
        for n in range(ids.shape[1]):
            while is_delimiter(text[at]):
                at += 1
            start = at
            while not is_delimiter(text[at]):
                at += 1
            ids[r, n] = uint32(find_word(text, start, at, offsets_V, data, slots_C))
