"""Read n-best lists: the parts of their lines, and the values of named features."""

# mypy: allow-untyped-defs

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from mgpu_ngram.core.errors import SHOWN_CHARACTERS, InputError
from mgpu_ngram.core.models.arpa_lines import count_newlines, newline
from mgpu_ngram.core.nbest.json_lines import parse_json
from mgpu_ngram.core.nbest.moses_lines import (
    BARS,
    FIELDS,
    FINE,
    ID,
    ID_END,
    INFINITE,
    NO_ID,
    NO_KEY,
    NO_NUMBER,
    NO_OBJECT,
    SPACE_IN_ID,
    TAKEN,
    VALUES,
    parse_moses,
)
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.kernels.common.word_table import equal_words
from mgpu_ngram.kernels.compile_cpu import njit, read_only

EXACT_FLOATS = 2.0**53  # smaller whole numbers are exact
REASONS = {
    FIELDS: "is not a line of an n-best list; give id ||| text ||| features ||| total",
    BARS: "has a word that begins or ends with |||; write spaces around it: id ||| text ||| features ||| total",
    SPACE_IN_ID: "has white space in its id; give id ||| text ||| features ||| total",
    NO_ID: "has no id before its text; give id ||| text ||| features ||| total",
    NO_NUMBER: "has a weighted feature or a total that is not a number; correct it",
    INFINITE: "has a weighted feature or a total that is infinite; correct it",
    NO_OBJECT: "is not a JSON object; give an object a line",
    NO_KEY: 'lacks a key, or has one of another type; give {"id": 0, "text": "", "features": {}, "total": 0}',
}


class Names(NamedTuple):
    """The names of features that the parser looks up.

    words    the names; name 0 is the total, which has no name in a line
    columns  the values of name w are in columns[w]:columns[w + 1]; no columns for a name that lines must not have
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
    spans_N9     (N, 9) int64: the first byte and the end of the line without white space, of its id and of its text;
                 the end of its features; the first byte and the end of its total
    values_NC    (N, C) float32: the total, then the values of the named features; 0 for a feature that a line lacks
    found_W      (W,) bool: whether a line has the feature of a name
    text_B       uint8, the texts, each with a newline
    """

    data: np.ndarray
    spans_N9: np.ndarray
    values_NC: np.ndarray
    found_W: np.ndarray
    text_B: np.ndarray


class WrongLine(InputError):
    """A line is wrong: `at` is a byte in it, `reason` says why."""

    def __init__(self, at: int, reason: str):
        super().__init__(reason)
        self.at, self.reason = at, reason


def parse_nbest(data: np.ndarray, names: Names, is_json: bool = False) -> NbestLines:
    """Return the lines of n-best lists. Raises WrongLine.

    data     (B,) uint8, whole lines, each with a newline
    is_json  a line is a JSON object with the keys id, text, features (an object of numbers and lists of them) and
             total. Else it is "id ||| text ||| features ||| total", as Moses and Amun write it: features are
             "NAME= value" with one value or several, or "NAME=value"; further fields may follow the total, and an
             alignment may precede the features
    """
    N, W = int(count_newlines(read_only(data), 0, len(data))), len(names.words)
    spans_N9 = np.empty((N, 9), np.int64)
    values_NC = np.zeros((N, int(names.columns[-1])), np.float32)
    found_W, text_B = np.zeros(W, bool), np.empty(len(data), np.uint8)
    table = tuple(map(read_only, (names.columns, names.words.offsets_V, names.words.data, names.words.slots_C)))
    parse = parse_json if is_json else parse_moses
    code, at, word, size = parse(read_only(data), table, spans_N9, values_NC, found_W, text_B)
    if code != FINE:
        _refuse(code, at, names, word)
    return NbestLines(data, spans_N9, values_NC, found_W, text_B[:size])


def _refuse(code: int, at: int, names: Names, word: int) -> NoReturn:
    """Raise WrongLine for an error code of the parser."""
    name = names.words.word(word)
    if code == TAKEN:
        raise WrongLine(at, f"already has a feature {name}; give the model another name with --names (in YAML names)")
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
    shown = line[:SHOWN_CHARACTERS].decode("utf-8", "replace")
    return start, repr(shown) + ("..." if len(line) > SHOWN_CHARACTERS else "")


def list_numbers(lines: NbestLines) -> np.ndarray:
    """Return list_N (N,) int64, the number of each line's list: neighbouring lines of one id are a list."""
    return np.asarray(_number_lists(read_only(lines.data), read_only(lines.spans_N9)))


def list_ids(lines: NbestLines, firsts: np.ndarray) -> list[bytes]:
    """Return the ids of lines, as they are written."""
    return [lines.data[a:b].tobytes() for a, b in lines.spans_N9[firsts, ID : ID_END + 1].tolist()]


def json_id(name: bytes) -> bytes:
    """Return the id of a JSON list as text: a string without its quotes and escapes, a whole number as digits."""
    try:
        value = json.loads(name)
    except (ValueError, RecursionError):
        return name
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < EXACT_FLOATS
    return str(int(value) if is_whole else value).encode()


@njit(nogil=True, cache=True)
def _number_lists(data, spans_N9):
    list_N = np.zeros(len(spans_N9), np.int64)
    for n in range(1, len(spans_N9)):
        same = equal_words(
            data, spans_N9[n, ID], spans_N9[n, ID_END], data, spans_N9[n - 1, ID], spans_N9[n - 1, ID_END]
        )
        list_N[n] = list_N[n - 1] + (not same)
    return list_N
