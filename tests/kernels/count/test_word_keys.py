"""Numbers that sort like words, against Python's order of bytes."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.word_keys import word_keys
from mgpu_ngram.kernels.dispatch import to_host

LETTERS = st.integers(1, 255) | st.sampled_from(b"ab")
WORDS = st.lists(st.lists(LETTERS, max_size=40).map(bytes), min_size=1, max_size=20)


def keys_of(words, to_device, first_byte=0, rows=None):
    offsets_V = np.array([0, *itertools.accumulate(map(len, words))], np.int64)
    data = np.frombuffer(b"".join(words), np.uint8)
    rows_R = np.arange(len(words)) if rows is None else np.array(rows, np.int64)
    keys_R = word_keys(to_device(offsets_V), to_device(data), to_device(rows_R), first_byte)
    assert keys_R.dtype == np.uint64 and keys_R.shape == (2, len(rows_R))
    return [tuple(key) for key in to_host(keys_R).T.tolist()]


def test_by_hand(to_device):
    words = [b"of", b"abcdefghijklmnopqrst", b""]
    of = 0x6F66 << 48
    assert keys_of(words, to_device) == [(of, 0), (0x6162636465666768, 0x696A6B6C6D6E6F70), (0, 0)]
    assert keys_of(words, to_device, first_byte=1) == [
        (0x66 << 56, 0),
        (0x6263646566676869, 0x6A6B6C6D6E6F7071),
        (0, 0),
    ]
    assert keys_of(words, to_device, first_byte=16) == [(0, 0), (0x71727374 << 32, 0), (0, 0)]
    assert keys_of(words, to_device, rows=[2, 0, 0]) == [(0, 0), (of, 0), (of, 0)]
    assert keys_of(words, to_device, rows=[]) == []


@given(WORDS, st.sampled_from([0, 1, 8, 16, 32]))
def test_keys_compare_like_sixteen_bytes(to_device, words, first_byte):
    keys = keys_of(words, to_device, first_byte)
    parts = [w[first_byte : first_byte + 16] for w in words]
    for (key, part), (other, another) in itertools.combinations(zip(keys, parts, strict=True), 2):
        assert (key < other, key == other) == (part < another, part == another)
