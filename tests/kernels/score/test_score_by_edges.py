"""By edges, tokens have the scores that `score_tokens` gives them, whose tests reach outside."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.score.score_by_edges import score_by_edges
from mgpu_ngram.kernels.score.score_tokens import score_tokens, text_and_trie
from mgpu_ngram.kernels.trie.edges import make_edges


def both(made, to_device, load=0.5):
    moved = {name: to_device(v) if isinstance(v, np.ndarray) else v for name, v in made.items()}
    table = make_edges(moved["word_G"], moved["first_child_M"], moved["prob_G"], moved["backoff_M"], load)
    rest = {name: moved[name] for name in ("order", "begin", "end", "codes_T")}
    found = score_by_edges(**vars(table), **rest)
    return [to_host(a) for a in found], [to_host(a) for a in score_tokens(**moved)]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 3000), load=st.sampled_from([0.3, 0.5, 0.95]))
def test_any_text(to_device, seed, size, load):
    found, expected = both(text_and_trie(np.random.default_rng(seed), size), to_device, load)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def test_orders_are_met(to_device):
    (_, order_T), _ = both(text_and_trie(np.random.default_rng(0), 5000), to_device)
    assert set(order_T.tolist()) == {0, 1, 2, 3}, "or the test above shows little"


def test_orders_that_do_not_fit(to_device):
    table = make_edges(np.zeros(1, np.uint32), np.ones(2, np.uint32), *(np.zeros(1, np.float32),) * 2)
    with pytest.raises(ValueError, match="order is 0 but must be 1 to 96"):
        score_by_edges(**vars(table), order=0, begin=-1, end=-1, codes_T=np.zeros(1, np.uint32))
