"""Copy ranges of children: by hand, and as slices of lists; ranges of very different lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.gather_children import TILE, gather_children


def gather(first, end, words, values, to_device, dtype=np.uint32):
    arrays = (first, dtype), (end, dtype), (words, np.uint32), (values, np.float32)
    found = gather_children(*(to_device(np.array(a, d)) for a, d in arrays))
    offsets, word_C, value_C = map(to_host, found)
    assert (offsets.dtype, word_C.dtype, value_C.dtype) == (np.int64, np.uint32, np.float32)
    return offsets, word_C, value_C


def assert_gathered(first, end, G, to_device, dtype=np.uint32):
    """Compare with slices of the lists; all words and all values are distinct."""
    words = np.random.default_rng(G).permutation(G)
    values = -words / 8
    offsets, word_C, value_C = gather(first, end, words, values, to_device, dtype)
    slices = [slice(a, b) for a, b in zip(first, end, strict=True)]
    assert offsets.tolist() == np.cumsum([0, *(s.stop - s.start for s in slices)]).tolist()
    assert np.array_equal(word_C, np.concatenate([words[:0], *(words[s] for s in slices)]))
    assert np.array_equal(value_C, np.concatenate([values[:0], *(values[s] for s in slices)]).astype(np.float32))


def test_by_hand(to_device):
    words, values = [10, 11, 12, 13, 14], [-1, -2, -3, -4, -5]
    offsets, word_C, value_C = gather([3, 1, 0, 1], [5, 1, 2, 4], words, values, to_device)
    assert offsets.tolist() == [0, 2, 2, 4, 7]
    assert word_C.tolist() == [13, 14, 10, 11, 11, 12, 13]
    assert value_C.tolist() == [-4, -5, -1, -2, -2, -3, -4]


def test_nothing(to_device):
    for first, end, G in ([], [], 3), ([2, 0], [2, 0], 3), ([0] * 5000, [0] * 5000, 0):
        offsets, word_C, value_C = gather(first, end, np.arange(G), np.arange(G), to_device)
        assert offsets.tolist() == [0] * (len(first) + 1)
        assert word_C.shape == value_C.shape == (0,)


@given(
    G=st.integers(0, 400),
    runs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=60),
    dtype=st.sampled_from([np.uint32, np.int64]),
)
def test_any_runs(to_device, G, runs, dtype):
    pairs = [sorted((round(a * G), round(b * G))) for a, b in runs]
    assert_gathered([a for a, _ in pairs], [b for _, b in pairs], G, to_device, dtype)


@pytest.mark.parametrize("lengths", [
    [100_000],
    [100_000, 1, 0, 1, 100_000],
    [1] * (3 * TILE),
    [0] * (3 * TILE) + [5] + [0] * (3 * TILE),
    [TILE - 1, TILE - 1, TILE - 1],
    [TILE - 2, 0, TILE, 0, 0, TILE + 1],
    [0, TILE, 0, 0, 3 * TILE, 1],
    [3, 0, 0, 1, 50, 2, 900] * 40 + [20_000] + [1, 0] * 3000,
])  # fmt: skip
def test_runs_and_tiles(lengths, to_device):
    """A block's share starts and ends inside a range, between two, or among empty ones."""
    rng = np.random.default_rng(len(lengths))
    G = max(lengths) + 100
    first = [int(rng.integers(0, G - length + 1)) for length in lengths]
    end = [a + length for a, length in zip(first, lengths, strict=True)]
    assert_gathered(first, end, G, to_device)


def test_what_is_refused():
    words, values = np.zeros(1, np.uint32), np.zeros(1, np.float32)
    with pytest.raises(TypeError, match="expected uint32 but got int64"):
        gather_children(np.zeros(1, np.uint32), np.zeros(1, np.int64), words, values)
    with pytest.raises(TypeError, match="expected uint32 or int64 but got int32"):
        gather_children(np.zeros(1, np.int32), np.zeros(1, np.int32), words, values)
