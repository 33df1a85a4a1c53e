"""Words copied out of a vocabulary, against slices of bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.take_words import take_words
from mgpu_ngram.kernels.dispatch import to_host

WORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def taken(words, rows, to_device):
    offsets_V = np.array([0, *itertools.accumulate(map(len, words))], np.int64)
    data = np.frombuffer(b"".join(words), np.uint8)
    offsets_R, data_R = take_words(to_device(offsets_V), to_device(data), to_device(np.array(rows, np.int64)))
    assert offsets_R.dtype == np.int64 and data_R.dtype == np.uint8
    ends, text = to_host(offsets_R).tolist(), to_host(data_R).tobytes()
    assert ends[0] == 0 and ends[-1] == len(text) and len(ends) == len(rows) + 1
    return [text[a:b] for a, b in itertools.pairwise(ends)]


def test_by_hand(to_device):
    words = [b"of", b"", b"the", b"e"]
    assert taken(words, [2, 0, 2, 1, 3], to_device) == [b"the", b"of", b"the", b"", b"e"]
    assert taken(words, [1, 1], to_device) == [b"", b""]
    assert taken(words, [], to_device) == []
    assert taken([], [], to_device) == []


@given(WORDS, st.lists(st.integers(0, 29), max_size=60))
def test_against_slices(to_device, words, places):
    rows = [p % len(words) for p in places]
    assert taken(words, rows, to_device) == [words[r] for r in rows]


def test_long_words_among_thousands(to_device):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 20, 5000)
    lengths[[0, 77, 4999]] = 1025, 70_001, 5000
    words = [rng.bytes(n) for n in lengths]
    rows = rng.permutation(np.repeat(np.arange(5000), 2)).tolist()
    assert taken(words, rows, to_device) == [words[r] for r in rows]


def test_words_that_do_not_start_at_0(to_device):
    offsets_V, data = to_device(np.array([3, 5, 9])), to_device(np.frombuffer(b"...of.the", np.uint8))
    offsets_R, data_R = take_words(offsets_V, data, to_device(np.array([1, 0])))
    assert (to_host(offsets_R).tolist(), to_host(data_R).tobytes()) == ([0, 4, 6], b".theof")


def test_rows_of_another_dtype_are_refused(to_device):
    with pytest.raises(TypeError, match="expected int64 but got int32"):
        taken_rows = to_device(np.zeros(1, np.int32))
        take_words(to_device(np.array([0, 1])), to_device(np.zeros(1, np.uint8)), taken_rows)
