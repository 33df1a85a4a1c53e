"""Codes of sentences of word ids, and what is said of wrong input."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.ids_to_codes import BAD_IDS, BAD_OFFSETS, TILE, ids_to_codes


def call(to_device, ids, offsets, num_words, dtype=np.int32):
    made = ids_to_codes(to_device(np.array(ids, dtype)), to_device(np.array(offsets, np.int64)), num_words)
    return [to_host(array).tolist() for array in made]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_by_hand(to_device, dtype):
    assert call(to_device, [4, 0, 7], [0, 2, 2, 3], 8, dtype) == [[5, 1, 0, 0, 8, 0], [3, 4, 6], [0]]


def test_empty_inputs(to_device):
    assert call(to_device, [], [0], 5) == [[], [], [0]]
    assert call(to_device, [], [0, 0, 0], 5) == [[0, 0], [1, 2], [0]]


@pytest.mark.parametrize(
    ("ids", "offsets", "status"),
    [
        ([0, 3], [0, 2], BAD_IDS),
        ([-1, 2], [0, 2], BAD_IDS),
        ([0, 1], [1, 2], BAD_OFFSETS),
        ([0, 1], [0, 1], BAD_OFFSETS),
        ([0, 1], [0, 3], BAD_OFFSETS),
        ([0, 1], [0, 2, 1, 2], BAD_OFFSETS),
        ([0, 1], [0, -5, 9, 2], BAD_OFFSETS),
        ([], [1], BAD_OFFSETS),
        ([0], [0], BAD_OFFSETS),
    ],
)
def test_wrong_input_is_told_and_harms_nothing(ids, offsets, status, to_device):
    codes, ends, found = call(to_device, ids, offsets, 3, np.int64)
    assert found == [status]
    assert all(0 <= code <= 3 for code in codes) and all(0 <= end <= len(codes) for end in ends)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20))
def test_any_sentences(sentences):
    ids, offsets = np.array(list(chain(*sentences)), np.int32), np.cumsum([0, *map(len, sentences)])
    codes, ends, status = ids_to_codes(ids, offsets, 10)
    expected = [[*(i + 1 for i in sentence), 0] for sentence in sentences]
    assert codes.tolist() == list(chain(*expected)) and status.tolist() == [0]
    assert ends.tolist() == np.cumsum([len(codes) for codes in expected]).tolist()


def test_several_tiles(to_device):
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(0, 9, TILE), [3 * TILE], np.zeros(2 * TILE, np.int64)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 100, offsets[-1])
    codes, ends, status = ids_to_codes(to_device(ids), to_device(offsets), 100)
    expected = np.insert(ids + 1, offsets[1:], 0)
    assert np.array_equal(to_host(codes), expected) and to_host(status).tolist() == [0]
    assert np.array_equal(to_host(ends), np.flatnonzero(expected == 0) + 1)


def test_what_cannot_be():
    with pytest.raises(TypeError, match="uint16"):
        ids_to_codes(np.zeros(1, np.uint16), np.array([0, 1]), 5)
    with pytest.raises(ValueError, match="got no offsets"):
        ids_to_codes(np.zeros(0, np.int32), np.zeros(0, np.int64), 5)
