"""Read a vocabulary for bags of words as `Words`: a file with a word a line, or words in Python. No word is <unk>."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.read_text import read_list
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.utf8 import to_bytes


def read_word_list(path: str | os.PathLike[str]) -> Words:
    """Return the words of a file, one a line, plain or compressed; word v is line v + 1.

    A line may end with CR LF. Raises InputError if the file cannot be read or has no line.
    """
    lines = read_list(path).split(b"\n")[:-1]
    if not lines:
        raise InputError(f"the vocabulary {os.fspath(path)!r} is empty; give a file with one word a line")
    return make_words([line.removesuffix(b"\r") for line in lines])


def as_words(vocabulary: Any, name: str = "the vocabulary") -> Words:
    """Return the words of a vocabulary in the order of their ids.

    vocabulary  `Words`; the path of a file with a word a line; a dict from word to id; a set, which is sorted; or any
                other iterable of words
    name        name of the vocabulary, for messages

    Raises InputError for ids that are not 0 to V - 1, and for items that are not words.
    """
    if isinstance(vocabulary, Words):
        return vocabulary
    if isinstance(vocabulary, (str, os.PathLike)):
        return read_word_list(vocabulary)
    if isinstance(vocabulary, Mapping):
        ids = sorted(vocabulary.values())
        wrong = next((i for i, v in enumerate(ids) if v != i), None)
        if wrong is not None:
            raise InputError(
                f"{name} has {len(ids):,} words, but the id {wrong:,} is missing or given twice; "
                "give the ids 0, 1, 2 ..."
            )
        vocabulary = sorted(vocabulary, key=vocabulary.__getitem__)
    elif isinstance(vocabulary, Set):
        vocabulary = sorted(vocabulary)
    elif not isinstance(vocabulary, Iterable):
        raise InputError(f"{name} is {vocabulary!r} but must be words, a dict from word to id, or the path of a file")
    words = vocabulary.tolist() if isinstance(vocabulary, np.ndarray) else list(vocabulary)
    wrong = next((i for i, word in enumerate(words) if not isinstance(word, (str, bytes))), None)
    if wrong is not None:
        raise InputError(f"word {wrong:,} of {name} is {words[wrong]!r}; words are str")
    return make_words(words)


def make_words(words: list[Any]) -> Words:
    """Return the words of a list, str or bytes; word 0 need not be <unk>."""
    encoded = [to_bytes(word) if isinstance(word, str) else word for word in words]
    return Words(np.cumsum([0, *map(len, encoded)], dtype=np.int64), np.frombuffer(b"".join(encoded), np.uint8))
