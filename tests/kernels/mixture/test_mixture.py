"""Sums and gradients of mixtures beside values worked by hand and the equations in float64."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.activations import singles, stored
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.mixture.mixture_gradient import mixture_gradient
from mgpu_ngram.kernels.mixture.mixture_sums import COUNTS, WORDS, Mixture, mixture_sums


def moved(mixture, to_device):
    return Mixture(*(to_device(field) if isinstance(field, np.ndarray) else field for field in mixture))


def test_a_row_by_hand(to_device):
    """Weights 1/8, 2/8, 1/8 of words and 4/8 of a count distribution that gives the gold word, 1, a probability of 1/2.

    P = 2/8 + 4/8 * 1/2 = 1/2; the posteriors of word 1 and of the count distribution are 1/2 each.
    """
    logits = np.log(np.array([[1, 2, 1, 4, 99]] * 3, np.float32))
    mixture = Mixture(logits, 3, np.log(np.full((3, 1), 0.5, np.float32)), np.ones(3, np.int64))
    mixture = mixture._replace(dropped_R=np.array([0, COUNTS, WORDS], np.uint8))
    mixture = moved(mixture, to_device)
    sums = mixture_sums(mixture)
    log_sum, log_gold = map(to_host, sums)
    np.testing.assert_allclose(log_sum, np.log([8, 4, 4]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(log_gold, np.log([4, 2, 2]), rtol=0, atol=1e-6)
    gradient = to_host(mixture_gradient(mixture, *sums, to_device(np.array([2, 1, 1], np.float32))))
    wanted = [
        [2 / 8, 2 * (2 / 8 - 1 / 2), 2 / 8, 2 * (4 / 8 - 1 / 2), 0],
        [1 / 4, 2 / 4 - 1, 1 / 4, 0, 0],
        [0, 0, 0, 1 - 1, 0],
    ]
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-6)


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 5000), st.integers(0, 5), st.integers(0, 3),
    st.sampled_from([np.float32, np.float16, np.uint16]),
)  # fmt: skip
def test_rows_of_the_equations(seed, R, words, N, padding, dtype):
    rng = np.random.default_rng(seed)
    logits = stored(4 * rng.standard_normal((R, words + N + padding), np.float32), np.dtype(dtype))
    log_probs = np.log(rng.random((R, N), np.float32) + np.float32(1e-9))
    gold, scale = rng.integers(0, words, R), rng.standard_normal(R, np.float32)
    dropped = rng.choice(np.array([0, COUNTS, WORDS if N else 0], np.uint8), R)
    mixture = Mixture(logits, words, log_probs, gold, dropped)
    log_sum, log_gold = mixture_sums(mixture)
    gradient = mixture_gradient(mixture, log_sum, log_gold, scale)
    weights = np.exp(singles(logits).astype(np.float64))
    weights[:, words + N :] = 0
    weights[dropped == WORDS, :words] = 0
    weights[dropped == COUNTS, words:] = 0
    parts = np.zeros_like(weights)
    parts[np.arange(R), gold] = weights[np.arange(R), gold]
    parts[:, words : words + N] = weights[:, words : words + N] * np.exp(log_probs.astype(np.float64))
    np.testing.assert_allclose(log_sum, np.log(weights.sum(1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(log_gold, np.log(parts.sum(1)), rtol=0, atol=1e-5)
    wanted = weights / weights.sum(1, keepdims=True) - parts / parts.sum(1, keepdims=True)
    unit = {np.float32: 0, np.float16: 2**-11, np.uint16: 2**-8}[dtype]  # half a unit in the last place
    np.testing.assert_allclose(singles(gradient), wanted * scale[:, None], rtol=unit, atol=3e-5)


def test_a_probability_of_0(to_device):
    """The loss is inf, and the gradient has no posterior; zeros of single distributions are legal."""
    logits, log_probs = np.zeros((2, 4), np.float32), np.full((2, 2), -np.inf, np.float32)
    mixture = Mixture(logits, 2, log_probs, np.zeros(2, np.int64), np.array([WORDS, 0], np.uint8))
    mixture = moved(mixture, to_device)
    sums = mixture_sums(mixture)
    np.testing.assert_allclose(to_host(sums[0]), np.log([2, 4]), rtol=0, atol=1e-6)
    assert to_host(sums[1]).tolist() == [-math.inf, 0]
    gradient = to_host(mixture_gradient(mixture, *sums, to_device(np.ones(2, np.float32))))
    np.testing.assert_allclose(gradient, [[0, 0, 0.5, 0.5], [-0.75, 0.25, 0.25, 0.25]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", ["logit", "count", "probability", "gold", "negative gold", "dropped"])
def test_rows_that_have_no_sums(to_device, change):
    logits, log_probs = np.zeros((2, 4), np.float32), np.full((2, 1), -1, np.float32)
    gold, dropped = np.zeros(2, np.int64), np.zeros(2, np.uint8)
    match change:
        case "logit":
            logits[0, 1] = np.nan
        case "count":
            logits[0, 3] = np.nan
        case "probability":
            log_probs[0] = np.nan
        case "gold":
            gold[0] = 3
        case "negative gold":
            gold[0] = -1
        case "dropped":
            dropped[0] = COUNTS | WORDS
    for found in map(to_host, mixture_sums(moved(Mixture(logits, 3, log_probs, gold, dropped), to_device))):
        assert np.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": 4}, "logits_RX has 4 columns but 4 words and 1 count distributions need 5"),
        ({"gold_R": np.zeros(3, np.int64)}, r"gold_R has shape \(3,\) but logits of shape \(2, 4\) have 2 rows"),
        ({"words": 0}, "words is 0"),
    ],
)
def test_refusals(change, message):
    mixture = Mixture(np.zeros((2, 4), np.float32), 3, np.zeros((2, 1), np.float32), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=message):
        mixture_sums(mixture._replace(**change))
