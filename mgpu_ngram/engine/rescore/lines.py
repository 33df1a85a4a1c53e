"""Sort n-best lists by new totals, write their lines, and join lists that continue in the next part of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.decimals import MAX_NUMBER_BYTES, write_float32
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nbest.moses_lines import FEATURES_END, LINE, LINE_END, NUMBER, NUMBER_END, copy_bytes
from mgpu_ngram.core.nbest.nbest import NbestLines, json_id, list_ids, list_numbers
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.compile_cpu import njit, read_only


@dataclass(frozen=True)
class NBestFormat:
    """The format of the lines.

    json   lines are JSON objects
    best   write only the text of the best line of each list
    ids    with best: write the id before the text, as Kaldi does
    """

    json: bool = False
    best: bool = False
    ids: bool = False


@dataclass
class SortedLines:
    """L lines of one list, best first: data uint8, ends_L int64, the end of each line in it, and total_L float32."""

    data: np.ndarray
    ends_L: np.ndarray
    total_L: np.ndarray


@dataclass
class ListsPart:
    """The lists of a part of the input. The first and the last list may continue in neighbouring parts.

    ids     ids of all lists
    first   the lines of the first list
    middle  uint8, the lines of all lists between the first and the last
    last    the lines of the last list; None if the part has one list
    """

    ids: list[bytes]
    first: SortedLines
    middle: np.ndarray
    last: SortedLines | None


def sort_part(
    lines: NbestLines, names: Sequence[str], score_NM: np.ndarray, total_N: np.ndarray, format: NBestFormat
) -> ListsPart:
    """Return the lists of N lines, 1 or more, each in order of total; equal totals keep their order.

    names     names of the M new features
    score_NM  float32, their values
    total_N   float32, new totals
    """
    list_N = list_numbers(lines)
    order_N = np.lexsort((-total_N, list_N))
    firsts = np.flatnonzero(np.diff(list_N, prepend=-1))
    ids = list_ids(lines, firsts)
    if format.best:
        order_N, counts = order_N[firsts], np.ones(len(firsts), np.int64)
        ends = np.flatnonzero(lines.text_B == 10) + 1
        data, ends_N = gather_lines(lines.text_B, ends, order_N)
        if format.ids:
            data, ends_N = _with_ids(ids, data, ends_N)
    else:
        counts = np.diff(firsts, append=len(list_N))
        leads = Words.of([f", {json.dumps(name)}: " if format.json else f" {name}= " for name in names])
        size = len(lines.data) + len(list_N) * (len(leads.data) + (len(names) + 1) * MAX_NUMBER_BYTES + 2)
        out, ends_N = np.empty(size, np.uint8), np.empty(len(order_N), np.int64)
        arrays = lines.data, lines.spans_N9, order_N, score_NM, total_N
        of_leads = read_only(leads.offsets_V), read_only(leads.data)
        _write_lines(*map(read_only, arrays), of_leads, out, ends_N)
        data = out[: ends_N[-1]]
    total_N = total_N[order_N]

    def lines_of(begin: int, end: int) -> SortedLines:
        at = int(ends_N[begin - 1]) if begin else 0
        return SortedLines(data[at : ends_N[end - 1]].copy(), ends_N[begin:end] - at, total_N[begin:end])

    n, head = len(order_N), int(counts[0])
    if len(ids) == 1:
        return ListsPart(ids, lines_of(0, n), data[:0], None)
    tail = n - int(counts[-1])
    return ListsPart(ids, lines_of(0, head), data[ends_N[head - 1] : ends_N[tail - 1]].copy(), lines_of(tail, n))


class ListJoiner:
    """Joins the parts of a text, in order. A list that continues in the next parts is sorted again."""

    def __init__(self, best: bool, is_json: bool):
        self.best, self.is_json = best, is_json
        self._open: list[SortedLines] = []  # of the list that may continue
        self._id = b""
        self._seen: dict[bytes, bytes] = {}

    @property
    def lists(self) -> int:
        """The number of lists so far."""
        return len(self._seen)

    def add(self, part: ListsPart) -> Iterator[np.ndarray]:
        """Yield the lines of all lists that cannot continue.

        Raises InputError if an id occurs again after other lists.
        """
        continues = bool(self._open) and part.ids[0] == self._id
        check_once(part.ids[continues:], self.is_json, self._seen)
        if not continues:
            yield from self.close()
        self._open.append(part.first)
        self._id = part.ids[-1]
        if part.last is not None:
            yield from self.close()
            yield part.middle
            self._open = [part.last]

    def close(self) -> Iterator[np.ndarray]:
        """Yield the lines of the last list."""
        if len(self._open) == 1:
            yield self._open[0].data
        elif self._open:
            data, total_L = (
                np.concatenate([getattr(part, name) for part in self._open]) for name in ("data", "total_L")
            )
            begins = np.cumsum([0, *(len(part.data) for part in self._open[:-1])])
            ends_L = np.concatenate([part.ends_L + at for part, at in zip(self._open, begins, strict=True)])
            order_L = np.argsort(-total_L, kind="stable")
            yield gather_lines(data, ends_L, order_L[: 1 if self.best else None])[0]
        self._open = []


def check_once(ids: Sequence[bytes], is_json: bool, seen: dict[bytes, bytes] | None = None) -> None:
    """Raise InputError for an id that occurs twice or is in `seen`; add all ids to `seen`.

    is_json  ids are those of JSON lines, which may be written in several ways: 1, 1.0, "1"
    seen     ids as text -> as they are written
    """
    seen = {} if seen is None else seen
    for name in ids:
        text = json_id(name) if is_json else name
        if text in seen:
            shown, first, again = (some.decode("utf-8", "replace") for some in (text, seen[text], name))
            if first != again:
                raise InputError(f"list {shown!r} has the ids {first} and {again}; write each id in one way")
            raise InputError(f"list {shown!r} occurs again after other lists; put the lines of each id together")
        seen[text] = name


def gather_lines(data: np.ndarray, ends_N: np.ndarray, order_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (lines order_L of data one after the other, their ends); ends_N are the ends of all lines in data."""
    starts_N = np.concatenate([np.zeros(1, np.int64), ends_N[:-1]])
    ends_L = np.cumsum(ends_N[order_L] - starts_N[order_L])
    out = np.empty(ends_L[-1], np.uint8)
    _gather(read_only(data), read_only(starts_N), read_only(order_L), read_only(ends_L), out)
    return out, ends_L


def _with_ids(ids: Sequence[bytes], data: np.ndarray, ends_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (lines with their ids before them, their ends)."""
    texts = data.tobytes().split(b"\n")[:-1]
    lines = [id + b" " + text if text else id for id, text in zip(ids, texts, strict=True)]
    return np.frombuffer(b"\n".join([*lines, b""]), np.uint8), np.cumsum([len(line) + 1 for line in lines])


@njit(nogil=True, cache=True)
def _gather(data, starts_N, order_L, ends_L, out):
    at = 0
    for line in range(len(order_L)):
        shift = starts_N[order_L[line]] - at
        while at < ends_L[line]:
            out[at] = data[at + shift]
            at += 1


@njit(nogil=True, cache=True)
def _write_features(data, before, score_NM, n, leads, out, at):
    """Write the new features of line n; the first of a JSON object has no comma before it."""
    offsets_M, text = leads
    for m in range(score_NM.shape[1]):
        skipped = 2 if m == 0 and data[before - 1] == 123 else 0
        at = copy_bytes(text, offsets_M[m] + skipped, offsets_M[m + 1], out, at)
        at = write_float32(score_NM[n, m], out, at)
    return at


@njit(nogil=True, cache=True)
def _write_lines(data, spans_N9, order_N, score_NM, total_N, leads, out, ends_N):
    """Write lines in an order, with new features after the old ones; fill ends_N with their ends."""
    at = np.int64(0)
    for i in range(len(order_N)):
        n = order_N[i]
        features, number, number_end = spans_N9[n, FEATURES_END], spans_N9[n, NUMBER], spans_N9[n, NUMBER_END]
        if features <= number:
            at = copy_bytes(data, spans_N9[n, LINE], features, out, at)
            at = _write_features(data, features, score_NM, n, leads, out, at)
            at = copy_bytes(data, features, number, out, at)
            at = write_float32(total_N[n], out, at)
            at = copy_bytes(data, number_end, spans_N9[n, LINE_END], out, at)
        else:  # a JSON object with its total first
            at = copy_bytes(data, spans_N9[n, LINE], number, out, at)
            at = write_float32(total_N[n], out, at)
            at = copy_bytes(data, number_end, features, out, at)
            at = _write_features(data, features, score_NM, n, leads, out, at)
            at = copy_bytes(data, features, spans_N9[n, LINE_END], out, at)
        out[at] = 10
        at += 1
        ends_N[i] = at
