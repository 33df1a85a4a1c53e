"""The windows of some shards are those that plain Python selects, last context word first."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.select_windows import ITEMS, MAX_SELECTED, SPLIT, THREADS, select_windows
from mgpu_ngram.kernels.dispatch import to_host

TILE = THREADS * ITEMS


def plain_windows(tokens, shard_V, ends, order, shards, split=()):
    """Return, for each shard, the sorted codes of its windows: of t - 1, t, t - 2, ..., up to the first 0."""
    found = {shard: [] for shard in range(*shards)}
    for t in range(max(1, ends[0]), min(ends[1], len(tokens))):
        window = [tokens[t - 1], tokens[t]]
        if 0 in window:
            continue
        for at in range(t - 2, max(-1, t - order), -1):
            if not tokens[at]:
                break
            window.append(tokens[at])
        of_bigram = of_all = shard_V[window[0] - 1]
        if window[0] - 1 in split:
            before = tokens[t - 2] if t > 1 else 0
            of_all = shard_V[before - 1] if before else None
        found.get(of_all, []).append(tuple(window))
        if of_bigram != of_all:
            found.get(of_bigram, []).append(tuple(window[:2]))
    return [sorted(windows) for windows in found.values()]


def selected(to_device, unpack_keys, tokens, shard_V, ends, order, bits, shards, split=()):
    """Return the sorted windows of each shard, as codes."""
    shard_V = np.array(shard_V, np.uint16)
    shard_V[list(split)] += SPLIT
    columns, starts_S1 = select_windows(
        to_device(np.array(tokens, np.uint32)), to_device(shard_V), ends, order, bits, shards
    )
    columns = to_host(columns)
    assert len(columns) == -(-order * bits // 64) and starts_S1.dtype == np.int64
    assert len(starts_S1) == shards[1] - shards[0] + 1 and starts_S1[0] == 0 and starts_S1[-1] == columns.shape[1]
    return [sorted(unpack_keys(columns[:, a:b], order, bits)) for a, b in pairwise(starts_S1.tolist())]


def test_by_hand(to_device, unpack_keys):
    """a b c . b d, where . ends a sentence: windows after a and b are in shard 0, windows after c and d in shard 1."""
    text = [1, 2, 3, 0, 2, 4], [0, 0, 1, 1]
    assert selected(to_device, unpack_keys, *text, (0, 6), 3, 3, (0, 1)) == [[(1, 2), (2, 3, 1), (2, 4)]]
    assert selected(to_device, unpack_keys, *text, (2, 5), 3, 3, (0, 2)) == [[(2, 3, 1)], []]


def test_a_split_word(to_device, unpack_keys):
    """Word 1 (code 2) is split: its bigrams are in shard 0, and its trigrams in the shard of the word before it."""
    text = [1, 2, 3, 0, 3, 2, 1, 0, 2, 2], [1, 0, 0]
    of_0, of_1 = [(2, 1, 3), (2, 2), (2, 3), (3, 2)], [(1, 2), (2, 3, 1)]
    assert selected(to_device, unpack_keys, *text, (0, 10), 3, 2, (0, 2), (1,)) == [of_0, of_1]
    assert selected(to_device, unpack_keys, *text, (0, 10), 3, 2, (0, 1), (1,)) == [of_0]
    assert selected(to_device, unpack_keys, *text, (0, 10), 3, 2, (1, 2), (1,)) == [of_1]


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
    tokens, shard_V = rng.integers(0, 7, size).tolist(), rng.integers(0, 4, 6).tolist()
    split = tuple(sorted(set(rng.integers(0, 6, rng.integers(0, 3)).tolist())))
    ends, shards = (tuple(sorted(rng.integers(0, most, 2).tolist())) for most in (size + 2, 5))
    expected = plain_windows(tokens, shard_V, ends, order, shards, split)
    assert selected(to_device, unpack_keys, tokens, shard_V, ends, order, bits, shards, split) == expected


def test_many_shards(to_device, unpack_keys):
    """As many as one call selects."""
    tokens, shard_V = np.random.default_rng(0).integers(0, 1101, 3 * TILE).tolist(), list(range(1100))
    shards = 40, 40 + MAX_SELECTED
    expected = plain_windows(tokens, shard_V, (0, len(tokens)), 3, shards)
    assert selected(to_device, unpack_keys, tokens, shard_V, (0, len(tokens)), 3, 11, shards) == expected


def test_what_is_refused(to_device, unpack_keys):
    with pytest.raises(ValueError, match=re.escape("order 1 has no context word")):
        selected(to_device, unpack_keys, [0], [0], (0, 1), 1, 8, (0, 1))
    with pytest.raises(ValueError, match=re.escape("1025 shards are outside 0..1024; select them in several calls")):
        selected(to_device, unpack_keys, [0], [0], (0, 1), 2, 8, (0, 1025))
