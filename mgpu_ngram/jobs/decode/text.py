"""Read the lines of a text in order and in batches, and measure the size of a text."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import Corpus, open_corpus
from mgpu_ngram.core.inputs.read_text import read_blocks

READ_BYTES = 8 << 20  # bytes of text that are read at once


@dataclass(frozen=True)
class TextSize:
    """The number of lines of a text, and the CRC-32 of their bytes."""

    lines: int
    crc32: str


def measure_text(corpus: Corpus) -> TextSize:
    """Read a text once; return its size."""
    lines = value = 0
    for data in _blocks(corpus):
        lines += int((data == 10).sum())
        value = zlib.crc32(data.data, value)
    return TextSize(lines, f"{value:08x}")


def lines_of(corpus: Corpus) -> Iterator[bytes]:
    """Yield the lines of a text, without their newlines and without a carriage return before one."""
    for data in _blocks(corpus):
        for line in data.tobytes().split(b"\n")[:-1]:
            yield line.removesuffix(b"\r")


def _blocks(corpus: Corpus) -> Iterator[np.ndarray]:
    """Yield the text in blocks of whole lines, every line with its newline."""
    for chunk in corpus.chunks(READ_BYTES):
        for block in read_blocks(chunk, "word", READ_BYTES):
            yield block.data


def open_beside(path: str, lines: int, name: str) -> Corpus:
    """Return the corpus of a file with a line for each line of the text.

    Raises InputError for another number of lines.
    """
    corpus = open_corpus([path])
    found = measure_text(corpus).lines
    if found != lines:
        raise InputError(f"{name} {path!r} has {found:,} lines but the text has {lines:,}; give one line for each")
    return corpus


def batched(lines: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield lists of `size` lines; the last one may be shorter."""
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
