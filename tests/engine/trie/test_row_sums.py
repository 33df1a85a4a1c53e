"""Sums of probabilities: those of an estimated model are 1, and a wrong value anywhere is found."""

from dataclasses import replace

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.engine.trie.row_sums import check_row_sums, words_sum_to_one

LINES = [b"a b c a b", b"b c a", b"c a b b", b"a a c b", b"c c b a"]


@pytest.fixture(scope="module")
def model(to_device):
    model = ng.estimate(LINES, order=3, discount_fallback=[], device="cpu").arrays
    return replace(model, trie=model.trie.map_arrays(to_device))


def test_an_estimated_model_passes(model):
    check_row_sums(model.trie, model.words)
    assert words_sum_to_one(model.trie, model.words)


@pytest.mark.parametrize(("order", "where"), [(1, "of single words"), (2, "after '"), (3, "after '.+ .+'")])
def test_a_wrong_probability_is_found(model, order, where):
    prob_G = model.trie.prob_G.copy()
    prob_G[model.trie.starts[order] - 1] += 0.5  # the last n-gram of the order
    with pytest.raises(RunError, match=f"the probabilities {where}.* sum to .* instead of 1, so no model is written"):
        check_row_sums(replace(model.trie, prob_G=prob_G), model.words)


def test_a_wrong_backoff_is_found(model):
    backoff_M = model.trie.backoff_M + np.float32(0.5)
    with pytest.raises(RunError, match="the probabilities after '"):
        check_row_sums(replace(model.trie, backoff_M=backoff_M), model.words)
