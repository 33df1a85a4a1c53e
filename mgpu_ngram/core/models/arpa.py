"""ARPA files: the text format in which tools exchange backoff models."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mgpu_ngram.core.errors import InputError, warn
from mgpu_ngram.core.inputs.compress import compressing, compression_of
from mgpu_ngram.core.models import arpa_lines as lines
from mgpu_ngram.core.models.arpa_text import NEW_COPY, ArpaText, Section, open_text
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import UNKNOWN, Words
from mgpu_ngram.core.storage.output import new_file
from mgpu_ngram.kernels.common.word_table import index_words
from mgpu_ngram.kernels.compile_cpu import read_only

UNK_LOG10 = -100.0  # KenLM's value for <unk> if a model lacks it
ZERO_LOG10 = -99.0  # of probability 0; lower values mean 0, too
BLOCK_ROWS = 1 << 13  # rows that a thread formats at once


class Arpa:
    """A model in an ARPA file whose 1-grams have been read.

    order      the highest order
    counts     number of n-grams of each order, from the file's header
    unk_added  whether the file lacks <unk>
    words      <unk> has id 0; the other words have ids from 1 on, in file order
    repeated   number of 1-grams that repeat an earlier word (<UNK> counts as <unk>). As in KenLM's probing models, the
               first line of a word counts, but the last line of <unk>
    """

    def __init__(self, text: ArpaText, threads: int, unk_log10: float, need_markers: bool, positive_to_zero: bool):
        self.counts, start = text.read_counts()
        self.order = len(self.counts)
        self._text, self._threads = text, threads
        self._markers, self._zero = ("<s>", "</s>") if need_markers else (), positive_to_zero
        self._starts = {1: start}  # the first line of each order found so far
        self._sections: dict[int, Section] = {}
        self._read_unigrams(unk_log10)

    def levels(self) -> Iterator[Ngrams]:
        """Yield the n-grams of orders 1 to N; each order is parsed on demand.

        If the file lacks <unk>, it becomes row 0 of order 1, and the file's rows follow.

        Raises InputError at the first wrong line.
        """
        yield self._unigrams
        for order in range(2, self.order + 1):
            level, _, wrong = self._parse(order, self.words.slots_C)
            if wrong:
                raise wrong
            self._end(order)
            yield level

    def line_of(self, order: int, row: int) -> int:
        """Return the line number of a row of an order that has been read."""
        row = max(0, row - (order == 1 and self.unk_added))
        return self._text.line_number(lines.find_row(self._text.data, self._sections[order].starts[0], row))

    def _read_unigrams(self, unk_log10: float) -> None:
        text = self._text
        level, spans_G, wrong = self._parse(1, np.empty(0, np.uint64))
        prob, backoff = level.prob, level.backoff
        unknown = lines.unknown_rows(text.data, spans_G)
        self.unk_added = not len(unknown)
        if self.unk_added:
            unknown, spans_G = np.zeros(1, np.int64), np.concatenate([np.zeros((1, 2), np.int64), spans_G])
            prob = np.concatenate([np.array([unk_log10], np.float32), prob])
            backoff = None if backoff is None else np.concatenate([np.zeros(1, np.float32), backoff])
        rows_V = np.concatenate([unknown[-1:], np.delete(np.arange(len(prob)), unknown)])
        self.words = _spelled(text.data, spans_G[rows_V])
        slots_C, duplicate = index_words(self.words.offsets_V, self.words.data)
        self.words.slots_C = slots_C
        if duplicate >= 0:
            first_V = self.words.ids(self.words.offsets_V, self.words.data) == np.arange(len(rows_V))
            self.words, rows_V = self.words.kept(first_V), rows_V[first_V]
        if wrong:
            raise wrong
        self._end(1)
        self.repeated = len(prob) - len(rows_V)
        for marker in self._markers:
            if self.words.id(marker) == 0:
                why = f"stands after the 1-grams, and {marker} is none of them; a model needs it: add it"
                raise text.wrong(self._sections[1].starts[-1], why)
        if self.unk_added:
            warn(f"{text.name!r} lacks <unk>; its log10 probability is taken to be {unk_log10:g}")
        ids = np.argsort(rows_V).astype(np.uint32)[:, None]
        rows_V = np.sort(rows_V)
        self._unigrams = Ngrams(ids, prob[rows_V], None if backoff is None else backoff[rows_V])

    def _parse(self, order: int, slots_C: np.ndarray) -> tuple[Ngrams, np.ndarray, InputError | None]:
        """Return (the n-grams of one order, spans of the words of 1-grams, the error after the n-grams or None)."""
        text, count, top = self._text, self.counts[order - 1], order == self.order
        empty = np.empty(0, np.uint8)
        offsets_V, data = (self.words.offsets_V, self.words.data) if order > 1 else (empty.view(np.int64), empty)
        offsets_V, data = read_only(offsets_V), read_only(data)
        with ThreadPoolExecutor(self._threads) as pool:
            section = self._sections[order] = text.cut(self._starts[order], pool, 4 * self._threads)
            G = min(section.rows[-1], count)
            spans_G = np.empty((G if order == 1 else 0, 2), np.int64)
            ids, prob = np.empty((G, order), np.uint32), np.empty(G, np.float32)
            backoff = np.empty(0 if top else G, np.float32)

            def parse(start: int, stop: int, row: int) -> tuple[int, int, int]:
                rules, words, arrays = (top, self._zero), (offsets_V, data, slots_C), (spans_G, ids, prob, backoff)
                found: tuple[int, int, int] = lines.parse_lines(
                    text.data, start, stop, row, count, rules, words, arrays
                )
                return found

            results = list(pool.map(parse, section.starts[:-1], section.starts[1:], section.rows[:-1]))
        wrong = next(((code, at, row) for code, at, row in results if code != lines.FINE), None)
        if wrong:
            G, spans_G, prob = wrong[2], spans_G[: wrong[2]], prob[: wrong[2]]
        error = text.wrong(wrong[1], self._why(order, *wrong[:2])) if wrong else None
        return Ngrams(ids[:G], prob, None if top else backoff[:G]), spans_G, error

    def _why(self, order: int, code: int, at: int) -> str:
        """Describe what is wrong with a line, and what would be right."""
        token = self._text.token(at)
        words = f"{order} word{'s' * (order > 1)}"
        return {
            lines.NO_PROB: f"does not begin with a log10 probability; an n-gram is one, a tab and {words}",
            lines.POSITIVE: f"has the log10 probability {token}, which is over 0; write 0 if it is a rounding error",
            lines.NO_TAB: f"has no tab after the probability; an n-gram is a log10 probability, a tab and {words}",
            lines.TOO_SHORT: f"has too few words; a {order}-gram has {words}",
            lines.STRANGE: f"has the word '{token}', which is not among the 1-grams; add it there",
            lines.TOO_LONG: f"goes on after {words}; what may follow is a tab and one backoff",
            lines.NO_BACKOFF: f"has no number after {words} and a tab; write a backoff there or end the line",
            lines.INFINITE: f"has the backoff {token}, which is not finite; write 0 where there is none",
            lines.AT_THE_TOP: f"has the backoff {token}, but order {order} is the highest, which has none; drop it",
            lines.TOO_MANY: f"is one {order}-gram more than 'ngram {order}={self.counts[order - 1]}' says; correct it",
        }[code]

    def _end(self, order: int) -> None:
        """Check the text after the n-grams of one order."""
        text, section, count = self._text, self._sections[order], self.counts[order - 1]
        found = f"{section.rows[-1]:,} of {count:,} {order}-grams"
        expected = b"\\end\\" if order == self.order else b"\\%d-grams:" % (order + 1)
        line, at, after = text.filled_line(section.starts[-1], f"after {found}")
        if not line.startswith(b"\\"):
            raise text.wrong(at, f"is the end of the file, after {found}; the file is truncated: {NEW_COPY}")
        if section.rows[-1] < count:
            raise text.wrong(at, f"stands after {found}; correct the count or {NEW_COPY}")
        if line != expected:
            raise text.wrong(at, f"stands where {expected.decode()} is expected; {NEW_COPY}")
        if order < self.order:
            self._starts[order + 1] = after
        elif (junk := lines.skip_blank_lines(text.data, after)) < len(text.data):
            raise text.wrong(
                junk, f"follows {expected.decode()}, which must be the last line; delete this line and all after it"
            )


def _spelled(text: np.ndarray, spans_V: np.ndarray) -> Words:
    """Return the words at these spans of a text; the first one is <unk>, however the text spells it."""
    lengths_V = spans_V[:, 1] - spans_V[:, 0]
    lengths_V[0] = len(UNKNOWN)
    offsets_V = np.concatenate([[0], np.cumsum(lengths_V)])
    data = np.empty(offsets_V[-1], np.uint8)
    lines.gather_spans(text, spans_V, offsets_V, data)
    data[: len(UNKNOWN)] = np.frombuffer(UNKNOWN, np.uint8)
    return Words(offsets_V, data)


def read_arpa(
    path: str | Path,
    threads: int = 1,
    unk_log10: float = UNK_LOG10,
    need_markers: bool = True,
    positive_to_zero: bool = False,
) -> Arpa:
    """Open an ARPA file, plain or compressed (gzip, bz2, xz, zstd), and read its words and 1-grams.

    path       local path or fsspec URL. A plain local file is memory-mapped: do not change it while it is read
    threads    threads that parse
    unk_log10  log10 probability of <unk> if the file lacks it; a warning says so
    need_markers      False: accept a file without <s> or </s>, which scores no text here
    positive_to_zero  True: a log10 probability over 0, as IRSTLM writes by rounding, becomes 0

    Reads every file that KenLM reads, of any order, and refuses what KenLM refuses. It also refuses an n-gram that
    spans lines. Probabilities of -inf pass, as in KenLM. Raises InputError with the number of the first wrong line.
    """
    return Arpa(open_text(os.path.expanduser(path)), threads, unk_log10, need_markers, positive_to_zero)


def write_arpa(
    path: str | Path,
    words: Words,
    levels: Sequence[Ngrams],
    verbose_header: Sequence[str] | None = None,
    threads: int = 1,
) -> None:
    """Write a model exactly as lmplz does. The file appears at `path` only when it is complete.

    levels          orders 1 to N; below N every n-gram gets a backoff, 0 if its level has none
    verbose_header  lines to write first, each after "# "

    Numbers are the shortest that read back as the same float32. A name that ends with .gz, .bz2, .xz or .zst makes a
    compressed file. Raises RunError when the disk is full.
    """
    with (
        new_file(path) as sink,
        compressing(sink, compression_of(path)) as file,
        ThreadPoolExecutor(threads) as pool,
    ):
        write = sink.append if file is sink else file.write
        head = [*(f"# {line}" for line in verbose_header or ()), "\\data\\"]
        head += [f"ngram {order}={len(level.prob)}" for order, level in enumerate(levels, 1)]
        write("".join(f"{line}\n" for line in head).encode())
        for order, level in enumerate(levels, 1):
            write(b"\n\\%d-grams:\n" % order)
            blocks: deque[Future[np.ndarray]] = deque()  # blocks that are formatted or queued
            backoff = np.zeros(len(level.prob), np.float32) if level.backoff is None else level.backoff
            if order == len(levels):
                backoff = backoff[:0]
            for row in range(0, len(level.prob), BLOCK_ROWS):
                blocks.append(pool.submit(_format, words, level, backoff, slice(row, row + BLOCK_ROWS)))
                if len(blocks) > 2 * threads:
                    write(blocks.popleft().result())
            for block in blocks:
                write(block.result())
        write(b"\n\\end\\\n")


def _format(words: Words, level: Ngrams, backoff: np.ndarray, rows: slice) -> np.ndarray:
    """Return the text lines of some rows."""
    ids = level.ids[rows]  # computed here if the level stores no array
    text: np.ndarray = lines.format_lines(words.offsets_V, words.data, ids, level.prob[rows], backoff[rows])
    return text
