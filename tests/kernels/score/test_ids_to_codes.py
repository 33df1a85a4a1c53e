"""Codes of sentences of word ids, and what is said of wrong input."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.engine.memory.device import host_flags, work_so_far
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.ids_to_codes import TILE, ids_to_codes


def call(to_device, ids, offsets, num_words, dtype=np.int32):
    made = ids_to_codes(to_device(np.array(ids, dtype)), to_device(np.array(offsets, np.int64)), num_words)
    return [to_host(array).tolist() for array in made]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_by_hand(to_device, dtype):
    assert call(to_device, [4, 0, 7], [0, 2, 2, 3], 8, dtype) == [[5, 1, 0, 0, 8, 0], [3, 4, 6], [0, 0]]


def test_empty_inputs(to_device):
    assert call(to_device, [], [0], 5) == [[], [], [0, 0]]
    assert call(to_device, [], [0, 0, 0], 5) == [[0, 0], [1, 2], [0, 0]]


@pytest.mark.parametrize(
    ("ids", "offsets", "wrong"),
    [
        ([0, 3], [0, 2], [1, 0]),
        ([-1, 2], [0, 2], [1, 0]),
        ([0, 1], [1, 2], [0, 1]),
        ([0, 1], [0, 1], [0, 1]),
        ([0, 1], [0, 3], [0, 1]),
        ([0, 1], [0, 2, 1, 2], [0, 1]),
        ([0, 1], [0, -5, 9, 2], [0, 1]),
        ([5, 1], [0, 3], [1, 1]),
        ([], [1], [0, 1]),
        ([0], [0], [0, 1]),
    ],
)
def test_wrong_input_is_told_and_harms_nothing(ids, offsets, wrong, to_device):
    codes, ends, found = call(to_device, ids, offsets, 3, np.int64)
    assert found == wrong
    assert all(0 <= code <= 3 for code in codes) and all(0 <= end <= len(codes) for end in ends)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20))
def test_any_sentences(sentences):
    ids, offsets = np.array(list(chain(*sentences)), np.int32), np.cumsum([0, *map(len, sentences)])
    codes, ends, wrong_2 = ids_to_codes(ids, offsets, 10)
    expected = [[*(i + 1 for i in sentence), 0] for sentence in sentences]
    assert codes.tolist() == list(chain(*expected)) and not wrong_2.any()
    assert ends.tolist() == np.cumsum([len(codes) for codes in expected]).tolist()


def test_several_tiles(to_device):
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(0, 9, TILE), [3 * TILE], np.zeros(2 * TILE, np.int64)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 100, offsets[-1])
    codes, ends, wrong_2 = ids_to_codes(to_device(ids), to_device(offsets), 100)
    expected = np.insert(ids + 1, offsets[1:], 0)
    assert np.array_equal(to_host(codes), expected) and not wrong_2.any()
    assert np.array_equal(to_host(ends), np.flatnonzero(expected == 0) + 1)


@pytest.mark.gpu
def test_flags_of_the_host_are_set_by_a_gpu():
    import cupy

    for ids, offsets, wrong in ([0, 2], [0, 2], [0, 0]), ([0, 3], [0, 2], [1, 0]), ([0, 1], [1, 2], [0, 1]):
        wrong_2 = host_flags(2, "gpu")
        ids_to_codes(cupy.array(ids), cupy.array(offsets), 3, wrong_2)
        work_so_far("gpu")()
        assert wrong_2.tolist() == wrong


def test_what_cannot_be():
    with pytest.raises(TypeError, match="uint16"):
        ids_to_codes(np.zeros(1, np.uint16), np.array([0, 1]), 5)
    with pytest.raises(ValueError, match="got no offsets"):
        ids_to_codes(np.zeros(0, np.int32), np.zeros(0, np.int64), 5)
