"""The words of keys in another order are those of Python's tuples."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.reorder_words import reorder_words
from mgpu_ngram.kernels.dispatch import to_host
from tests.kernels.count.test_cut_shards import keys_of


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([1, 5, 21, 23, 31, 32, 33, 63, 64]))
def test_against_tuples(to_device, unpack_keys, seed, order, bits):
    """Also a slice of longer columns, and words in two columns."""
    rng = np.random.default_rng(seed)
    ngrams = [tuple(1 + int(w) % ((1 << bits) - 1) for w in row) for row in rng.integers(0, 2**62, (17, order))]
    places = rng.permutation(order).tolist()
    columns = to_device(np.pad(keys_of(ngrams, order, bits), ((0, 0), (2, 1))))[:, 2:-1]
    found = to_host(reorder_words(columns, bits, places))
    assert np.array_equal(found, keys_of([tuple(ngram[p] for p in places) for ngram in ngrams], order, bits))


def test_what_is_refused(to_device):
    columns = to_device(np.zeros((2, 1), np.uint64))
    with pytest.raises(ValueError, match=re.escape("places [0, 0] are not a permutation")):
        reorder_words(columns, 40, [0, 0])
    with pytest.raises(ValueError, match=re.escape("got 2 columns but 2 words of 20 bits need 1")):
        reorder_words(columns, 20, [1, 0])
