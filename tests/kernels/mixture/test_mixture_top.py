"""The best words of mixtures beside values worked by hand and sorted rows in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.activations import singles
from mgpu_ngram.kernels.decode.logit_rows import NgramChildren
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.mixture.mixture_top import MAX_MODELS, TILE, example, mixture_top


def model_of(first, end, backoff, words, values, of_words):
    """Return a model whose arrays are given as lists."""
    ranges = (np.array(nodes, np.uint32) for nodes in (first, end))
    floats = (np.array(numbers, np.float32) for numbers in (values, of_words))
    return NgramChildren(*ranges, np.array(backoff, np.float32), np.array(words, np.uint32), *floats)


def moved(inputs, to_device):
    counts = [NgramChildren(*map(to_device, model)) for model in inputs["counts"]]
    return inputs | {"logits_RX": to_device(inputs["logits_RX"]), "counts": counts}


def test_rows_by_hand(to_device):
    """Weights 1/8, 2/8, 1/8 of words and 4/8 of a bigram model.

    Row 0 backs off with 1/2, and word 2 is a child: P_1 = (1/4, 1/8, 3/4), so P = (2/8, 5/16, 4/8). Row 1 has no
    history: P_1 = (1/2, 1/4, 1/4), so P = (3/8, 3/8, 2/8), and word 0 wins the tie.
    """
    logits = np.log(np.array([[1, 2, 1, 4, 99]] * 2, np.float32))
    model = model_of([[0], [0]], [[1], [0]], [[0.5], [1]], [2], [0.75], [0.5, 0.25, 0.25])
    inputs = {"logits_RX": logits, "words": 3, "k": 3, "counts": [model]}
    words, probs = map(to_host, mixture_top(**moved(inputs, to_device)))
    np.testing.assert_allclose(probs, [[1 / 2, 5 / 16, 1 / 4], [3 / 8, 3 / 8, 1 / 4]], rtol=1e-6, atol=0)
    assert words[0].tolist() == [2, 1, 0] and sorted(words[1, :2].tolist()) == [0, 1] and words[1, 2] == 2


def test_equal_words_rise(to_device):
    logits = np.zeros((1, 3 * TILE + 5), np.float32)
    words, probs = map(to_host, mixture_top(to_device(logits), 3 * TILE + 5, 64, []))
    assert words.tolist() == [list(range(64))]
    np.testing.assert_allclose(probs, 1 / (3 * TILE + 5), rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(0, 9000))
def test_rows_of_the_equations(seed, size):
    inputs = example(np.random.default_rng(seed), size)
    logits_RX, words, k, counts = inputs.values()
    found, probs = mixture_top(**inputs)
    weights = np.exp(singles(logits_RX[:, : words + len(counts)]).astype(np.float64))
    weights /= weights.sum(1, keepdims=True)
    rows = weights[:, :words].copy()
    for r in range(len(rows)):
        for i, model in enumerate(counts):
            row = model.value_V.astype(np.float64)
            for first, end, backoff in zip(*(array[r].tolist() for array in model[:3]), strict=True):
                row = row * backoff
                row[model.word_G[first:end]] = model.value_G[first:end]
            rows[r] += weights[r, words + i] * row
        np.testing.assert_allclose(probs[r], np.sort(rows[r])[::-1][:k], rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(rows[r, found[r]], probs[r], rtol=1e-5, atol=1e-12)
        assert len(set(found[r].tolist())) == k
        pairs = list(zip(-probs[r], found[r], strict=True))
        assert pairs == sorted(pairs)


def test_rows_without_a_sum(to_device):
    logits = np.zeros((2, 4), np.float32)
    logits[0, 3] = np.nan
    model = model_of([[0], [0]], [[0], [0]], [[1], [1]], [], [], [0.5, 0.25, 0.25])
    inputs = {"logits_RX": logits, "words": 3, "k": 2, "counts": [model]}
    words, probs = map(to_host, mixture_top(**moved(inputs, to_device)))
    assert words.tolist() == [[-1, -1], [0, 1]] and np.isnan(probs).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 65}, "k is 65 but must be 1 to 64; sort whole rows for more"),
        ({"k": 4, "words": 3}, "k is 4 but must be 1 to 3"),
        ({"words": 70}, "model 0 has 80 words and histories of 1 rows but logits of 70 words have 1 rows"),
        ({"counts": MAX_MODELS + 1}, "got 17 models with 0 histories"),
    ],
)
def test_refusals(change, message):
    model = model_of([[]], [[]], [[]], [], [], np.full(80, 1 / 80))
    inputs = {"logits_RX": np.zeros((1, 100), np.float32), "words": 80, "k": 2, "counts": [model]}
    if "counts" in change:
        change = {"counts": [model] * change["counts"]}
    with pytest.raises(ValueError, match=message):
        mixture_top(**inputs | change)
