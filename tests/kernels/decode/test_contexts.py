"""Contexts and their means beside values worked by hand and float64."""

import numpy as np
import pytest

from mgpu_ngram.kernels.decode.contexts import contexts
from mgpu_ngram.kernels.dispatch import to_host


def test_contexts_by_hand(to_device):
    """Two sentences of one and two positions; the state after the end is not read."""
    forward = np.array([[[1], [2]], [[np.nan], [6]]], np.float32)
    backward = np.array([[[3], [5]], [[np.nan], [7]]], np.float32)
    context_BTC, mean_BC = contexts(*map(to_device, (forward, backward, np.array([1, 2]))))
    assert to_host(context_BTC).tolist() == [[[1, 3], [0, 0]], [[2, 5], [6, 7]]]
    assert to_host(mean_BC).tolist() == [[1, 3], [4, 6]]
    context_BTC, mean_BC = contexts(to_device(forward), None, to_device(np.array([1, 2])))
    assert to_host(context_BTC).tolist() == [[[1], [0]], [[2], [6]]] and to_host(mean_BC).tolist() == [[1], [4]]


@pytest.mark.parametrize(("dtype", "step"), [(np.float32, 1e-6), (np.float16, 2**-11)])
def test_means_of_any_sentences(dtype, step, to_device):
    rng = np.random.default_rng(1)
    T, B, H = 37, 5, 19
    forward, backward = (rng.normal(size=(T, B, H)).astype(dtype) for _ in range(2))
    length = np.array([37, 1, 8, 20, 36])
    context_BTC, mean_BC = (to_host(a) for a in contexts(*map(to_device, (forward, backward, length))))
    both = np.concatenate([forward, backward], axis=2)
    for b, n in enumerate(length):
        np.testing.assert_array_equal(context_BTC[b, :n], both[:n, b])
        assert not context_BTC[b, n:].any()
        np.testing.assert_allclose(mean_BC[b], both[:n, b].mean(0, dtype=np.float64), rtol=step, atol=step)


def test_shapes_are_checked():
    states = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"backward_TBH has shape \(1, 3, 4\) but forward_TBH needs \(2, 3, 4\)"):
        contexts(states, states[:1], np.ones(3, np.int64))
    with pytest.raises(ValueError, match=r"length_B has shape \(2,\) but forward_TBH needs \(3,\)"):
        contexts(states, states, np.ones(2, np.int64))
