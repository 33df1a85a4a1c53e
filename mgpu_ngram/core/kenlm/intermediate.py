"""Read the intermediate format of KenLM, which `lmplz --intermediate PREFIX` writes and `interpolate` reads.

PREFIX.kenlm_intermediate is text with the number of n-grams of each order. PREFIX.vocab has the words in the order of
their ids, each ended by a NUL byte, <unk> first. PREFIX.1, PREFIX.2, ... have a record for each n-gram of an order: its
ids as uint32, log10 probability and backoff as float32 (little endian), in the order of their suffixes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.core.ngrams.words import Words

INTERMEDIATE_SUFFIX = ".kenlm_intermediate"
HEADER_PATTERN = re.compile(rb"KenLM intermediate binary file\nCounts ((?:\d{1,18} ?)+)\nPayload pb\n?")


def intermediate_counts(path: str | Path, head: bytes) -> list[int]:
    """Return the number of n-grams of each order. Raises InputError for a damaged header.

    head  the contents of the file
    """
    found = HEADER_PATTERN.fullmatch(head)
    if not found:
        raise InputError(
            f"{str(path)!r} is damaged: it has no line 'Counts N ...' and 'Payload pb'; write it again with "
            "lmplz --intermediate"
        )
    return [int(count) for count in found[1].split()]


def intermediate_files(path: str | Path, head: bytes) -> list[Path]:
    """Return the files of a model: the words, then the n-grams of each order. Raises InputError if one is missing.

    head  the contents of the file at `path`
    """
    counts = intermediate_counts(path, head)
    prefix = str(path).removesuffix(INTERMEDIATE_SUFFIX)
    files = [Path(f"{prefix}.{name}") for name in ("vocab", *range(1, len(counts) + 1))]
    for file, count, n in zip(files[1:], counts, range(1, len(counts) + 1), strict=True):
        if file.is_file() and file.stat().st_size != count * _record(n).itemsize:
            raise InputError(
                f"{str(file)!r} has {file.stat().st_size:,} bytes, but {count:,} {n}-grams take "
                f"{count * _record(n).itemsize:,}; copy it again"
            )
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise InputError(f"{str(path)!r} needs {str(missing)!r}, which is missing; copy it beside the other files")
    return files


def identify_intermediate(path: str | Path, head: bytes) -> str:
    """Return the sizes and modification times of all files of a model; `head` as in `intermediate_files`."""
    found = [os.stat(file) for file in (path, *intermediate_files(path, head))]
    return f"{sum(s.st_size for s in found):,} bytes of {max(s.st_mtime_ns for s in found)}"


def read_intermediate(path: str | Path, head: bytes) -> tuple[Words, Iterator[Ngrams]]:
    """Return (the words of a model, its n-grams by order); `head` as in `intermediate_files`.

    Raises InputError for missing and damaged files.
    """
    vocabulary, *files = intermediate_files(path, head)
    data = np.frombuffer(vocabulary.read_bytes(), np.uint8)
    ends = np.flatnonzero(data == 0)
    count = intermediate_counts(path, head)[0]
    if len(ends) != count or not len(data) or data[-1] != 0 or not data.tobytes().startswith(b"<unk>\0"):
        raise InputError(
            f"{str(vocabulary)!r} does not hold {count:,} words that end with NUL, <unk> first; copy it again"
        )
    offsets_V = np.concatenate([[0], ends + 1 - np.arange(1, len(ends) + 1)])
    return Words(offsets_V, data[data != 0]), _levels(files, len(ends))


def _levels(files: list[Path], symbols: int) -> Iterator[Ngrams]:
    for n, file in enumerate(files, 1):
        records = np.fromfile(file, _record(n))
        ids = records["ids"].reshape(-1, n)
        if ids.size and ids.max() >= symbols:
            raise InputError(
                f"{str(file)!r} is damaged: it has word id {ids.max():,} but ids are below {symbols:,}; copy it again"
            )
        if n == 1 and not np.array_equal(np.sort(ids[:, 0]), np.arange(symbols)):
            raise InputError(
                f"{str(file)!r} is damaged: it does not list each of {symbols:,} words once; copy it again"
            )
        backoff = np.ascontiguousarray(records["backoff"]) if n < len(files) else None
        yield Ngrams(np.ascontiguousarray(ids), np.ascontiguousarray(records["prob"]), backoff)


def _record(n: int) -> np.dtype:
    return np.dtype([("ids", "<u4", (n,)), ("prob", "<f4"), ("backoff", "<f4")])
