"""Ranges of two arrays of bytes are joined as slices of Python's bytes are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.join_ranges import TILE, join_ranges
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.launch import source


def array_of(data, to_device):
    return to_device(np.frombuffer(data, np.uint8))


def joined(first, second, ranges, to_device):
    return to_host(join_ranges(array_of(first, to_device), array_of(second, to_device), ranges)).tobytes()


def test_ranges_of_both_arrays(to_device):
    ranges = [(9, 13), (0, 2), (5, 5), (2, 8), (8, 9), (12, 13), (0, 0)]
    assert joined(b"The quic", b"k fox", ranges, to_device) == b" foxThe quickx"


def test_no_bytes(to_device):
    assert joined(b"ab", b"c", [], to_device) == joined(b"ab", b"c", [(2, 2)], to_device) == b""
    assert joined(b"", b"", [], to_device) == b""
    assert joined(b"", b"abc", [(1, 3)], to_device) == b"bc" and joined(b"abc", b"", [(1, 3)], to_device) == b"bc"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([1, 3, 40, 5_000, 3 * TILE]))
def test_random_ranges(to_device, seed, count, most):
    """All places within words, and ranges that end at the edges of tiles."""
    rng = np.random.default_rng(seed)
    first, second = rng.bytes(60_000), rng.bytes(4 * TILE)
    ranges = []
    for _ in range(count):
        start, size = (0, len(first)) if rng.random() < 0.5 else (len(first), len(second))
        length = int(rng.choice([0, 1, most, rng.integers(most + 1)]))
        begin = start + int(rng.integers(size - min(length, size) + 1))
        ranges.append((begin, begin + min(length, size)))
    whole = first + second
    assert joined(first, second, ranges, to_device) == b"".join(whole[begin:end] for begin, end in ranges)


@pytest.mark.parametrize("sizes", [(TILE, TILE), (TILE - 1, 1, 1, TILE - 1), (4, 4), (5 * TILE + 3,)])
def test_ranges_that_end_with_tiles(sizes, to_device):
    data = np.random.default_rng(len(sizes)).bytes(sum(sizes) + 5)
    ends = np.cumsum(sizes).tolist()
    for shift in range(5):
        ranges = [(end - size + shift, end + shift) for size, end in zip(sizes, ends, strict=True)]
        assert joined(data, b"", ranges, to_device) == data[shift : sum(sizes) + shift]


def test_wrong_arrays_are_refused(to_device):
    data = to_device(np.zeros(8, np.uint8))
    with pytest.raises(TypeError, match="expected uint8 but got int32"):
        join_ranges(data, to_device(np.zeros(8, np.int32)), [])
    with pytest.raises(ValueError, match="second_B is not C-contiguous"):
        join_ranges(data, data[::2], [])


def test_constants_of_both_sources_agree():
    assert f"#define TILE {TILE} " in source("count/join_ranges")
