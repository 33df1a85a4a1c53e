"""bag_words: by hand, and against a Counter of each document."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.bag_words import bag_words
from mgpu_ngram.kernels.dispatch import to_host


def bags(tokens, to_device):
    found = [to_host(array) for array in bag_words(to_device(np.array(tokens, np.uint32)), 9)]
    assert [array.dtype.name for array in found] == ["int64", "uint32", "uint32"]
    return [array.tolist() for array in found]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], [[0], [], []]),
        ([0], [[0, 0], [], []]),
        ([3, 1, 3, 0, 0, 9, 0], [[0, 2, 2, 3], [0, 2, 8], [1, 2, 1]]),
        ([1, 0, 1, 1], [[0, 1], [0], [1]]),
        ([5, 5], [[0], [], []]),
    ],
)
def test_by_hand(tokens, expected, to_device):
    assert bags(tokens, to_device) == expected


@given(st.lists(st.integers(0, 9)))
def test_counts_are_those_of_a_counter(to_device, tokens):
    documents, words = [], []
    for token in tokens:
        if token:
            words.append(token - 1)
        else:
            documents.append(sorted(Counter(words).items()))
            words = []
    starts, found, counts = bags(tokens, to_device)
    pairs = list(zip(found, counts, strict=True))
    assert [pairs[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)] == documents
