"""64-bit hashes of words, against the definition in Python's integers."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.find_tokens import find_tokens
from mgpu_ngram.kernels.count.hash_words import hash_words
from mgpu_ngram.kernels.dispatch import to_host

MASK = 2**64 - 1


def fmix64(x):
    """Finaliser of MurmurHash3, from its published source."""
    x = ((x ^ x >> 33) * 0xFF51AFD7ED558CCD) & MASK
    x = ((x ^ x >> 33) * 0xC4CEB9FE1A85EC53) & MASK
    return x ^ x >> 33


def word_hash(word, seed):
    h = seed
    for i in range(0, len(word), 8):
        h = fmix64(h ^ int.from_bytes(word[i : i + 8], "little"))
    return h or 1


def hashes(text, to_device, seed=0):
    text_B = to_device(np.frombuffer(text, np.uint8))
    found = hash_words(text_B, find_tokens(text_B), seed)
    assert found.dtype == np.uint64
    return to_host(found).tolist()


def test_by_hand(to_device):
    assert fmix64(1) == 0xB456BCFC34C2CB2C  # known value of MurmurHash3's finaliser
    assert hashes(b"\x01\n", to_device) == [0xB456BCFC34C2CB2C, 0]
    assert hashes(b"", to_device) == []


def test_equal_words_have_equal_hashes(to_device):
    of, the, newline, of_again, end = hashes(b"of the\nof", to_device) + hashes(b"the", to_device)
    assert of == of_again and the == end and newline == 0 and len({of, the, newline}) == 3


@given(
    st.lists(st.binary(min_size=1, max_size=30).map(lambda w: re.sub(rb"[\x00\t\n\r ]", b"_", w)), max_size=20),
    st.integers(0, MASK),
)
def test_against_python(to_device, words, seed):
    text = b"\n".join(words)
    expected = [word_hash(w, seed) if w != b"\n" else 0 for w in re.findall(rb"[^\x00\t\n\r ]+|\n", text)]
    assert hashes(text, to_device, seed) == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_words_of_up_to_8_bytes_never_collide(seed, to_device):
    letters = [bytes(w) for n in (1, 2) for w in itertools.product(range(33, 256), repeat=n)]
    padded = [b"z" * n + w for n in (3, 6) for w in letters[:5000]] + [b"\x01" * n for n in range(1, 9)]
    words = sorted(set(letters + [w[:8] for w in padded]))
    assert len(set(hashes(b" ".join(words), to_device, seed))) == len(words)


def test_long_words_depend_on_every_byte(to_device):
    word = b"abcdefghijklmnopqrstuvwxyz"
    changed = [word[:i] + b"_" + word[i + 1 :] for i in range(26)] + [word[:i] for i in range(1, 27)]
    assert len(set(hashes(b" ".join(changed), to_device))) == len(changed)


def test_another_seed_gives_other_hashes(to_device):
    text = b"of the to and\n" + b"pneumonoultramicroscopic"
    first, second = hashes(text, to_device, 0), hashes(text, to_device, 1)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False] * 4 + [True, False]  # a newline is 0


def test_a_hash_of_zero_becomes_one(to_device):
    assert hashes(b"\x07", to_device, seed=7) == [1]  # its 8 bytes are the seed, and fmix64(0) is 0
