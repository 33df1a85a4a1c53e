"""Read and write the n-gram lines of ARPA files: a log10 probability, a tab, words, and maybe a tab and a backoff.

`text` is always uint8; each of its lines ends with a newline, also the last one.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numpy import int64, uint32, uint64

from mgpu_ngram.core.decimals import MAX_NUMBER_BYTES, read_float32, short_text, write_float32
from mgpu_ngram.kernels.common.ascii import BACKSLASH, ONES
from mgpu_ngram.kernels.common.load_bytes import load_8
from mgpu_ngram.kernels.common.word_table import equal_words, find_word
from mgpu_ngram.kernels.compile_cpu import njit
from mgpu_ngram.kernels.intrinsics import load_u64, store_u64

# Error codes of `parse_lines`
FINE, NO_PROB, POSITIVE, NO_TAB, TOO_SHORT, STRANGE, TOO_LONG, NO_BACKOFF, INFINITE, AT_THE_TOP, TOO_MANY = range(11)

TOUCHED_ROWS = 1 << 11  # whose words fit a cache
TABS, NEWLINES, RETURNS, BLANKS = (uint64(c * 0x0101010101010101) for c in (9, 10, 13, 32))


@njit(nogil=True, cache=True)
def newline(text, at):
    """Return the position of the first newline from `at` on, or the end of the text."""
    while at < len(text) and text[at] != 10:
        at += 1
    return at


@njit(nogil=True, cache=True)
def whole_lines(text):
    """Return the end of the last complete line."""
    end = len(text)
    while end > 0 and text[end - 1] != 10:
        end -= 1
    return end


@njit(nogil=True, cache=True)
def line_start(text, at):
    """Return where the line that contains byte `at` starts."""
    while at > 0 and text[at - 1] != 10:
        at -= 1
    return at


@njit(nogil=True, cache=True)
def count_newlines(text, start, stop):
    count = 0
    for c in text[start:stop]:
        count += c == 10
    return count


@njit(nogil=True, cache=True)
def scan_arpa(text, start, stop):
    """Return (number of non-blank lines, start of the first line that starts with a backslash or -1) of start:stop.

    Lines from that line on are not counted.
    """
    lines = plain = headers = 0
    here, next_one = text[start : stop - 1], text[start + 1 : stop]  # slices, so the compiler vectorises
    for i in range(len(here)):  # fast path: no line starts with a backslash or a blank
        ends = here[i] == 10
        lines += ends
        plain += ends & (next_one[i] > 32)
        headers += ends & (next_one[i] == BACKSLASH)
    if lines == plain and headers == 0 and text[start] > 32 and text[start] != BACKSLASH:
        return lines + 1, -1
    rows, i = 0, start
    while i < stop:
        if text[i] == BACKSLASH:
            return rows, i
        i = _past_space(text, i)
        rows += text[i] != 10
        i = newline(text, i) + 1
    return rows, -1


@njit(nogil=True, cache=True)
def find_row(text, start, row):
    """Return where the row-th non-blank line from `start` on starts."""
    i = start
    while i < len(text):
        at = _past_space(text, i)
        if text[at] != 10:
            if row == 0:
                break
            row -= 1
        i = newline(text, at) + 1
    return i


@njit(nogil=True, cache=True)
def skip_blank_lines(text, i):
    """Return the first byte from i on that is not white space."""
    while i < len(text) and (text[i] == 32 or 9 <= text[i] <= 13):
        i += 1
    return i


@njit(nogil=True, cache=True)
def _past_space(text, i):
    """Return the first byte from i on that is a newline or not white space."""
    while text[i] == 32 or (9 <= text[i] <= 13 and text[i] != 10):
        i += 1
    return i


@njit(nogil=True, cache=True)
def _past_blanks(text, i):
    """Return the first byte from i on that is not a blank between words."""
    while text[i] == 32 or text[i] == 9 or text[i] == 13:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _past_word(text, i):
    """Return the first byte from i on that is a tab, a newline, a carriage return or a space."""
    while True:
        chunk = load_8(text, i)
        found = _zeros(chunk ^ TABS) | _zeros(chunk ^ NEWLINES) | _zeros(chunk ^ RETURNS) | _zeros(chunk ^ BLANKS)
        if found:
            first = (found & (~found + uint64(1))) >> uint64(7)  # 1 << 8 * k for byte k
            return i + int64((first * uint64(0x0001020304050607)) >> uint64(56))
        i += 8


@njit(nogil=True, cache=True)
def _zeros(chunk):
    """Return bit 7 of each zero byte; bytes above the first zero may have it set by mistake."""
    return (chunk - ONES) & ~chunk & (ONES << uint64(7))


@njit(nogil=True, cache=True)
def is_unknown(text, start, stop):
    """Return whether text[start:stop] is <unk> or <UNK>."""
    if stop - start != 5 or text[start] != 60 or text[stop - 1] != 62:
        return False
    small = text[start + 1] == 117 and text[start + 2] == 110 and text[start + 3] == 107
    return small or (text[start + 1] == 85 and text[start + 2] == 78 and text[start + 3] == 75)


@njit(nogil=True, cache=True)
def parse_lines(text, start, stop, row, rows, rules, words, arrays):
    """Parse the n-grams of lines start:stop into rows `row` and on of the arrays.

    rows    number of rows of the order: a further line is an error, TOO_MANY
    rules   top, whether this is the highest order, which has no backoffs: `backoff` is not written; and zero, whether
            probabilities over 0 become 0, else they are errors, POSITIVE
    words   offsets_V, data and slots_C, which looks up the ids of words. For unigrams there are no slots
    arrays  spans_G (G, 2) receives the start and stop of each unigram's word, ids (G, n) those of longer n-grams; then
            prob (G,) and backoff (G,)

    Returns (error code of the first wrong line, the byte where the error is, its row).
    """
    (top, zero), (offsets_V, data, slots_C), (spans_G, ids, prob, backoff) = rules, words, arrays
    order = ids.shape[1]
    last_start, last_stop = np.zeros(order, np.int64), np.zeros(order, np.int64)  # words of the line before
    i = start
    while i < stop:
        i = _past_space(text, i)
        if text[i] == 10:
            i += 1
            continue
        if row == rows:
            return TOO_MANY, i, row
        value, end = read_float32(text, i)
        if end == i:
            return NO_PROB, i, row
        if value > 0 and not zero:
            return POSITIVE, i, row
        prob[row] = min(value, np.float32(0))
        i = end
        if not (text[i] == 9 or (order > 1 and (text[i] == 32 or text[i] == 13))):
            return NO_TAB, i, row
        for k in range(order):
            begin = _past_blanks(text, i)
            if text[begin] == 10:
                return TOO_SHORT, begin, row
            i = _past_word(text, begin)
            if len(slots_C) == 0:
                spans_G[row, 0], spans_G[row, 1] = begin, i
            elif equal_words(text, begin, i, text, last_start[k], last_stop[k]):  # neighbouring lines share many words
                ids[row, k] = ids[row - 1, k]
            else:
                v = find_word(text, begin, i, offsets_V, data, slots_C)
                if v == 0 and not is_unknown(text, begin, i):
                    return STRANGE, begin, row
                ids[row, k] = uint32(v)
            last_start[k], last_stop[k] = begin, i
        weight = np.float32(0.0)
        if text[i] == 9:
            i = _past_space(text, i)
            weight, end = read_float32(text, i)
            if end == i:
                return NO_BACKOFF, i, row
            if top and weight != 0:
                return AT_THE_TOP, i, row
            if not np.isfinite(weight):
                return INFINITE, i, row
            i = end
        if text[i] == 13:
            i += 1
        if text[i] != 10:
            return TOO_LONG, i, row
        if not top:
            backoff[row] = weight
        i += 1
        row += 1
    return FINE, i, row


@njit(nogil=True, cache=True)
def gather_spans(text, spans_V, offsets_V, data):
    """Copy each word text[start:stop], except the first one, to data[offsets_V[v]:]."""
    for v in range(1, len(spans_V)):
        for i in range(spans_V[v, 1] - spans_V[v, 0]):
            data[offsets_V[v] + i] = text[spans_V[v, 0] + i]


@njit(nogil=True, cache=True)
def unknown_rows(text, spans_G):
    """Return the rows whose word is <unk> or <UNK>, int64."""
    return np.array([row for row in range(len(spans_G)) if is_unknown(text, spans_G[row, 0], spans_G[row, 1])], int64)


@njit(nogil=True, cache=True)
def format_lines(offsets_V, data, ids, prob, backoff):
    """Return the lines of n-grams as uint8; without backoffs if `backoff` is empty."""
    size = len(ids) * (2 * MAX_NUMBER_BYTES + ids.shape[1] + 2) + 16
    for row in range(len(ids)):
        for k in range(ids.shape[1]):
            v = uint64(ids[row, k])
            size += offsets_V[v + uint64(1)] - offsets_V[v]
    out = np.empty(size, np.uint8)
    at, seen = 0, 0
    for begin in range(0, len(ids), TOUCHED_ROWS):
        end = min(begin + TOUCHED_ROWS, len(ids))
        for row in range(begin, end):  # brings the words to the cache together: the next loop would wait for each
            for k in range(ids.shape[1]):
                seen += data[min(offsets_V[uint64(ids[row, k])], len(data) - 1)]
        for row in range(begin, end):
            # No calls that take arrays: Numba passes 7 numbers for each, which takes as long as the copy of a word.
            for is_backoff in range(1 + (len(backoff) > 0)):
                value = backoff[row] if is_backoff else prob[row]
                if is_backoff:
                    out[at] = 9
                    at += 1
                sign, low, high, length = short_text(value)
                if length:
                    out[at] = 45
                    at += sign
                    store_u64(out, at, low)
                    store_u64(out, at + 8, high)
                    at += length
                else:
                    at = write_float32(value, out, at)
                for k in range(0 if is_backoff else ids.shape[1]):
                    out[at] = 32 if k else 9
                    at += 1
                    v = uint64(ids[row, k])
                    i, stop = offsets_V[v], offsets_V[v + uint64(1)]
                    if stop - i <= 16 and i + 16 <= len(data):  # most words: no branch that depends on the length
                        store_u64(out, at, load_u64(data, i))
                        store_u64(out, at + 8, load_u64(data, i + 8))
                        at += stop - i
                    else:
                        for j in range(i, stop):
                            out[at] = data[j]
                            at += 1
            out[at] = 10
            at += 1
    return out[: at + (seen < 0)]  # a use of what was seen, so that the compiler keeps the loop
