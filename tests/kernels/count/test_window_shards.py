"""The shard of the n-grams that end at each position, beside plain Python."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.window_shards import NO_SHARD, window_shards
from mgpu_ngram.kernels.dispatch import to_host


def found(to_device, tokens, shard_V, split=()):
    arrays = to_device(np.array(tokens, np.uint32)), to_device(np.array(shard_V, np.uint16))
    return to_host(window_shards(*arrays, split)).tolist()


def test_by_hand(to_device):
    """Word 1 (code 2) is split: the word before it decides, if there is one."""
    tokens, shard_V = [1, 2, 3, 0, 2, 3, 3, 0], [10, 20, 30]
    assert found(to_device, tokens, shard_V) == [NO_SHARD, 10, 20, NO_SHARD, NO_SHARD, 20, 30, NO_SHARD]
    assert found(to_device, tokens, shard_V, (1,)) == [NO_SHARD, 10, 10, NO_SHARD, NO_SHARD, NO_SHARD, 30, NO_SHARD]
    assert found(to_device, [], shard_V) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60), st.sets(st.integers(0, 4), max_size=3))
def test_against_plain_python(to_device, tokens, split):
    shard_V = [3, 1, 0, 2, 1]

    def shard(t):
        context = tokens[t - 1] if t >= 1 else 0
        selects = (tokens[t - 2] if t >= 2 else 0) if context - 1 in split else context
        return shard_V[selects - 1] if tokens[t] and context and selects else NO_SHARD

    assert found(to_device, tokens, shard_V, tuple(sorted(split))) == [shard(t) for t in range(len(tokens))]
