"""The windows of some shards are those that plain Python selects, last context word first."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.select_windows import ITEMS, THREADS, select_windows
from mgpu_ngram.kernels.count.window_shards import window_shards
from mgpu_ngram.kernels.dispatch import to_host

TILE = THREADS * ITEMS


def plain_windows(tokens, shard_T, ends, order, shards, bigrams_of=()):
    """Return the codes of each window: of t - 1, t, t - 2, ..., up to the first 0."""
    found = []
    for t in range(max(1, ends[0]), min(ends[1], len(tokens))):
        if shards[0] <= shard_T[t] < shards[1]:
            most = order
        elif tokens[t] and tokens[t - 1] - 1 in bigrams_of:
            most = 2
        else:
            continue
        window = [tokens[t - 1], tokens[t]]
        for at in range(t - 2, max(-1, t - most), -1):
            if not tokens[at]:
                break
            window.append(tokens[at])
        found.append(tuple(window))
    return found


def test_by_hand(to_device, unpack_keys):
    """a b c . b d, where . ends a sentence: windows after a and b are in shard 0, windows after c and d in shard 1."""
    tokens = to_device(np.array([1, 2, 3, 0, 2, 4], np.uint32))
    shard_T = window_shards(tokens, to_device(np.array([0, 0, 1, 1], np.uint16)))
    columns = to_host(select_windows(tokens, shard_T, (0, 6), 3, 3, (0, 1)))
    assert unpack_keys(columns, 3, 3) == [(1, 2), (2, 3, 1), (2, 4)]
    columns = to_host(select_windows(tokens, shard_T, (2, 5), 3, 3, (0, 2)))
    assert unpack_keys(columns, 3, 3) == [(2, 3, 1)]


def test_bigrams_of_a_split_word(to_device, unpack_keys):
    """Word 1 (code 2) is split: its bigrams are in shard 0, and its trigrams in the shard of the word before it."""
    tokens = to_device(np.array([1, 2, 3, 0, 3, 2, 1], np.uint32))
    shard_T = window_shards(tokens, to_device(np.array([1, 0, 0], np.uint16)), (1,))
    found = [
        unpack_keys(to_host(select_windows(tokens, shard_T, (0, 7), 3, 2, (s, s + 1), mine)), 3, 2)
        for s, mine in ((0, (1,)), (1, ()))
    ]
    assert found == [[(2, 3), (3, 2), (2, 1, 3)], [(1, 2), (2, 3, 1)]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 3, 5, 8]),
    st.sampled_from([3, 17, 23, 32]),
    st.sampled_from([0, 1, 2, 90, TILE - 1, TILE + 2, 2 * TILE + 40]),
)
def test_against_plain_python(to_device, unpack_keys, seed, order, bits, size):
    """Keys of one column and of several, tiles that are full and a last one that is not."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 7, size).astype(np.uint32)
    split = tuple(sorted(set(rng.integers(0, 6, rng.integers(0, 3)).tolist())))
    shard_T = window_shards(tokens, rng.integers(0, 4, 6).astype(np.uint16), split)
    ends = tuple(sorted(rng.integers(0, size + 2, 2).tolist()))
    shards, mine = tuple(sorted(rng.integers(0, 5, 2).tolist())), split[: rng.integers(0, 3)]
    columns = select_windows(to_device(tokens), to_device(shard_T), ends, order, bits, shards, mine)
    expected = plain_windows(tokens.tolist(), shard_T.tolist(), ends, order, shards, mine)
    assert columns.shape == (-(-order * bits // 64), len(expected))
    assert unpack_keys(to_host(columns), order, bits) == expected


def test_order_1_is_refused(to_device):
    nothing = to_device(np.zeros(1, np.uint32)), to_device(np.zeros(1, np.uint16))
    with pytest.raises(ValueError, match=re.escape("order 1 has no context word")):
        select_windows(*nothing, (0, 1), 1, 8, (0, 1))
