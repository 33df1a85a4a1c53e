"""Parse n-best lists in JSON lines: objects with the keys id, text, features and total."""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from mgpu_ngram.core.documents.json_values import hex_value, write_utf8
from mgpu_ngram.core.models.arpa_lines import newline
from mgpu_ngram.core.nbest.moses_lines import (
    FEATURES_END,
    FINE,
    ID,
    ID_END,
    LINE,
    LINE_END,
    NO_KEY,
    NO_OBJECT,
    NUMBER,
    NUMBER_END,
    TEXT,
    TEXT_END,
    VALUES,
    before_spaces,
    begin_feature,
    past_spaces,
    read_number,
    read_value,
)
from mgpu_ngram.kernels.common.find_tokens import is_space
from mgpu_ngram.kernels.common.word_table import equal_words
from mgpu_ngram.kernels.compile_cpu import njit

_QUOTE, _COMMA, _COLON, _BACKSLASH, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b'",:\\{}[]'
_ID, _TEXT, _FEATURES, _TOTAL = (np.frombuffer(key, np.uint8) for key in (b"id", b"text", b"features", b"total"))
_ALL_KEYS = 15  # a bit each
_REPLACEMENT = 0xFFFD  # for a half of a surrogate pair


@njit(nogil=True, cache=True)
def parse_json(data, names, spans_N9, values_NC, found_W, text_B):
    """Fill the arrays; return (error code of the first wrong line, a byte in it, number of a name, size of text_B).

    names  the columns of `Names`, and the arguments of `find_word` that look names up
    """
    filled_W = np.full(len(found_W), -1, np.int64)  # the last line that has the name
    start, size = np.int64(0), np.int64(0)
    word = np.int64(0)
    for n in range(len(spans_N9)):
        stop = np.int64(newline(data, start))
        at, keys = np.int64(past_spaces(data, start)), 0
        spans_N9[n, LINE], spans_N9[n, LINE_END] = at, before_spaces(data, start, stop)
        if data[at] != _OPEN:
            return NO_OBJECT, start, word, size
        at = past_spaces(data, at + 1)
        while data[at] != _CLOSE:
            key, key_end, value, end = _member(data, at)
            if end < 0:
                return NO_OBJECT, start, word, size
            which = _which_key(data, key, key_end)
            first = data[value]
            if which >= 0:
                keys |= 1 << which
            if which == 0:
                if not (first == _QUOTE or first == 45 or 48 <= first <= 57):
                    return NO_KEY, start, word, size
                spans_N9[n, ID], spans_N9[n, ID_END] = value, end
            elif which == 1:
                if first != _QUOTE:
                    return NO_KEY, start, word, size
                spans_N9[n, TEXT], spans_N9[n, TEXT_END] = value + 1, end - 1
            elif which == 2:
                if first != _OPEN:
                    return NO_KEY, start, word, size
                spans_N9[n, FEATURES_END] = before_spaces(data, value + 1, end - 1)
                code, word = _read_features(data, value, names, n, values_NC, filled_W)
                if code != FINE:
                    return code, start, word, size
            elif which == 3:
                code, total = read_number(data, value, end)
                if code != FINE:
                    return code, start, word, size
                values_NC[n, 0] = total
                spans_N9[n, NUMBER], spans_N9[n, NUMBER_END] = value, end
            at = _past_comma(data, end)
            if at < 0:
                return NO_OBJECT, start, word, size
        if past_spaces(data, at + 1) != stop:
            return NO_OBJECT, start, word, size
        if keys != _ALL_KEYS:
            return NO_KEY, start, word, size
        size = _write_text(data, spans_N9[n, TEXT], spans_N9[n, TEXT_END], text_B, size)
        if size < 0:
            return NO_OBJECT, start, word, size
        text_B[size] = 10
        size += 1
        start = stop + 1
    for w in range(len(found_W)):
        found_W[w] = filled_W[w] >= 0
    return FINE, start, word, size


@njit(nogil=True, cache=True)
def _member(data, at):
    """Return (start and end of the key without quotes, start and end of the value) at `at`; the last is -1 if wrong."""
    if data[at] != _QUOTE:
        return at, at, at, np.int64(-1)
    key_end = _value_end(data, at)
    if key_end < 0:
        return at, at, at, np.int64(-1)
    colon = past_spaces(data, key_end)
    if data[colon] != _COLON:
        return at, at, at, np.int64(-1)
    value = past_spaces(data, colon + 1)
    return at + 1, key_end - 1, value, np.int64(_value_end(data, value))


@njit(nogil=True, cache=True)
def _past_comma(data, at):
    """Return the start of the next member or item, or the closing bracket; -1 if neither follows."""
    at = past_spaces(data, at)
    if data[at] == _COMMA:
        at = past_spaces(data, at + 1)
        return at if data[at] != _CLOSE and data[at] != _CLOSE_LIST else np.int64(-1)
    return at if data[at] == _CLOSE or data[at] == _CLOSE_LIST else np.int64(-1)


@njit(nogil=True, cache=True)
def _value_end(data, at):
    """Return the end of the JSON value at `at`; -1 if the line ends first or there is none."""
    depth = 0
    while data[at] != 10:
        c = data[at]
        if c == _QUOTE:
            at += 1
            while data[at] != _QUOTE:
                if data[at] == _BACKSLASH:
                    at += 1
                if data[at] == 10:
                    return np.int64(-1)
                at += 1
        elif c in (_OPEN, _OPEN_LIST):
            depth += 1
        elif c in (_CLOSE, _CLOSE_LIST):
            if depth == 0:
                return np.int64(-1)
            depth -= 1
        elif depth == 0:
            if c == _COMMA or is_space(c):
                return np.int64(-1)
            while not (is_space(data[at]) or data[at] == _COMMA or data[at] == _CLOSE or data[at] == _CLOSE_LIST):
                at += 1
            return np.int64(at)
        at += 1
        if depth == 0:
            return np.int64(at)
    return np.int64(-1)


@njit(nogil=True, cache=True)
def _which_key(data, start, stop):
    """Return the number of a key; -1 for others."""
    if equal_words(data, start, stop, _ID, 0, len(_ID)):
        return 0
    if equal_words(data, start, stop, _TEXT, 0, len(_TEXT)):
        return 1
    if equal_words(data, start, stop, _FEATURES, 0, len(_FEATURES)):
        return 2
    return 3 if equal_words(data, start, stop, _TOTAL, 0, len(_TOTAL)) else -1


@njit(nogil=True, cache=True)
def _read_features(data, at, names, n, values_NC, filled_W):
    """Read the weighted features of line n in the object at `at`; return (error code, number of a name)."""
    columns = names[0]
    word = np.int64(0)
    at = past_spaces(data, at + 1)
    while data[at] != _CLOSE:
        key, key_end, value, end = _member(data, at)
        if end < 0:
            return NO_OBJECT, word
        code, word = begin_feature(data, key, key_end, names, n, filled_W)
        if code != FINE:
            return code, word
        if word:
            is_list = data[value] == _OPEN_LIST
            i = past_spaces(data, value + 1) if is_list else value
            column = columns[word]
            while data[i] != _CLOSE_LIST:
                stop = np.int64(_value_end(data, i))  # -1 if wrong; then `read_value` finds no number
                code = read_value(data, i, stop, values_NC, n, column, columns[word + 1])
                if code != FINE:
                    return code, word
                column += 1
                if not is_list:
                    break
                i = _past_comma(data, stop)
                if i < 0 or data[i] == _CLOSE:
                    return NO_OBJECT, word
            if column != columns[word + 1]:
                return VALUES, word
        at = _past_comma(data, end)
        if at < 0:
            return NO_OBJECT, word
    return FINE, word


@njit(nogil=True, cache=True)
def _write_text(data, at, stop, out, size):
    """Write a string without its escapes to out[size:], white space as a space; return the end, -1 if it is wrong."""
    while at < stop:
        c = np.int64(data[at])
        at += 1
        if c == _BACKSLASH:
            c = np.int64(data[at])
            at += 1
            if c == 117:  # u
                c = np.int64(hex_value(data, at))
                at += 4
                if 0xD800 <= c < 0xDC00 and at + 2 <= stop and data[at] == _BACKSLASH and data[at + 1] == 117:
                    low = np.int64(hex_value(data, at + 2))
                    if 0xDC00 <= low < 0xE000:
                        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                        at += 6
                if c < 0:
                    return np.int64(-1)
                c = np.int64(32 if c < 0x80 and is_space(c) else _REPLACEMENT if 0xD800 <= c < 0xE000 else c)
                size = write_utf8(out, size, c)
                continue
            if c == 98 or c == 102 or c == 110 or c == 114 or c == 116:  # b f n r t
                c = np.int64(32)
            elif c != _QUOTE and c != _BACKSLASH and c != 47:
                return np.int64(-1)
        out[size] = c
        size += 1
    return size
