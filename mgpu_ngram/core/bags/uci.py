"""Read the docword files of UCI's "Bag of Words" data set (https://archive.ics.uci.edu/dataset/164).

A file holds three lines with the numbers of documents, of words and of pairs, and then a line for each pair: document,
word and count. Documents and words count from 1.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mgpu_ngram.core.ahead import map_ahead
from mgpu_ngram.core.bags.bags import MAX_COUNT, MAX_WORDS, Bags, make_bags
from mgpu_ngram.core.decimals import MAX_DIGITS
from mgpu_ngram.core.errors import SHOWN_CHARACTERS, InputError
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.read_text import read_blocks
from mgpu_ngram.core.inputs.sources import Source
from mgpu_ngram.kernels.compile_cpu import njit

HEADER_LINES = ("documents", "words", "pairs")  # what the first three lines count
BLOCK_BYTES = 8 << 20  # text that one thread parses at once
PARSE_THREADS = 8  # at most, for documents
EMPTY_PER_PAIR, EMPTY_ALWAYS = 1000, 1_000_000  # more documents than this for the pairs show a damaged header


class UciHeader(NamedTuple):
    """The first three numbers of a docword file."""

    documents: int
    words: int
    pairs: int


def is_uci(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a docword file: three lines of one number each."""
    lines = head.split(b"\n", 4)
    if len(lines) < 4 or not all(line.strip().isdigit() for line in lines[:3]):
        return False
    fields = lines[3].split() if len(lines) > 4 else []
    return len(fields) in (0, 3) or (len(fields) in (2, 4) and all(field.isdigit() for field in fields))


def read_uci_header(source: Source) -> UciHeader:
    """Return the header of a docword file, plain or compressed. Raises InputError if it is damaged."""
    for text in _texts(source, 4096):
        return _header(source.name, text)[0]
    return _header(source.name, np.empty(0, np.uint8))[0]


def read_uci(source: Source) -> Iterator[Bags]:
    """Yield the documents of a docword file, plain or compressed, in order, in blocks of about BLOCK_BYTES of text.

    Several threads parse it. Raises InputError, which names the line, for damaged and truncated files.
    """
    texts = _texts(source, BLOCK_BYTES)
    first = next(texts, np.empty(0, np.uint8))
    header, start = _header(source.name, first)
    parts = _Parts(source.name, header)
    threads = min(PARSE_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        for parsed in map_ahead(pool, lambda text: _parse_text(text, header), chain([first[start:]], texts), threads):
            yield from parts.add(parsed)
    yield from parts.finish()


def _texts(source: Source, block_bytes: int) -> Iterator[np.ndarray]:
    """Yield whole lines."""
    for chunk in Corpus((source,), "word").chunks(1 << 62):
        for block in read_blocks(chunk, "word", block_bytes):
            yield block.data


def _header(name: str, text: np.ndarray) -> tuple[UciHeader, int]:
    """Return the header at the start of a text, and the offset of the line after it."""
    lines = text[:4096].tobytes().split(b"\n")[:-1]
    for i, what in enumerate(HEADER_LINES):
        line = lines[i].strip() if i < len(lines) else b""
        if not line.isdigit() or len(line) > MAX_DIGITS:
            found = f"is {_shown(lines[i])}" if i < len(lines) else "is missing"
            raise InputError(
                f"{name!r} line {i + 1} {found}, but a docword file starts with the numbers of documents, words and "
                f"pairs, a line each; give the number of {what}"
            )
    header = UciHeader(*(int(line) for line in lines[:3]))
    if header.words > MAX_WORDS:
        raise InputError(
            f"{name!r} line 2 gives {header.words:,} words but a vocabulary holds up to {MAX_WORDS:,}; correct it"
        )
    if header.documents > EMPTY_PER_PAIR * header.pairs + EMPTY_ALWAYS:
        says = f"line 1 says {header.documents:,} documents but line 3 only {header.pairs:,} pairs"
        raise InputError(f"{name!r} {says}; correct the one that is wrong")
    return header, sum(len(line) + 1 for line in lines[:3])


class _Parsed(NamedTuple):
    """The pairs of a text up to its first wrong line, with documents and words from 0."""

    docs_P: np.ndarray
    words_P: np.ndarray
    counts_P: np.ndarray
    lines: int  # lines before the wrong one, or all
    wrong: bytes | None  # the wrong line


def _parse_text(text: np.ndarray, header: UciHeader) -> _Parsed:
    room = len(text) // 6 + 1  # a line has 6 bytes or more
    docs_P, words_P, counts_P = np.empty(room, np.int64), np.empty(room, np.uint32), np.empty(room, np.uint32)
    pairs, lines, at = _parse(text, header.documents, header.words, docs_P, words_P, counts_P)
    wrong = None if at < 0 else text[at : at + 4096].tobytes().partition(b"\n")[0]
    return _Parsed(docs_P[:pairs], words_P[:pairs], counts_P[:pairs], int(lines), wrong)


class _Parts:
    """Joins the parsed texts of a file to documents."""

    def __init__(self, name: str, header: UciHeader):
        self.name, self.header = name, header
        self.line = 3  # lines before the next text
        self.pairs = 0
        self.next_doc = 0  # documents before it were yielded
        self.waiting: list[_Parsed] = []  # pairs of documents that may continue

    def add(self, parsed: _Parsed) -> Iterator[Bags]:
        """Yield the documents that are complete. Raises InputError for a wrong line."""
        docs_P = parsed.docs_P
        last = self.waiting[-1].docs_P[-1] if self.waiting else 0
        if len(docs_P) and docs_P[0] < last:
            raise InputError(f"{self.name!r} line {self.line + 1:,} {_falls(int(docs_P[0]), int(last))}")
        self.pairs += len(docs_P)
        if parsed.wrong is not None:
            previous = int(docs_P[-1]) if len(docs_P) else int(last)
            why = _why(parsed.wrong, self.header, previous)
            raise InputError(f"{self.name!r} line {self.line + parsed.lines + 1:,} {why}")
        if self.pairs > self.header.pairs:
            raise InputError(
                f"{self.name!r} has {self.pairs:,} pairs or more at line {self.line + parsed.lines:,}, but line 3 says "
                f"{self.header.pairs:,}; correct line 3, or get the file again"
            )
        self.line += parsed.lines
        if len(docs_P):
            self.waiting.append(parsed)
            if docs_P[-1] > self.waiting[0].docs_P[0]:
                yield self._documents(int(docs_P[-1]))

    def finish(self) -> Iterator[Bags]:
        """Yield the last documents. Raises InputError if pairs are missing."""
        if self.pairs < self.header.pairs:
            raise InputError(
                f"{self.name!r} ends after line {self.line:,} with {self.pairs:,} of the {self.header.pairs:,} pairs "
                "that line 3 gives; it is truncated: get it again"
            )
        yield self._documents(self.header.documents)

    def _documents(self, end: int) -> Bags:
        """Return the waiting documents before `end`."""
        columns: list[Any] = [np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32)]
        if self.waiting:
            columns = [np.concatenate(column) for column in list(zip(*self.waiting, strict=True))[:3]]
        cut = int(np.searchsorted(columns[0], end))
        docs_P, words_P, counts_P = (column[:cut] for column in columns)
        rest = [column[cut:] for column in columns]
        self.waiting = [_Parsed(rest[0], rest[1], rest[2], 0, None)] if len(rest[0]) else []
        first, self.next_doc = self.next_doc, end
        starts_D1 = np.searchsorted(docs_P, np.arange(first, end + 1))
        return make_bags(starts_D1, words_P, counts_P, self.header.words, repr(self.name), first + 1)


def _why(line: bytes, header: UciHeader, previous: int) -> str:
    """Return what is wrong with a line, and the way out."""
    fields = line.split()
    if len(fields) != 3 or not all(f.isdigit() and len(f) <= MAX_DIGITS for f in fields[:2]):
        return f"is {_shown(line)}, but holds a document, a word and a count, such as 1 61 2; correct it"
    doc, word = int(fields[0]), int(fields[1])
    if not 1 <= doc <= header.documents:
        return f"has document {doc:,}, but line 1 says {header.documents:,} documents, from 1 on; correct one of them"
    if not 1 <= word <= header.words:
        return f"has word {word:,}, but line 2 says {header.words:,} words, from 1 on; correct one of them"
    if not fields[2].isdigit() or len(fields[2]) > MAX_DIGITS or int(fields[2]) > MAX_COUNT:
        return f"has the count {_shown(fields[2])}, but counts are whole numbers from 0 to {MAX_COUNT:,}; correct it"
    return _falls(doc - 1, previous)


def _falls(doc: int, previous: int) -> str:
    return (
        f"has document {doc + 1:,} after {previous + 1:,}, but documents ascend; sort the lines by their first number"
    )


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


@njit(nogil=True, cache=True)
def _parse(text, documents, words, docs_P, words_P, counts_P):
    """Write the pairs of whole lines; return (pairs, lines, start of the first wrong line or -1).

    Skips blank lines.
    """
    numbers = np.zeros(3, np.int64)
    pairs, lines, at, last = 0, 0, 0, 0
    while at < len(text):
        start = at
        found = 0
        while True:
            while text[at] == 32 or text[at] == 9 or text[at] == 13:
                at += 1
            if text[at] == 10:
                break
            digits, value = 0, np.int64(0)
            while 48 <= text[at] <= 57:
                value = 10 * value + np.int64(text[at] - 48)
                digits += 1
                at += 1
            ends = text[at] == 32 or text[at] == 9 or text[at] == 13 or text[at] == 10
            if found == 3 or digits == 0 or digits > 18 or not ends:
                return pairs, lines, start
            numbers[found] = value
            found += 1
        if found:
            doc, word = numbers[0] - 1, numbers[1] - 1
            if found < 3 or not (last <= doc < documents and 0 <= word < words and numbers[2] <= 4294967295):
                return pairs, lines, start
            docs_P[pairs], words_P[pairs], counts_P[pairs] = doc, word, numbers[2]
            pairs += 1
            last = doc
        lines += 1
        at += 1
    return pairs, lines, -1
