"""Open files of n-best lists and lattices: find the format of lists, and convert Kaldi's archives to lines of Moses."""

# mypy: allow-untyped-defs

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mgpu_ngram.core.decimals import MAX_NUMBER_BYTES, write_float32
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus
from mgpu_ngram.core.inputs.file_sources import head_text, stored_source
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.inputs.read_text import read_list, whole_text
from mgpu_ngram.core.inputs.sources import Source, parquet_source
from mgpu_ngram.core.models.arpa_lines import newline
from mgpu_ngram.core.nbest.moses_lines import (
    FINE,
    before_spaces,
    copy_bytes,
    has_bars,
    past_spaces,
    past_token,
    read_number,
)
from mgpu_ngram.core.nbest.nbest import shown_line
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.file_heads import JSON_LINES, refuse_as_text, what_begins
from mgpu_ngram.core.utf8 import to_text
from mgpu_ngram.kernels.common.word_table import equal_words
from mgpu_ngram.kernels.compile_cpu import njit, read_only

# Error codes of `_join`
NO_KEY, OTHER_KEY, NO_COST, TOO_LONG, TOO_SHORT, BAR = range(1, 7)
_BAR = np.frombuffer(b" ||| ", np.uint8)
_JSON_START = re.compile(rb"""\s*\{\s*(["'}]|$)""")


def open_lists(paths: list[str], text_column: str | None) -> Corpus:
    """Return the corpus of n-best lists; a source of JSON lines has the column "text".

    text_column  column of Parquet files; None: "text", or the only column of text

    Raises InputError for files that cannot be read, for JSON lines beside other files, and for a text column without
    Parquet files.
    """
    sources = tuple(_source(*file, text_column) for file in find_files(paths))
    kinds = {bool(source.column) and source.format != "parquet" for source in sources}
    if len(kinds) > 1:
        raise InputError("some n-best lists are JSON lines and some are not; run each format separately")
    _refuse_column(text_column, sources)
    return Corpus(sources, "word")


def _source(name: str, location: str, text_column: str | None) -> Source:
    source = stored_source(name, location)
    if source.format == "parquet":
        return parquet_source(source, text_column)
    head = head_text(source)
    if what_begins(head) == JSON_LINES or _is_wrong_json(head):
        return replace(source, column="text")
    refuse_as_text(name, head)
    return source


def _refuse_column(text_column: str | None, sources: Sequence[Source]) -> None:
    """Raise InputError if a text column is given, but no file is Parquet."""
    if text_column is not None and not any(source.format == "parquet" for source in sources):
        raise InputError(
            f"text_column is {text_column!r} but {sources[0].name!r} is not Parquet; leave text_column out"
        )


def open_lattices(paths: list[str], text_column: str | None) -> Corpus:
    """Return the corpus of files of lattices. Reads no text, so a damaged file is no error; see `lattice_text`.

    text_column  as in `open_lists`
    """
    sources = tuple(stored_source(*file) for file in find_files(paths))
    _refuse_column(text_column, sources)
    return Corpus(sources, "word")


def lattice_text(source: Source, text_column: str | None) -> str:
    """Return the text of a file of lattices. Raises InputError for a file that cannot be read."""
    if source.format == "parquet":
        source = parquet_source(source, text_column)
    else:
        refuse_as_text(source.name, head_text(source))
    return to_text(whole_text(Corpus((source,), "word")))


def _is_wrong_json(head: bytes) -> bool:
    """Return whether the first line begins like a JSON object. The parser refuses it as one."""
    line = head.partition(b"\n")[0]
    return _JSON_START.match(line) is not None and b" ||| " not in line


def kaldi_lists(corpus: Corpus, costs: Mapping[str, str]) -> Corpus:
    """Return n-best archives of Kaldi as lines of Moses in memory. The total is the negated sum of the costs.

    corpus  lines "ID-N word word ...", as nbest-to-linear and int2sym.pl write them
    costs   names of features -> archives of costs, lines "ID-N number" in the same order. A feature is the negated cost

    Raises InputError if the keys of corresponding lines differ.
    """
    words = np.frombuffer(whole_text(corpus), np.uint8)
    arrays = {name: np.frombuffer(read_list(path), np.uint8) for name, path in costs.items()}
    leads = Words.of([f" {name}= " for name in costs])
    starts_K = np.cumsum([0, *map(len, arrays.values())])
    cost_B = np.concatenate([*arrays.values(), np.zeros(0, np.uint8)])
    lines = int(np.count_nonzero(words == 10))
    out = np.empty(len(words) + lines * (len(leads.data) + (len(costs) + 1) * MAX_NUMBER_BYTES + 16), np.uint8)
    given = words, cost_B, starts_K, leads.offsets_V, leads.data
    code, k, at, line, end = _join(*map(read_only, given), out)
    if code != FINE:
        name, path = ("", corpus.sources[0].name) if k < 0 else list(costs.items())[k]
        _, shown = shown_line(words if k < 0 else arrays[name], at)
        raise InputError(f"{path!r}, line {line + 1:,}: {shown} {_REASONS[code]}")
    name = corpus.sources[0].name
    return Corpus((Source(name, "memory", end, data=out[:end].tobytes()),), "word")


_REASONS = {
    NO_KEY: "has no key ID-N; give lines 'ID-1 word word', or id ||| text ||| features ||| total",
    OTHER_KEY: "has another key than this line of the hypotheses; give costs of the same hypotheses in the same order",
    NO_COST: "has no finite number after its key; give lines 'ID-N cost'",
    TOO_LONG: "follows the last hypothesis; give only one cost for each hypothesis",
    TOO_SHORT: "ends before the hypotheses; give a cost for each",
    BAR: "has a word that begins or ends with |||, as fields of an n-best list do; rename it",
}


@njit(nogil=True, cache=True)
def _join(words, cost_B, starts_K, offsets_K, leads, out):
    """Write lines of Moses; return (error code, number of the wrong archive or -1, byte in it, line, end in out)."""
    at, end, line = np.int64(0), np.int64(0), np.int64(0)
    K = len(starts_K) - 1
    at_K = starts_K[:-1].copy()
    while at < len(words):
        stop = np.int64(newline(words, at))
        key_end = np.int64(past_token(words, at))
        dash = key_end
        while dash > at and 48 <= words[dash - 1] <= 57:
            dash -= 1
        if dash == key_end or dash - 1 <= at or words[dash - 1] != 45:
            return NO_KEY, -1, at, line, end
        if has_bars(words, at, dash - 1):
            return BAR, -1, at, line, end
        end = copy_bytes(words, at, dash - 1, out, end)
        end = copy_bytes(_BAR, 0, 5, out, end)
        first = past_spaces(words, key_end)
        word = first
        while word < stop:
            word_end = np.int64(past_token(words, word))
            if has_bars(words, word, word_end):
                return BAR, -1, at, line, end
            word = past_spaces(words, word_end)
        end = copy_bytes(words, first, before_spaces(words, first, stop), out, end)
        end = copy_bytes(_BAR, 0, 4, out, end)
        total = 0.0
        for k in range(K):
            here = at_K[k]
            if here == starts_K[k + 1]:
                return TOO_SHORT, k, here - starts_K[k], line, end
            cost_key_end = np.int64(past_token(cost_B, here))
            if not equal_words(words, at, key_end, cost_B, here, cost_key_end):
                return OTHER_KEY, k, here - starts_K[k], line, end
            cost_stop = np.int64(newline(cost_B, here))
            number = past_spaces(cost_B, cost_key_end)
            code, value = read_number(cost_B, number, before_spaces(cost_B, number, cost_stop))
            if code != FINE:
                return NO_COST, k, here - starts_K[k], line, end
            total -= value
            end = copy_bytes(leads, offsets_K[k], offsets_K[k + 1], out, end)
            end = write_float32(np.float32(-value), out, end)
            at_K[k] = cost_stop + 1
        end = copy_bytes(_BAR, 0, 5, out, end)
        end = write_float32(np.float32(total), out, end)
        out[end] = 10
        end += 1
        at = stop + 1
        line += 1
    for k in range(K):
        if at_K[k] < starts_K[k + 1]:
            return TOO_LONG, k, at_K[k] - starts_K[k], line, end
    return FINE, 0, at, line, end
