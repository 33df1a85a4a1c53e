"""Whether the words of a vocabulary are text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.counts.vocabulary import Vocabulary, vocabulary_is_text


def is_text(words, unit="word"):
    offsets_V = np.cumsum([0, *map(len, words)]).astype(np.int64)
    data, ones_V = np.frombuffer(b"".join(words), np.uint8), np.ones(len(words), np.int64)
    return vocabulary_is_text(Vocabulary(unit, offsets_V, data, ones_V, ones_V, ones_V))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], True),
        ([b""], True),
        ([b"a", b"\xc3\xa9"], True),
        ([b"\xc3", b"\xa9"], False),  # valid together, but not as two words
        ([b"a", b"\xff"], False),
        ([b"\xed\xa0\x80"], False),  # a surrogate
        ([b"\xf4\x90\x80\x80"], False),  # above U+10FFFF
    ],
)
def test_by_hand(words, text):
    assert is_text(words) == text
    assert not is_text(words, "byte")


@given(st.lists(st.binary(max_size=4), max_size=4))
def test_each_word_decodes(words):
    def decodes(word):
        try:
            word.decode()
        except UnicodeDecodeError:
            return False
        return True

    assert is_text(words) == all(map(decodes, words))
