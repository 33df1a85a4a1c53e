"""Find word starts and newlines as KenLM's lmplz does, and as its query does."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.find_tokens import DELIMITERS, SEGMENT, SPACES, find_tokens
from mgpu_ngram.kernels.dispatch import to_host

TEXTS = st.lists(st.sampled_from(b"ab\x00\t\n\r \x0b\x0c\x85\xa0\xff\xc3"), max_size=200).map(bytes)


def positions(text, to_device, isspace=False):
    found = find_tokens(to_device(np.frombuffer(text, np.uint8)), isspace)
    assert found.dtype == np.uint32
    return to_host(found).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b" \t\r\x00 ", []),
        (b"a", [0]),
        (b"\n", [0]),
        (b"of the\n", [0, 3, 6]),
        (b"  of\t the \r\nend", [2, 6, 11, 12]),
        (b"\n\na\n", [0, 1, 2, 3]),
        (b"a\x00b", [0, 2]),
        (b"a\x0bb\x0cc d", [0, 6]),  # vertical tab and form feed stay in words
        (b"a\xa0b c\xc2\xa0d", [0, 4]),  # so do no-break spaces, in Latin-1 and in UTF-8
        (b"caf\xc3\xa9 \xff", [0, 6]),
    ],
)
def test_by_hand(text, expected, to_device):
    assert positions(text, to_device) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"\x00", [0]),
        (b" \t\r\x0b\x0c ", []),
        (b"a\x00b c", [0, 4]),  # NUL stays in words
        (b"a\x0bb\x0cc\rd", [0, 2, 4, 6]),
        (b"of\x0b\nthe\x0c\n", [0, 3, 4, 8]),
        (b"a\xa0b c\x1cd\x85e", [0, 4]),
    ],
)
def test_white_space_of_isspace_by_hand(text, expected, to_device):
    assert positions(text, to_device, isspace=True) == expected


@pytest.mark.parametrize(("isspace", "ends_word"), [(False, DELIMITERS), (True, SPACES)])
def test_delimiters_are_those_of_kenlm(isspace, ends_word, to_device):
    for c in range(256):
        splits = positions(b"x" + bytes([c]) + b"y", to_device, isspace)
        assert splits == ([0, 2] if c in ends_word and c != 10 else [0, 1, 2] if c == 10 else [0])
    assert sorted(ends_word) == ([9, 10, 11, 12, 13, 32] if isspace else [0, 9, 10, 13, 32])


@given(TEXTS)
def test_against_regular_expressions(to_device, text):
    assert positions(text, to_device) == [m.start() for m in re.finditer(rb"[^\x00\t\n\r ]+|\n", text)]
    words = rb"[^\t\n\x0b\x0c\r ]+|\n"
    assert positions(text, to_device, isspace=True) == [m.start() for m in re.finditer(words, text)]


@pytest.mark.parametrize("size", [15, 16, 17, 511, 512, SEGMENT - 1, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 3])
def test_words_across_segments(size, to_device):
    text = (b"word \nabc\t" * size)[:size]
    starts = [m.start() for m in re.finditer(rb"[^\t\n ]+|\n", text)]
    assert positions(text, to_device) == positions(text, to_device, isspace=True) == starts
    assert positions(b"w" * size, to_device) == [0]
    assert positions(b"\n" * size, to_device) == list(range(size))


def test_text_that_is_a_slice(to_device):
    text = to_device(np.frombuffer(b"xyz of the\n", np.uint8))
    assert to_host(find_tokens(text[3:])).tolist() == [1, 4, 7]


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="expected uint8 but got int64"):
        find_tokens(np.zeros(3, np.int64))
