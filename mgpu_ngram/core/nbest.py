"""Read n-best lists: the parts of their lines, and the values of named features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from mgpu_ngram.core.arpa_lines import count_newlines, newline
from mgpu_ngram.core.decimals import read_float32
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.words import Words
from mgpu_ngram.kernels.common.find_tokens import is_space
from mgpu_ngram.kernels.common.words import equal_words, find_word
from mgpu_ngram.kernels.compile import njit, read_only

SHOWN_BYTES = 60  # of a wrong line in a message
# Columns of spans_N8
ID, ID_END, TEXT, TEXT_END, FEATURES_END, NUMBER, NUMBER_END, LINE_END = range(8)
# Error codes of the parser
FINE, FIELDS, NO_ID, NO_NUMBER, INFINITE, VALUES, TAKEN = range(7)

REASONS = {
    FIELDS: "is no line of an n-best list; give id ||| text ||| features ||| total",
    NO_ID: "has no id before its text; give id ||| text ||| features ||| total",
    NO_NUMBER: "has a weighted feature or a total that is no number; correct it",
    INFINITE: "has a weighted feature or a total that is infinite; correct it",
}


class Names(NamedTuple):
    """The names of features that the parser looks up.

    words    the names; name 0 is that of the total, which has no name in a line
    columns  of the values: name w has columns[w]:columns[w + 1]; none for a name that lines must not have
    """

    words: Words
    columns: np.ndarray

    @classmethod
    def of(cls, weighted: Mapping[str, int], taken: tuple[str, ...] = ()) -> Names:
        """Return the names of features with the number of their values, and of features that lines must not have."""
        sizes = [1, *weighted.values(), *(0 for _ in taken)]
        return cls(Words.of(["", *weighted, *taken]), np.cumsum([0, *sizes]))


@dataclass
class NbestLines:
    """N lines of n-best lists, in host memory.

    data         (B,) uint8, the lines, each with a newline
    spans_N8     (N, 8) int64: the first byte and the end of the id, and of the text; the end of the features; the first
                 byte and the end of the total; the end of the line without white space
    values_NC    (N, C) float32: the total, then the values of the named features; 0 for a feature that a line lacks
    found_W      (W,) bool: whether a line has the feature of a name
    text_B       uint8, the texts, each with a newline
    """

    data: np.ndarray
    spans_N8: np.ndarray
    values_NC: np.ndarray
    found_W: np.ndarray
    text_B: np.ndarray


class WrongLine(InputError):
    """A line is wrong: `at` is a byte in it, `reason` says why."""

    def __init__(self, at: int, reason: str):
        super().__init__(reason)
        self.at, self.reason = at, reason


def parse_nbest(data: np.ndarray, names: Names) -> NbestLines:
    """Return the lines of n-best lists as Moses and Amun write them.

    data   (B,) uint8, whole lines, each with a newline

    A line is "id ||| text ||| features ||| total". Further fields may follow the total. An alignment may precede the
    features, as Amun writes it. Features are "NAME= value" with one value or several. Raises WrongLine.
    """
    N, W = int(count_newlines(read_only(data), 0, len(data))), len(names.words)
    spans_N8 = np.empty((N, 8), np.int64)
    values_NC = np.zeros((N, int(names.columns[-1])), np.float32)
    found_W, text_B = np.zeros(W, bool), np.empty(len(data), np.uint8)
    table = map(read_only, (names.columns, names.words.offsets_V, names.words.data, names.words.slots_C))
    code, at, word, size = _parse(read_only(data), *table, spans_N8, values_NC, found_W, text_B)  # type: ignore[call-arg]
    if code != FINE:
        _refuse(code, at, names, word)
    return NbestLines(data, spans_N8, values_NC, found_W, text_B[:size])


def _refuse(code: int, at: int, names: Names, word: int) -> NoReturn:
    """Raise WrongLine for an error code of the parser."""
    name = names.words.word(word)
    if code == TAKEN:
        raise WrongLine(at, f"has a feature {name} already; name the model otherwise: --names (in YAML names)")
    if code == VALUES:
        weights = int(names.columns[word + 1] - names.columns[word])
        raise WrongLine(
            at, f"has more or fewer values of feature {name} than its weights, {weights}; give one for each"
        )
    raise WrongLine(at, REASONS[code])


def shown_line(data: np.ndarray, at: int) -> tuple[int, str]:
    """Return the start of the line that contains byte `at`, and its first bytes for a message."""
    start = data[:at].tobytes().rfind(b"\n") + 1
    line = data[start : int(newline(read_only(data), start))].tobytes()
    shown = line[:SHOWN_BYTES].decode("utf-8", "replace")
    return start, repr(shown) + ("..." if len(line) > SHOWN_BYTES else "")


@njit(nogil=True, cache=True)
def past_spaces(text, at):
    """Return the first byte from `at` on that is a newline or not white space."""
    while is_space(text[at]) and text[at] != 10:
        at += 1
    return at


@njit(nogil=True, cache=True)
def before_spaces(text, start, stop):
    """Return the end of text[start:stop] without the white space at its end."""
    while stop > start and is_space(text[stop - 1]):
        stop -= 1
    return stop


@njit(nogil=True, cache=True)
def _past_token(text, at):
    """Return the first byte from `at` on that is white space."""
    while not is_space(text[at]):
        at += 1
    return at


@njit(nogil=True, cache=True)
def read_number(text, at, stop):
    """Return (error code, value) of the number text[at:stop]."""
    value, end = read_float32(text, at)
    if end == at or end != stop:
        return NO_NUMBER, value
    return (FINE if np.isfinite(value) else INFINITE), value


@njit(nogil=True, cache=True)
def _find_fields(text, start, stop, fields_F2):
    """Fill fields_F2 with the spans of the fields of a line, without white space around them; return their number.

    Fields are between tokens "|||". The last row receives the last field that fits; the number counts all.
    """
    F, begin, at = 0, start, start
    while at <= stop:
        ends = at == stop
        bar = (
            not ends and text[at] == 124 and at + 3 <= stop and text[at + 1] == 124 and text[at + 2] == 124
            and (at == start or is_space(text[at - 1])) and (at + 3 == stop or is_space(text[at + 3]))
        )  # fmt: skip
        if ends or bar:
            if F < len(fields_F2):
                first = begin
                while first < at and is_space(text[first]):
                    first += 1
                last = before_spaces(text, first, at)
                if first == last:  # an empty field: where a writer would begin it
                    first = last = begin
                fields_F2[F, 0], fields_F2[F, 1] = first, last
            F += 1
            begin = at + 3
            at += 2
        at += 1
    return F


@njit(nogil=True, cache=True)
def _parse(data, columns, offsets_V, names, slots_C, spans_N8, values_NC, found_W, text_B):
    """Fill the arrays; return (error code of the first wrong line, a byte in it, number of a name, size of text_B)."""
    fields_F2 = np.empty((5, 2), np.int64)
    filled_W = np.full(len(found_W), -1, np.int64)  # the last line that has the name
    start, size = 0, 0
    for n in range(len(spans_N8)):
        stop = newline(data, start)
        spans_N8[n, LINE_END] = before_spaces(data, start, stop)
        F = _find_fields(data, start, stop, fields_F2)
        if F < 4:
            return FIELDS, start, 0, size
        spans_N8[n, ID], spans_N8[n, ID_END] = fields_F2[0, 0], fields_F2[0, 1]
        spans_N8[n, TEXT], spans_N8[n, TEXT_END] = fields_F2[1, 0], fields_F2[1, 1]
        if fields_F2[0, 0] == fields_F2[0, 1]:
            return NO_ID, start, 0, size
        total = 3
        code, value = read_number(data, fields_F2[3, 0], fields_F2[3, 1])
        if code == NO_NUMBER and F > 4:  # an alignment precedes the features
            total = 4
            code, value = read_number(data, fields_F2[4, 0], fields_F2[4, 1])
        if code != FINE:
            return code, start, 0, size
        spans_N8[n, FEATURES_END] = fields_F2[total - 1, 1]
        spans_N8[n, NUMBER], spans_N8[n, NUMBER_END] = fields_F2[total, 0], fields_F2[total, 1]
        values_NC[n, 0] = value
        code, word = _read_features(
            data, fields_F2[total - 1, 0], fields_F2[total - 1, 1], columns, offsets_V, names, slots_C, n, values_NC,
            filled_W,
        )  # fmt: skip
        if code != FINE:
            return code, start, word, size
        for i in range(spans_N8[n, TEXT], spans_N8[n, TEXT_END]):
            text_B[size] = data[i]
            size += 1
        text_B[size] = 10
        size += 1
        start = stop + 1
    for word in range(len(found_W)):
        found_W[word] = filled_W[word] >= 0
    return FINE, start, 0, size


@njit(nogil=True, cache=True)
def _read_features(data, at, stop, columns, offsets_V, names, slots_C, n, values_NC, filled_W):
    """Read the weighted features of line n at data[at:stop]; return (error code, number of the name)."""
    word, column = np.int64(0), np.int64(0)  # of the values that follow; word 0: they have no weights
    while at < stop:
        end = _past_token(data, at)
        if data[end - 1] == 61 or data[end - 1] == 58:  # = :
            if column != columns[word + 1] and word:
                return VALUES, word
            word = np.int64(find_word(data, at, end - 1, offsets_V, names, slots_C))
            if word:
                if columns[word] == columns[word + 1]:
                    return TAKEN, word
                if filled_W[word] == n:
                    return VALUES, word
                filled_W[word] = n
            column = columns[word]
        elif word:
            if column == columns[word + 1]:
                return VALUES, word
            code, value = read_number(data, at, end)
            if code != FINE:
                return code, word
            values_NC[n, column] = value
            column += 1
        at = end
        while at < stop and is_space(data[at]):
            at += 1
    return (VALUES if word and column != columns[word + 1] else FINE), word


@njit(nogil=True, cache=True)
def number_lists(data, spans_N8):
    """Return list_N (N,) int64, the number of each line's list: neighbouring lines of one id are a list."""
    list_N = np.zeros(len(spans_N8), np.int64)
    for n in range(1, len(spans_N8)):
        same = equal_words(
            data, spans_N8[n, ID], spans_N8[n, ID_END], data, spans_N8[n - 1, ID], spans_N8[n - 1, ID_END]
        )
        list_N[n] = list_N[n - 1] + (not same)
    return list_N
