"""The n-grams of a trie, as an ARPA file lists them: by hand and beside the model they were made from."""

import numpy as np
import pytest

from mgpu_ngram.core.ngrams.trie import Ngrams
from mgpu_ngram.engine.trie.build import build_trie
from mgpu_ngram.engine.trie.levels import levels_of


def trie_of(ngrams):
    """Return the trie of sorted n-grams, each with its place as its value."""
    orders, N = [], max(map(len, ngrams))
    for n in range(1, N + 1):
        ids = np.array([g for g in ngrams if len(g) == n], np.uint32).reshape(-1, n)
        prob = -1 - np.array([i for i, g in enumerate(ngrams) if len(g) == n], np.float32)
        orders.append(Ngrams(ids, prob, prob / 2 if n < N else None))
    return build_trie(orders, 4)


def test_levels_by_hand():
    ngrams = [(0,), (1,), (2,), (0, 2), (2, 0), (2, 2), (0, 2, 2), (2, 2, 0), (2, 2, 2)]
    one, two, three = levels_of(trie_of(ngrams))
    assert one.ids[:].tolist() == [[0], [1], [2]]
    assert two.ids[:].tolist() == [[0, 2], [2, 0], [2, 2]]
    assert three.ids[:].tolist() == [[0, 2, 2], [2, 2, 0], [2, 2, 2]]
    assert (two.prob.tolist(), two.backoff.tolist()) == ([-4, -5, -6], [-2, -2.5, -3])
    assert three.ids[1:2].tolist() == [[2, 2, 0]] and three.ids[3:9].shape == three.ids[1:1].shape == (0, 3)
    assert three.backoff is None


def test_filled_nodes_are_left_out():
    levels = levels_of(trie_of([(0,), (1,), (2,), (0, 2), (2, 0), (0, 2, 1), (2, 0, 1)]))  # lacks (2, 1) and (0, 1)
    assert [level.ids[:].tolist() for level in levels[1:]] == [[[0, 2], [2, 0]], [[0, 2, 1], [2, 0, 1]]]
    assert levels[1].ids[1:].tolist() == [[2, 0]]


@pytest.mark.parametrize("node", [np.uint32, np.int64])
def test_blocks_of_rows_are_the_ngrams(node):
    rng = np.random.default_rng(2)
    text = rng.zipf(1.4, 4_000).clip(1, 50) - 1
    ngrams = {(w,) for w in range(50)} | {tuple(text[i : i + n]) for n in (2, 3, 4, 5) for i in range(len(text) - n)}
    ngrams -= {g for g in ngrams if g[:1] == (3,) and len(g) > 1}  # a word without children, and missing suffixes
    trie = trie_of(sorted(ngrams, key=lambda g: (len(g), g)))
    trie.__dict__["first_child_M"] = trie.first_child_M.astype(node)
    for n, level in enumerate(levels_of(trie), 1):
        expected = sorted(g for g in ngrams if len(g) == n)
        found = [level.ids[row : row + 97] for row in range(0, len(level), 97)]
        assert list(map(tuple, np.concatenate(found).tolist())) == expected
