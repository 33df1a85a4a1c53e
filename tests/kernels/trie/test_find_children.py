"""Children by word: by hand, and against a dictionary of dictionaries, for every fanout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.find_children import find_children, sample_every_fanout


def find(runs, fanout, queries, to_device, dtype=np.uint32):
    word_G = np.array([word for run in runs for word in run], np.uint32)
    first_child_M = np.cumsum([0, *map(len, runs)]).astype(dtype)
    samples, starts = sample_every_fanout(word_G, fanout)
    nodes, words = np.array(queries, np.int64).reshape(-1, 2).T
    arrays = (word_G, first_child_M, samples, starts)
    moved = [to_device(np.ascontiguousarray(a)) for a in (*arrays, nodes, words.astype(np.uint32))]
    return to_host(find_children(*moved[:4], fanout, *moved[4:])).tolist()


def test_by_hand(to_device):
    runs = [[1, 4, 9], [], [2]]
    queries = [(0, 1), (0, 4), (0, 9), (0, 5), (0, 0), (0, 10), (1, 1), (2, 2), (2, 3), (3, 2), (-1, 1), (99, 2)]
    assert find(runs, 4, queries, to_device) == [0, 1, 2, -1, -1, -1, -1, 3, -1, -1, -1, -1]


def test_levels_of_the_index_by_hand():
    samples, starts = sample_every_fanout(np.arange(100, 121, dtype=np.uint32), 4)
    assert samples.tolist() == [100, 104, 108, 112, 116, 120, 100, 116]
    assert starts.tolist() == [0, 6, 8]
    samples, starts = sample_every_fanout(np.arange(4, dtype=np.uint32), 4)
    assert samples.tolist() == [] and starts.tolist() == [0]
    assert samples.dtype == np.uint32 and starts.dtype == np.int64


@given(
    runs=st.lists(st.lists(st.integers(0, 120), unique=True, max_size=90).map(sorted), max_size=8),
    fanout=st.integers(2, 9),
    dtype=st.sampled_from([np.uint32, np.int64]),
)
def test_every_word_of_every_node(to_device, runs, fanout, dtype):
    queries = [(m, w) for m in range(-1, len(runs) + 1) for w in range(122)]
    place = iter(range(10**6))
    expected = {(m, w): next(place) for m, run in enumerate(runs) for w in run}
    assert find(runs, fanout, queries, to_device, dtype) == [expected.get(q, -1) for q in queries]


@pytest.mark.parametrize("fanout", [4, 5, 31, 32, 33, 64, 128])
def test_a_long_run_between_others(fanout, to_device):
    rng = np.random.default_rng(fanout)
    runs = [sorted(rng.choice(10**6, size, replace=False).tolist()) for size in (3, 20_011, 1, 0, 129)]
    start = np.cumsum([0, *map(len, runs)]).tolist()
    there = [(m, w) for m, run in enumerate(runs) for w in run]
    assert find(runs, fanout, there, to_device) == list(range(start[-1]))
    missing = [(m, w) for m, run in enumerate(runs) for w in set(range(0, 10**6, 97)) - set(run)]
    assert set(find(runs, fanout, missing, to_device)) == {-1}


def test_words_up_to_the_largest(to_device):
    last = 2**32 - 1
    assert find([[0, last - 1, last]], 2, [(0, 0), (0, last), (0, last - 1), (0, 5)], to_device) == [0, 2, 1, -1]


@pytest.mark.parametrize("first", [2**31 - 3, 2**32 - 3, 2**33])
@pytest.mark.parametrize("run", [1, 30, 5000])
def test_more_nodes_than_32_bits_number(first, run):
    """All words share one word of memory, so each word of a range matches: its last node is found."""
    word_G = as_strided(np.array([7], np.uint32), (first + run + 9,), (0,))
    levels = [len(word_G)]
    while levels[-1] > 32:
        levels.append(-(-levels[-1] // 32))
    starts = np.cumsum([0, *levels[1:]])
    samples = as_strided(np.array([7], np.uint32), (int(starts[-1]),), (0,))
    first_child_M = np.array([first, first, first + run, first + run], np.int64)
    queries = np.array([0, 1, 2, 1]), np.array([7, 7, 7, 8], np.uint32)
    found = find_children(word_G, first_child_M, samples, starts, 32, *queries)
    assert found.tolist() == [-1, first + run - 1, -1, -1]
