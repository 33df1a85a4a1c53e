"""Packed keys, against Python's integers and tuples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels import check
from mgpu_ngram.kernels.count.ngram_keys import ngram_keys
from mgpu_ngram.kernels.dispatch import to_host

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 25))


def window(codes, at, order):
    """The codes from `at` on, cut at the first 0."""
    return tuple(itertools.takewhile(bool, codes[at : at + order]))


def streams(bits):
    return st.lists(st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([0, 1, 2**bits - 1])), max_size=40)


def keys_of(codes, order, bits, to_device, **options):
    found = ngram_keys(to_device(np.array(codes, np.uint32)), order, bits, **options)
    assert found.dtype == np.uint64
    return to_host(found)


def test_by_hand(to_device):
    keys = keys_of([1, 2, 3], 2, 2, to_device)
    assert keys.tolist() == [[0b0110 << 60, 0b1011 << 60, 0b1100 << 60]]
    # 3 words of 25 bits: word 2 has 14 bits in the first column and 11 in the second
    keys = keys_of([1, 2, (1 << 11) + 1, 0, 5], 3, 25, to_device)
    assert keys[0].tolist() == [
        1 << 39 | 2 << 14 | 1,
        2 << 39 | ((1 << 11) + 1) << 14,
        ((1 << 11) + 1) << 39,
        0,
        5 << 39,
    ]
    assert keys[1].tolist() == [1 << 53, 0, 0, 0, 0]
    assert keys_of([], 3, 25, to_device).shape == (2, 0)


def test_columns_and_bits_of_codes():
    assert [check.num_columns(*shape) for shape in [(1, 1), (2, 32), (13, 5), (5, 19), (12, 25)]] == [1, 1, 2, 2, 5]
    assert [check.code_bits(symbols) for symbols in (0, 1, 2, 3, 4, 255, 256)] == [1, 1, 2, 2, 3, 8, 9]


@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), streams(shape[1]))))
def test_against_pythons_integers(to_device, pack_keys, case):
    (order, bits), codes = case
    windows = [window(codes, t, order) for t in range(len(codes))]
    assert keys_of(codes, order, bits, to_device).tolist() == pack_keys(windows, order, bits).tolist()


@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), streams(shape[1]))))
def test_keys_compare_like_tuples(to_device, case):
    (order, bits), codes = case
    windows = [window(codes, t, order) for t in range(len(codes))]
    rows = [tuple(row) for row in keys_of(codes, order, bits, to_device).T.tolist()]
    for a, b in itertools.combinations(range(len(codes)), 2):
        assert (rows[a] < rows[b]) == (windows[a] < windows[b])
        assert (rows[a] == rows[b]) == (windows[a] == windows[b])


def test_bytes_and_their_table_of_codes(to_device, pack_keys):
    lut = np.zeros(256, np.uint16)
    lut[list(b"abz")] = [1, 2, 300]
    found = to_host(ngram_keys(to_device(np.frombuffer(b"az\nba", np.uint8)), 2, 9, lut))
    assert found.tolist() == pack_keys([(1, 300), (300,), (), (2, 1), (1,)], 2, 9).tolist()
    plain = to_host(ngram_keys(to_device(np.array([5, 0, 255], np.uint8)), 2, 8))
    assert plain.tolist() == pack_keys([(5,), (), (255,)], 2, 8).tolist()


def test_rows_and_positions(to_device, pack_keys):
    codes = [4, 5, 6, 0, 7, 8]
    some = keys_of(codes, 3, 5, to_device, rows=2)
    assert some.tolist() == pack_keys([(4, 5, 6), (5, 6)], 3, 5).tolist()
    assert keys_of(codes, 3, 5, to_device, rows=99).shape == (1, 6)
    at = keys_of(codes, 3, 5, to_device, positions_R=to_device(np.array([4, 0, 3, 0], np.int64)))
    assert at.tolist() == pack_keys([(7, 8), (4, 5, 6), (), (4, 5, 6)], 3, 5).tolist()
    none = keys_of(codes, 3, 5, to_device, positions_R=to_device(np.empty(0, np.int64)))
    assert none.shape == (1, 0)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="expected uint32 or uint8 but got int64"):
        ngram_keys(np.zeros(3, np.int64), 2, 8)
