"""Find histories in a trie: by hand, and every suffix of every history in a dict of n-grams."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.find_histories import Positions, find_histories


def find(trie, codes, positions, begin, to_device):
    moved = trie.map_arrays(to_device)
    where = Positions(to_device(np.array(codes, np.uint32)), to_device(np.array(positions, np.int64)), begin)
    found = find_histories(index_of(moved), moved.order, where, moved.backoff_M)
    first_HK, end_HK, backoff_HK = map(to_host, found)
    assert first_HK.dtype == end_HK.dtype == trie.first_child_M.dtype and backoff_HK.dtype == np.float32
    assert first_HK.shape == end_HK.shape == backoff_HK.shape == (len(positions), trie.order - 1)
    return first_HK, end_HK, backoff_HK


def history_of(codes, position, begin, most):
    """Return the words before a position, in order."""
    words = []
    while position > 0 and codes[position - 1]:
        position -= 1
        words.append(codes[position] - 1)
    if begin >= 0:
        words.append(begin)
    return tuple(words[:most][::-1])


def assert_found(ngrams, trie, codes, positions, begin, to_device):
    """The children of a history are the n-grams that it begins, with their probabilities; the backoff is its own."""
    children = {}
    for g in sorted(ngrams):
        children.setdefault(g[:-1], []).append((g[-1], np.float32(ngrams[g][0])))
    first_HK, end_HK, backoff_HK = find(trie, codes, positions, begin, to_device)
    for h, position in enumerate(positions):
        history = history_of(codes, position, begin, trie.order - 1)
        for k in range(trie.order - 1):
            first, end, last = int(first_HK[h, k]), int(end_HK[h, k]), history[len(history) - 1 - k :]
            if len(history) > k and last in ngrams:
                runs = zip(trie.word_G[first:end].tolist(), trie.prob_G[first:end], strict=True)
                assert list(runs) == children.get(last, []), last
                assert backoff_HK[h, k] == (np.float32(ngrams[last][1]) if trie.has_backoffs else 0), last
            else:
                assert (first, end, backoff_HK[h, k]) == (0, 0, 0) and np.signbit(backoff_HK[h, k]), last


def random_ngrams(rng, V, order, size):
    """Return {n-gram: (prob, backoff)} with all parts of n-grams and distinct values."""
    text = np.minimum(rng.zipf(1.5, size + order) - 1, V - 1).tolist()
    longest = [tuple(text[i : i + order]) for i in range(0, size, 2)]
    inside = {g[a:b] for g in longest for a in range(order) for b in range(a + 1, order + 1)}
    there = sorted(inside | {(w,) for w in range(V)})
    values = 1 + rng.permutation(2 * len(there)).reshape(-1, 2) / 64
    return {g: (-prob, backoff) for g, (prob, backoff) in zip(there, values.tolist(), strict=True)}


def test_by_hand(trie_of, to_device):
    """Nodes: 0 1 2 | 0-1 1-1 1-2 | 0-1-2 1-1-1."""
    ngrams = {
        (0,): (-1, 0.5), (1,): (-2, 0.25), (2,): (-3, 0.125),
        (0, 1): (-4, -0.5), (1, 1): (-5, -0.25), (1, 2): (-6, -0.125),
        (0, 1, 2): (-7, 0), (1, 1, 1): (-8, 0),
    }  # fmt: skip
    codes = [2, 2, 0, 1, 2, 3]  # 1 1 | 0 1 2
    positions = [0, 1, 2, 3, 4, 5, 6, 5]
    first_HK, end_HK, backoff_HK = find(trie_of(ngrams), codes, positions, 0, to_device)
    # histories: <s>=0; 0 1; 1 1; 0; 0 0; 0 1; 1 2; 0 1
    assert first_HK.tolist() == [[3, 0], [4, 6], [4, 7], [3, 0], [3, 0], [4, 6], [6, 8], [4, 6]]
    assert end_HK.tolist() == [[4, 0], [6, 7], [6, 8], [4, 0], [4, 0], [6, 7], [6, 8], [6, 7]]
    assert backoff_HK.tolist() == [
        [0.5, 0], [0.25, -0.5], [0.25, -0.25], [0.5, 0], [0.5, 0], [0.25, -0.5], [0.125, -0.125], [0.25, -0.5],
    ]  # fmt: skip


def test_without_begin_by_hand(trie_of, to_device):
    """An empty history has no children, and no words of the sentence before are used."""
    ngrams = {(0,): (-1, 0.5), (1,): (-2, 0.25), (1, 0): (-3, 0.125), (1, 0, 1): (-4, 0), (0, 1): (-5, 0.0625)}
    first_HK, end_HK, backoff_HK = find(trie_of(ngrams), [2, 0, 1, 0], [0, 1, 2, 3, 4], -1, to_device)
    assert first_HK.tolist() == [[0, 0], [3, 0], [0, 0], [2, 0], [0, 0]]
    assert end_HK.tolist() == [[0, 0], [4, 0], [0, 0], [3, 0], [0, 0]]
    assert backoff_HK.tolist() == [[0, 0], [0.25, 0], [0, 0], [0.5, 0], [0, 0]]


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6), V=st.integers(1, 6), order=st.integers(1, 6), size=st.integers(1, 60),
    fanout=st.integers(2, 5), dtype=st.sampled_from([np.uint32, np.int64]), backoffs=st.booleans(),
    codes=st.lists(st.integers(0, 6), max_size=30), data=st.data(),
)  # fmt: skip
def test_any_model(trie_of, to_device, seed, V, order, size, fanout, dtype, backoffs, codes, data):
    """Sentences of any length, the empty text, unknown words (0), positions in any order."""
    ngrams = random_ngrams(np.random.default_rng(seed), V, order, size)
    trie = trie_of(ngrams, fanout, dtype)
    if not backoffs:
        trie = replace(trie, backoff_M=trie.backoff_M[:0])
    codes = [min(code, V) for code in codes]
    positions = data.draw(st.lists(st.integers(0, len(codes)), max_size=40))
    begin = data.draw(st.integers(-1, V - 1))
    assert_found(ngrams, trie, codes, positions, begin, to_device)


@pytest.mark.parametrize(("order", "fanout"), [(2, 32), (3, 2), (5, 32), (5, 7)])
def test_text_longer_than_a_block(order, fanout, trie_of, to_device):
    """Every position of a text, most of which the model knows; ranges of children with index levels above them."""
    rng = np.random.default_rng(order)
    ngrams = random_ngrams(rng, 300, order, 3000)
    codes = np.minimum(rng.zipf(1.5, 2000), 300)
    codes[rng.random(2000) < 0.06] = 0
    trie = trie_of(ngrams, fanout)
    assert max(np.diff(trie.first_child_M)) > 2 * fanout
    for begin in -1, 1:
        assert_found(ngrams, trie, codes.tolist(), list(range(2001)), begin, to_device)
        assert_found(ngrams, trie, codes.tolist(), rng.integers(0, 2001, 700).tolist(), begin, to_device)


def test_33_orders(trie_of, to_device):
    """A history of as many words as a warp has lanes."""
    ngrams = {(0,) * n: (-1, n / 64) for n in range(1, 34)}
    assert_found(ngrams, trie_of(ngrams), [1] * 40 + [0, 1], [0, 1, 31, 32, 33, 40, 41, 42], -1, to_device)


def test_what_does_not_fit_together(trie_of, to_device):
    trie = trie_of({(0,): (-1, 0), (1,): (-2, 0), (0, 1): (-3, 0)})
    with pytest.raises(ValueError, match="got 1 backoffs for 2 nodes; pass one of each, or none"):
        find(replace(trie, backoff_M=trie.backoff_M[:1]), [1], [0], -1, np.array)
    with pytest.raises(TypeError, match="expected float32 but got uint8"):
        find(replace(trie, backoff_M=trie.backoff_M.astype(np.uint8)), [1], [0], -1, np.array)
