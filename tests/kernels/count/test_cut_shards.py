"""N-grams are cut into shards as Python's stable sort orders them, from tuples of codes."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.radix_sort import ITEMS, THREADS
from mgpu_ngram.kernels.count.cut_shards import cut_shards
from mgpu_ngram.kernels.dispatch import to_host

TILE = THREADS * ITEMS  # rows of a block


def keys_of(ngrams, order, bits):
    """Pack codes from the highest bit on, in Python's integers."""
    columns = -(-order * bits // 64)
    packed = []
    for ngram in ngrams:
        number = 0
        for code in ngram:
            number = number << bits | code
        number <<= 64 * columns - order * bits
        packed.append([number >> 64 * (columns - 1 - c) & (1 << 64) - 1 for c in range(columns)])
    return np.array(packed, np.uint64).reshape(len(ngrams), columns).T.copy()


def check_cut(to_device, ngrams, order, bits, shard_V, split, shards):
    keys, counts = keys_of(ngrams, order, bits), np.arange(1, len(ngrams) + 1)
    longer = np.pad(keys, ((0, 0), (1, 2)))  # keys may be a slice
    table = to_device(longer)[:, 1:-2], to_device(counts)
    found_keys, found_counts, ends_S = cut_shards(
        *table, order, bits, to_device(np.array(shard_V, np.uint16)), split, shards
    )

    def shard(row):
        context = ngrams[row][:-1]
        is_split = order > 2 and context[-1] - 1 in split
        return shard_V[context[-2 if is_split else -1] - 1]

    shard_R = [shard(row) for row in range(len(ngrams))]
    rows = sorted(range(len(ngrams)), key=shard_R.__getitem__)  # stable
    assert np.array_equal(to_host(found_keys), keys[:, rows])
    assert to_host(found_counts).tolist() == [row + 1 for row in rows]
    assert ends_S.dtype == np.int64 and ends_S.tolist() == np.bincount(shard_R, minlength=shards).cumsum().tolist()


def test_by_hand(to_device):
    """The second word decides, or the first one after the split word 2 (code 3)."""
    ngrams = [(1, 1, 1), (1, 2, 2), (1, 3, 1), (2, 1, 3), (2, 3, 3), (3, 3, 1)]
    table = to_device(keys_of(ngrams, 3, 2)), to_device(np.arange(6))
    _, found, ends_S = cut_shards(*table, 3, 2, to_device(np.array([1, 0, 2], np.uint16)), (2,), 3)
    assert to_host(found).tolist() == [1, 4, 0, 2, 3, 5] and ends_S.tolist() == [2, 5, 6]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 3, 4, 5, 7]),
    st.sampled_from([2, 13, 19, 21, 31, 32]),
    st.sampled_from([1, 2, 9, 256, 257, 700, 1024]),
    st.sampled_from([1, 3, 900, TILE, TILE + 1]),
)
def test_random_tables(to_device, seed, order, bits, shards, rows):
    """Codes within a column and across two, one pass and two, full tiles and the last row of the next one."""
    rng = np.random.default_rng(seed)
    words = min((1 << bits) - 1, 40)
    ngrams = list(map(tuple, (rng.zipf(1.5, (rows, order)) % words + 1).tolist()))
    shard_V = rng.integers(0, shards, words).tolist()
    split = tuple(sorted(set(rng.integers(0, words, rng.integers(0, 5)).tolist())))
    check_cut(to_device, ngrams, order, bits, shard_V, split, shards)


def test_many_tiles_and_all_rows_of_one_shard(to_device):
    rows = 5 * TILE + 7
    rng = np.random.default_rng(1)
    ngrams = np.stack([rng.integers(1, 3, rows), rng.integers(1, 3, rows)], 1).tolist()
    for shard_V in [0, 1023], [255, 255], [256, 0]:
        check_cut(to_device, ngrams, 2, 2, shard_V, (), 1024)


def test_no_rows(to_device):
    empty = to_device(np.empty((1, 0), np.uint64)), to_device(np.empty(0, np.int64))
    keys, counts, ends_S = cut_shards(*empty, 3, 8, to_device(np.zeros(4, np.uint16)), (), 3)
    assert keys.shape == (1, 0) and counts.shape == (0,) and ends_S.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("order", "shards", "message"),
    [(1, 2, "order 1 has no context word"), (2, 0, "0 shards are outside 1..1024"), (2, 1025, "1025 shards")],
)
def test_what_is_refused(order, shards, message, to_device):
    arrays = to_device(np.zeros((1, 1), np.uint64)), to_device(np.ones(1, np.int64))
    with pytest.raises(ValueError, match=re.escape(message)):
        cut_shards(*arrays, order, 8, to_device(np.zeros(4, np.uint16)), (), shards)
