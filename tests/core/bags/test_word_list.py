"""Vocabularies from files and from Python."""

import gzip

import numpy as np
import pytest

from mgpu_ngram.core.bags.word_list import as_words, read_word_list
from mgpu_ngram.core.errors import InputError


@pytest.mark.parametrize("text", [b"b\na c\n\xc3\xa9\n", b"b\r\na c\r\n\xc3\xa9", gzip.compress(b"b\na c\n\xc3\xa9\n")])
def test_a_file(tmp_path, text):
    (tmp_path / "v.txt").write_bytes(text)
    assert list(read_word_list(tmp_path / "v.txt")) == ["b", "a c", "é"] == list(as_words(str(tmp_path / "v.txt")))


@pytest.mark.parametrize(
    "vocabulary", [["a", "b"], ("a", "b"), {"b": 1, "a": 0}, {"b", "a"}, np.array(["a", "b"]), iter([b"a", "b"])]
)
def test_python_values(vocabulary):
    words = as_words(vocabulary)
    assert list(words) == ["a", "b"] and as_words(words) is words and words.data.tobytes() == b"ab"


def test_refusals(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"")
    with pytest.raises(InputError, match="is empty; give"):
        read_word_list(tmp_path / "v.txt")
    with pytest.raises(InputError, match="v has 2 words, but the id 1 is missing or given twice; give"):
        as_words({"a": 0, "b": 2}, "v")
    with pytest.raises(InputError, match="word 1 of the vocabulary is 7; words are str"):
        as_words(["a", 7])
    with pytest.raises(InputError, match="v is 7 but must be words, a dict from word to id, or the path of a file"):
        as_words(7, "v")
