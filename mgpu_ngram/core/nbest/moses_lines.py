"""Parse lines of n-best lists as Moses and Amun write them: id ||| text ||| features ||| total."""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from mgpu_ngram.core.decimals import read_float32
from mgpu_ngram.core.models.arpa_lines import newline
from mgpu_ngram.kernels.common.find_tokens import is_space
from mgpu_ngram.kernels.common.word_table import find_word
from mgpu_ngram.kernels.compile_cpu import njit

# Columns of spans_N9
LINE, LINE_END, ID, ID_END, TEXT, TEXT_END, FEATURES_END, NUMBER, NUMBER_END = range(9)
# Error codes of the parsers
FINE, FIELDS, NO_ID, NO_NUMBER, INFINITE, VALUES, TAKEN, NO_OBJECT, NO_KEY, BARS, SPACE_IN_ID = range(11)


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
def copy_bytes(data, start, stop, out, at):
    """Copy data[start:stop] to out, from `at` on; return where it ends."""
    for i in range(start, stop):
        out[at] = data[i]
        at += 1
    return at


@njit(nogil=True, cache=True)
def past_token(text, at):
    """Return the first byte from `at` on that is white space."""
    while not is_space(text[at]):
        at += 1
    return at


@njit(nogil=True, cache=True)
def has_bars(text, start, stop):
    """Return whether the word text[start:stop] begins or ends with three bars, and no fourth."""
    for at in (start, stop - 3):
        inside = start <= at and at + 3 <= stop
        bars = inside and text[at] == 124 and text[at + 1] == 124 and text[at + 2] == 124
        if bars and (at == start or text[at - 1] != 124) and (at + 3 == stop or text[at + 3] != 124):
            return True
    return False


@njit(nogil=True, cache=True)
def read_number(text, at, stop):
    """Return (error code, value) of the number text[at:stop]."""
    value, end = read_float32(text, at)
    if end == at or end != stop:
        return NO_NUMBER, value
    return (FINE if np.isfinite(value) else INFINITE), value


@njit(nogil=True, cache=True)
def read_value(text, at, stop, values_NC, n, column, last_column):
    """Write the number text[at:stop] as a value of line n; return the error code.

    last_column  the end of the columns of the feature
    """
    if column == last_column:
        return VALUES
    code, value = read_number(text, at, stop)
    if code == FINE:
        values_NC[n, column] = value
    return code


@njit(nogil=True, cache=True)
def _find_fields(text, start, stop, fields_F2):
    """Fill fields_F2 with the spans of the fields of a line, without white space around them; return their number.

    Fields are between tokens "|||". The last row receives the last field that fits; the number counts all. -1: a word
    begins or ends with three bars.
    """
    F, begin, at = 0, start, start
    while at <= stop:
        ends = at == stop
        bar = (
            not ends and text[at] == 124 and at + 3 <= stop and text[at + 1] == 124 and text[at + 2] == 124
            and (at == start or text[at - 1] != 124) and (at + 3 == stop or text[at + 3] != 124)
        )  # fmt: skip
        if bar:
            begins, ends_word = at == start or is_space(text[at - 1]), at + 3 == stop or is_space(text[at + 3])
            if begins != ends_word:
                return -1
            bar = begins
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
def parse_moses(data, names, spans_N9, values_NC, found_W, text_B):
    """Fill the arrays; return (error code of the first wrong line, a byte in it, number of a name, size of text_B).

    names  the columns of `Names`, and the arguments of `find_word` that look names up
    """
    fields_F2 = np.empty((5, 2), np.int64)
    filled_W = np.full(len(found_W), -1, np.int64)  # the last line that has the name
    start, size = 0, 0
    for n in range(len(spans_N9)):
        stop = newline(data, start)
        spans_N9[n, LINE], spans_N9[n, LINE_END] = past_spaces(data, start), before_spaces(data, start, stop)
        F = _find_fields(data, start, stop, fields_F2)
        if F < 4:
            return (BARS if F < 0 else FIELDS), start, 0, size
        spans_N9[n, ID], spans_N9[n, ID_END] = fields_F2[0, 0], fields_F2[0, 1]
        spans_N9[n, TEXT], spans_N9[n, TEXT_END] = fields_F2[1, 0], fields_F2[1, 1]
        if fields_F2[0, 0] == fields_F2[0, 1]:
            return NO_ID, start, 0, size
        if past_token(data, fields_F2[0, 0]) < fields_F2[0, 1]:
            return SPACE_IN_ID, start, 0, size
        total = 3
        code, value = read_number(data, fields_F2[3, 0], fields_F2[3, 1])
        if code == NO_NUMBER and F > 4:  # an alignment precedes the features
            total = 4
            code, value = read_number(data, fields_F2[4, 0], fields_F2[4, 1])
        if code != FINE:
            return code, start, 0, size
        spans_N9[n, FEATURES_END] = fields_F2[total - 1, 1]
        spans_N9[n, NUMBER], spans_N9[n, NUMBER_END] = fields_F2[total, 0], fields_F2[total, 1]
        values_NC[n, 0] = value
        code, word = _read_features(
            data, fields_F2[total - 1, 0], fields_F2[total - 1, 1], names, n, values_NC, filled_W
        )
        if code != FINE:
            return code, start, word, size
        for i in range(spans_N9[n, TEXT], spans_N9[n, TEXT_END]):
            text_B[size] = data[i]
            size += 1
        text_B[size] = 10
        size += 1
        start = stop + 1
    for word in range(len(found_W)):
        found_W[word] = filled_W[word] >= 0
    return FINE, start, 0, size


@njit(nogil=True, cache=True)
def begin_feature(data, start, stop, names, n, filled_W):
    """Note that line n has the feature data[start:stop]; return (error code, number of the name, 0 without weights)."""
    columns = names[0]
    word = np.int64(find_word(data, start, stop, *names[1:]))
    if word:
        if columns[word] == columns[word + 1]:
            return TAKEN, word
        if filled_W[word] == n:
            return VALUES, word
        filled_W[word] = n
    return FINE, word


@njit(nogil=True, cache=True)
def _read_features(data, at, stop, names, n, values_NC, filled_W):
    """Read the weighted features of line n at data[at:stop]; return (error code, number of the name)."""
    columns = names[0]
    word, column = np.int64(0), np.int64(0)  # of the values that follow; word 0: they have no weights
    while at < stop:
        end = past_token(data, at)
        name_end = end - 1
        if data[name_end] != 61 and data[name_end] != 58:  # = :
            name_end = at + 1  # of NAME=value
            while name_end < end and data[name_end] != 61:
                name_end += 1
        if name_end < end:
            if column != columns[word + 1] and word:
                return VALUES, word
            code, word = begin_feature(data, at, name_end, names, n, filled_W)
            if code != FINE:
                return code, word
            column, at = columns[word], name_end + 1
        if word and at < end:
            code = read_value(data, at, end, values_NC, n, column, columns[word + 1])
            if code != FINE:
                return code, word
            column += 1
        at = end
        while at < stop and is_space(data[at]):
            at += 1
    return (VALUES if word and column != columns[word + 1] else FINE), word
