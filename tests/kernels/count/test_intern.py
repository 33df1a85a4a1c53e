"""Number words by first appearance, over several calls and while the table grows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.intern import WordTable, intern
from mgpu_ngram.kernels.dispatch import to_host

BLOCKS = st.lists(st.lists(st.integers(0, 60), max_size=80), max_size=4)
CLASHING = 1 << 40  # multiples of it share their low bits: every key starts at slot 0


def run(blocks, to_device, scale, capacity=16):
    """(tokens, new) of each block, and the table."""
    table = WordTable(to_device(np.empty(0)), capacity)
    results = []
    for block in blocks:
        hash_T = to_device(np.array(block, np.uint64) * np.uint64(scale))
        tokens_T, new_N = intern(hash_T, table)
        assert tokens_T.dtype == np.uint32 and new_N.dtype == np.int64
        results.append((to_host(tokens_T).tolist(), to_host(new_N).tolist()))
    return results, table


def expected(blocks):
    """The same with a dict, which keeps its keys in order of insertion."""
    numbers, results = {}, []
    for block in blocks:
        known = len(numbers)
        tokens = [numbers.setdefault(h, len(numbers)) + 1 if h else 0 for h in block]
        new = [block.index(h) for h in list(numbers)[known:]]
        results.append((tokens, new))
    return results, list(numbers)


def test_by_hand(to_device):
    results, table = run([[7, 9, 0, 7], [], [0, 3, 9, 3]], to_device, 1)
    assert results == [([1, 2, 0, 1], [0, 1]), ([], []), ([0, 3, 2, 3], [1])]
    assert to_host(table.hash_V).tolist() == [7, 9, 3] and len(table) == 3


@pytest.mark.parametrize("scale", [1, CLASHING, 0x9E3779B97F4A7C15])
@settings(max_examples=40)
@given(blocks=BLOCKS)
def test_against_a_dict(to_device, scale, blocks):
    results, table = run(blocks, to_device, scale)
    tokens, words = expected(blocks)
    assert results == tokens
    assert to_host(table.hash_V).tolist() == [w * scale % 2**64 for w in words]


def test_growth_keeps_the_numbers(to_device):
    rng = np.random.default_rng(1)
    blocks = [rng.integers(0, V, 3000).tolist() for V in (5, 100, 4000)]
    results, table = run(blocks, to_device, 0x9E3779B97F4A7C15)
    assert results == expected(blocks)[0]
    assert len(table.keys_C) >= 2 * len(table) > 16


def test_growth_past_the_first_capacity_of_a_gpu(device, to_device):
    V = 40_000 if device == "cpu" else 3_000_000  # over half of 1 << 16, of 1 << 22
    hash_T = np.random.default_rng(2).permutation(V).astype(np.uint64) + np.uint64(1)
    table = WordTable(to_device(np.empty(0)))
    start = to_device(np.array([V, 1], np.uint64))
    assert to_host(intern(start, table)[0]).tolist() == [1, 2]
    tokens_T, new_N = (to_host(a) for a in intern(to_device(hash_T), table))
    rest = (hash_T != V) & (hash_T != 1)
    assert tokens_T[~rest].tolist() == [1 if h == V else 2 for h in hash_T[~rest]]
    assert (tokens_T[rest] == np.arange(3, V + 1)).all() and (new_N == np.flatnonzero(rest)).all()
    assert len(table) == V


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="expected uint64 but got int64"):
        intern(np.zeros(3, np.int64), WordTable())
