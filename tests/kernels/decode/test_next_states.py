"""States of an n-gram model, word by word, against a dict of n-grams."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.decode.next_states import next_states
from mgpu_ngram.kernels.dispatch import to_host

BEGIN = 0


def walk(trie, words_TR, begin, to_device):
    """Return the children of each step, on the host; all rows begin with nothing."""
    trie, R = trie.map_arrays(to_device), len(words_TR[0])
    nodes_RK, steps = to_device(np.full((R, trie.order - 1), -1)), []
    for words_R in words_TR:
        words = to_device(np.array(words_R, np.int64))
        nodes_RK, found = next_states(index_of(trie), nodes_RK, words, begin, trie.first_child_M, trie.backoff_M)
        steps.append([to_host(a) for a in found])
    return steps


def test_by_hand(trie_of, to_device):
    """Nodes: 0 1 2 | 0-1 1-1 1-2 | 0-1-2 1-1-1. Row 0 reads <s>=0, 1, 2; row 1 reads 1, 1, <s>."""
    ngrams = {
        (0,): (-1, 0.5), (1,): (-2, 0.25), (2,): (-3, 0.125),
        (0, 1): (-4, -0.5), (1, 1): (-5, -0.25), (1, 2): (-6, -0.125),
        (0, 1, 2): (-7, 0), (1, 1, 1): (-8, 0),
    }  # fmt: skip
    steps = walk(trie_of(ngrams), [[-1, 1], [1, 1], [2, -1]], BEGIN, to_device)
    first, end, backoff = zip(*steps, strict=True)
    assert [a.tolist() for a in first] == [[[3, 0], [4, 0]], [[4, 6], [4, 7]], [[6, 8], [3, 0]]]
    assert [a.tolist() for a in end] == [[[4, 0], [6, 0]], [[6, 7], [6, 8]], [[6, 8], [4, 0]]]
    assert [a.tolist() for a in backoff] == [
        [[0.5, 0], [0.25, 0]], [[0.25, -0.5], [0.25, -0.25]], [[0.125, -0.125], [0.5, 0]]
    ]  # fmt: skip
    assert np.signbit(backoff[0][:, 1]).all()  # -0 changes no sum


@settings(max_examples=25)
@given(order=st.integers(1, 4), seed=st.integers(0, 99), begin=st.sampled_from([-1, BEGIN]))
def test_children_of_all_histories(order, seed, begin, trie_of, to_device):
    """The children of a history are the n-grams that it begins; the backoff is its own."""
    rng, V, R = np.random.default_rng(seed), 6, 8
    text = rng.integers(0, V, 200).tolist()
    parts = {tuple(text[i : i + n]) for i in range(0, 150, 2) for n in range(1, order + 1)}
    parts |= {g[a:b] for g in parts for a in range(order) for b in range(a + 1, len(g) + 1)} | {(w,) for w in range(V)}
    ngrams = {g: (-1 - i / 64, (i % 7) / 64) for i, g in enumerate(sorted(parts))}
    trie = trie_of(ngrams)
    words_TR = rng.integers(-1, V, (7, R))
    histories = [() for _ in range(R)]
    for words_R, (first_RK, end_RK, backoff_RK) in zip(words_TR, walk(trie, words_TR, begin, to_device), strict=True):
        for r, word in enumerate(words_R.tolist()):
            histories[r] = (*histories[r], word) if word >= 0 else (begin,) * (begin >= 0)
            for k in range(order - 1):
                last = histories[r][-k - 1 :] if len(histories[r]) > k else None
                children = sorted(g[-1] for g in ngrams if last is not None and g[:-1] == last)
                assert trie.word_G[first_RK[r, k] : end_RK[r, k]].tolist() == children
                assert backoff_RK[r, k] == (np.float32(ngrams[last][1]) if last in ngrams else 0)


def test_other_ranges_and_no_backoffs(trie_of, to_device):
    """The ranges are those that the caller gives; a trie without backoffs has neutral ones."""
    trie = trie_of({(0,): (-1, 0), (1,): (-1, 0), (0, 1): (-1, 0)}).map_arrays(to_device)
    ranges = to_device(np.array([10, 30, 35], trie.first_child_M.dtype))
    nodes, words = to_device(np.full((2, 1), -1)), to_device(np.array([0, 1]))
    _, found = next_states(index_of(trie), nodes, words, -1, ranges, trie.backoff_M[:0], 1.0)
    assert [to_host(a).tolist() for a in found] == [[[10], [30]], [[30], [35]], [[1], [1]]]


def test_wrong_shapes_are_refused(trie_of):
    trie = trie_of({(0,): (-1, 0), (1,): (-1, 0), (0, 1): (-1, 0)})
    with pytest.raises(ValueError, match=r"states of shape \(2, 1\), 3 words"):
        next_states(index_of(trie), np.full((2, 1), -1), np.zeros(3, np.int64), -1, trie.first_child_M, trie.backoff_M)
