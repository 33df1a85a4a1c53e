"""Pairs whose keys are in a table, against a plain search of all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.trie.find_key_pairs import PAIRS_PER_TILE, example, find_key_pairs


def found(to_device, threads=1, **arrays):
    pairs = find_key_pairs(**{name: to_device(array) for name, array in arrays.items()}, threads=threads)
    assert all(array.dtype == np.int64 for array in pairs)
    return list(zip(*(to_host(array).tolist() for array in pairs), strict=True))


def expected(base_S, begin_S, end_S, term_H, keys_C):
    slot = {key: c for c, key in enumerate(keys_C.tolist()) if key}
    base, term = base_S.tolist(), term_H.tolist()
    pairs = ((s, h) for s in range(len(base)) for h in range(begin_S[s], end_S[s]))
    return [(slot[base[s] ^ term[h]], s, h) for s, h in pairs if base[s] ^ term[h] in slot]


def test_by_hand(to_device):
    """Key 14 goes to slot 0, because key 9 is in slot 4. History 2 has no suffix."""
    arrays = {
        "base_S": np.array([8, 4, 3], np.uint64),
        "begin_S": np.array([0, 0, 3]),
        "end_S": np.array([2, 2, 4]),
        "term_H": np.array([1, 10, 2, 4], np.uint64),
        "keys_C": np.array([14, 0, 0, 0, 9], np.uint64),
    }
    assert found(to_device, **arrays) == [(4, 0, 0), (0, 1, 1)]


def test_two_pairs_of_one_key(to_device):
    arrays = {
        "base_S": np.array([1, 2], np.uint64),
        "begin_S": np.array([0, 0]),
        "end_S": np.array([2, 2]),
        "term_H": np.array([4, 7], np.uint64),
        "keys_C": np.array([0, 5], np.uint64),
    }
    assert found(to_device, **arrays) == [(1, 0, 0), (1, 1, 1)]


@given(st.integers(0, 2**32), st.integers(0, 1500), st.integers(1, 3))
def test_all_pairs(to_device, seed, size, threads):
    arrays = example(np.random.default_rng(seed), size)
    assert found(to_device, threads, **arrays) == expected(**arrays)


def test_tiles(to_device):
    """One group is so large that its pairs are tested in tiles."""
    arrays = example(np.random.default_rng(0), 6000)
    first = arrays["begin_S"] == 0
    assert first.sum() * arrays["end_S"][first].max() > 8 * PAIRS_PER_TILE
    assert found(to_device, **arrays) == expected(**arrays)
