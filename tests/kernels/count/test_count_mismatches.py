"""Count tokens that have another word's number."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.count_mismatches import count_mismatches

WORDS = (b"a", b"ab", b"abc", b"abcdefghij", b"abcdefghik", b"b")  # most are prefixes of others


def mismatches(text, numbers, words, to_device):
    """numbers: for each token (a word or a newline) of the text, its word's index in `words`; None for a newline."""
    positions = [m.start() for m in re.finditer(rb"[^\x00\t\n\r ]+|\n", text)]
    tokens = [0 if n is None else n + 1 for n in numbers]
    offsets = np.cumsum([0, *(len(w) for w in words)])
    return count_mismatches(
        to_device(np.frombuffer(text, np.uint8)),
        to_device(np.array(positions, np.uint32)),
        to_device(np.array(tokens, np.uint32)),
        to_device(offsets.astype(np.int64)),
        to_device(np.frombuffer(b"".join(words), np.uint8)),
    )


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([0, 2, None, 1], 0), ([0, 2, None, 2], 1), ([0, 1, None, 1], 1), ([1, 2, None, 0], 2), ([5, 5, None, 5], 3)],
)
def test_by_hand(numbers, expected, to_device):
    found = mismatches(b"a abc\nab", numbers, WORDS, to_device)
    assert found == expected and isinstance(found, int)


def test_nothing_to_check(to_device):
    assert mismatches(b"", [], [], to_device) == 0
    assert mismatches(b"\n\n", [None, None], [], to_device) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(b" \n\t\x00\r")), max_size=40))
def test_against_python(to_device, plan):
    text, numbers, wrong = b"", [], 0
    for stands, named, delimiter in plan:
        text += WORDS[stands] + bytes([delimiter])
        numbers += [named, None] if delimiter == 10 else [named]
        wrong += stands != named
    assert mismatches(text, numbers, WORDS, to_device) == wrong
    assert mismatches(text[:-1], numbers[: -1 if text.endswith(b"\n") else None], WORDS, to_device) == wrong


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 24, 25])
@pytest.mark.parametrize("after", [b"", b" ", b"\n", b" abcdefghijklmnopqrstuvwxyz"])
def test_a_byte_that_differs_anywhere(length, after, to_device):
    """A word with another byte, a longer and a shorter one; the next bytes of text and of the words' data vary."""
    word = bytes(97 + i for i in range(length))
    numbers = [1 + after.startswith(b" a")] * (1 + after.startswith(b" a")) + [None] * (after == b"\n")
    numbers[0] = 0
    for words in (word,), (word, b"z"), (word, b"z", after[1:]):
        if after.startswith(b" a") and len(words) < 3:
            continue
        assert mismatches(word + after, numbers, words, to_device) == 0
        for i in range(length):
            other = word[:i] + b"!" + word[i + 1 :]
            assert mismatches(other + after, numbers, words, to_device) == 1
        assert mismatches(word + b"!" + after, numbers, words, to_device) == 1
        if length > 1:
            assert mismatches(word[:-1] + after, numbers, words, to_device) == 1
