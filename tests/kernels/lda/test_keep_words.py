r"""keep_words: by hand, and against the pattern \w\w+ of Python's re."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.keep_words import Letters, keep_words, make_letters


def kept(text, lowercase, to_device):
    letters = Letters(*(to_device(array) for array in make_letters(lowercase)))
    kept_B, longer = keep_words(to_device(np.frombuffer(text, np.uint8)), letters)
    return to_host(kept_B).tobytes(), longer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b""),
        (b"a", b" "),
        (b"I am\nA b_C, 42!\n", b"  am\n  b_c  42 \n"),
        ("É ÉÀ ж Жж".encode(), "   éà    жж".encode()),
        (b"a\xc3\xa9\xff\xe9bc\xc3", b"a\xc3\xa9  bc "),
        (b"a\xcc\x81b", b"    "),
        ("x漢".encode(), "x漢".encode()),
        (b"\xed\xa0\x80ab", b"   ab"),
    ],
)
def test_by_hand(text, expected, to_device):
    assert kept(text, True, to_device) == (expected, 0)


def test_letters_that_python_must_lowercase(to_device):
    text = "aİb αΣ \u212a"  # the sign for kelvin
    assert kept(text.encode(), True, to_device)[1] == 3
    assert kept(text.encode(), False, to_device) == ("aİb αΣ    ".encode(), 0)


texts = st.lists(
    st.one_of(
        st.text(alphabet=st.sampled_from("aB_1 .\nÉéжЖ漢Σİ\u0301\u212a\U0001d400\U00010400😀ẞ"), max_size=8).map(
            str.encode
        ),
        st.text(max_size=5).map(lambda s: s.encode("utf-8", "replace")),
        st.binary(max_size=4),
    )
).map(b"".join)


@given(texts, st.booleans())
def test_words_are_those_of_re(to_device, text, lowercase):
    decoded = text.decode("utf-8", "surrogateescape")
    found, longer = kept(text, lowercase, to_device)
    if lowercase and longer == 0:
        decoded = decoded.lower()
    elif longer:
        return
    expected = [re.findall(r"(?u)\b\w\w+\b", line) for line in decoded.split("\n")]
    assert [line.split() for line in found.split(b"\n")] == [[w.encode() for w in words] for words in expected]
    assert len(found) == len(text)


@pytest.mark.slow
def test_every_character(to_device):
    """Each code point after a letter, with and without lowercase."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c != 10]
    for lowercase in (False, True):
        steps = make_letters(lowercase)
        longer = {c for c in points if steps.steps_P[256 * int(steps.page_of_U[c >> 8]) + (c & 255)] == 1 << 25}
        assert 20 <= len(longer) < 60 if lowercase else not longer
        lines = "\n".join("x" + chr(c) for c in points if c not in longer)
        found, none = kept(lines.encode(), lowercase, to_device)
        lines = lines.lower() if lowercase else lines
        plain = "\n".join(line if re.fullmatch(r"\w\w", line) else "" for line in lines.split("\n"))
        assert none == 0 and re.sub(" +", "", found.decode()) == plain
