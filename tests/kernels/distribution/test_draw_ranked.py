"""Draw words among the most probable ones: by hand, by the rule in plain Python, and by chi-square."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.draw_ranked import Limits, Ranking, draw_ranked
from mgpu_ngram.kernels.distribution.draw_words import NO_WORD, NOT_DRAWN
from mgpu_ngram.kernels.distribution.sum_children import sum_children


def draw(model, to_device, numbers, seed=0, inverse=1.0, top_k=0, top_p=1.0, left_out=-1, tries=1000, code=np.uint32):
    arrays, prob_G = model.arrays(to_device, numbers, inverse, left_out, code)
    prob_V = to_host(prob_G)[: arrays["siblings"].symbols]
    ranked_V = to_device(np.argsort(-prob_V, kind="stable").astype(np.uint32))
    sums_V = sum_children(prob_G[ranked_V], ranked_V, to_device(np.array([len(prob_V)])), inverse, left_out)
    ranking, limits = Ranking(prob_G, ranked_V, sums_V), Limits(top_k, top_p, left_out)
    words_H = draw_ranked(**arrays, ranking=ranking, seed=seed, limits=limits, tries=tries)
    words_H = to_host(words_H)
    assert words_H.dtype == np.int32
    return words_H.tolist()


def test_the_row_by_hand(to_device, mixture):
    """Row .125 .25 .0625 .5 .0625: word 3 is a child of both histories, word 1 of the longer one alone."""
    logs = np.log10([0.5, 0.125, 0.25, 0.25, 0.25]).tolist()
    half = float(np.log10(0.5))
    model = mixture(logs, ({1: half, 3: np.log10(0.125)}, half), ({3: half}, half))
    for settings, words in (
        ({"top_p": 0.499}, {3}),
        ({"top_p": 0.51}, {3, 1}),
        ({"top_p": 0.74}, {3, 1}),
        ({"top_p": 0.9}, {3, 1, 0, 2}),  # 2 before 4, which is its equal
        ({"top_p": 1e-300}, {3}),
        ({"top_k": 1}, {3}),
        ({"top_k": 4}, {3, 1, 0, 2}),
        ({"top_k": 2, "top_p": 0.9}, {3, 1}),
        ({"top_k": 4, "top_p": 0.6}, {3, 1}),
        ({"top_k": 2, "left_out": 3}, {1, 0}),
        ({"top_p": 0.51, "left_out": 3}, {1, 0}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
    ):
        assert set(draw(model, to_device, range(200), **settings)) == words, settings


@given(
    st.integers(0),
    st.sampled_from([1, 2, 5, 33, 400]),
    st.integers(0, 4),
    st.sampled_from([1.0, 2.0, 1 / 3]),
    st.sampled_from([0, 1, 2, 5, 1000]),
    st.sampled_from([1.0, 0.1, 0.3, 0.9]),
    st.sampled_from([np.uint32, np.int64]),
)
def test_words_are_those_of_the_rule(to_device, random_mixture, seed, V, K, inverse, top_k, top_p, code):
    rng = np.random.default_rng(seed)
    model, left_out, seed = random_mixture(rng, V, K), int(rng.integers(-1, V)), seed % 2**64
    numbers = rng.integers(0, 2**63, 4).tolist()
    top_p -= 1e-3 * rng.random() * (top_p < 1)  # no sum of equal weights is this share of all
    found = draw(model, to_device, numbers, seed, inverse, top_k, top_p, left_out, 200, code)
    if model.allowed(inverse, left_out=left_out):
        assert found == [model.drawn(seed, n, inverse, top_k, top_p, left_out, 200) for n in numbers]
    else:
        assert set(found) <= {NO_WORD, NOT_DRAWN}


@pytest.mark.parametrize(("inverse", "top_k", "top_p"), [(1.0, 3, 1.0), (1.0, 0, 0.8), (0.5, 4, 0.7), (2.0, 5, 0.99)])
def test_how_often_words_come(to_device, mixture, chi_square, inverse, top_k, top_p):
    """Of 20,000 samples; above 41 for one in 10^6 seeds. The row does not sum to 1, and word 4 is <s>."""
    model = mixture(
        np.log10([0.3, 0.2, 0.05, 0.1, 1, 0.1, 0.1, 0.2]).tolist(),
        ({1: np.log10(0.3), 2: np.log10(0.06), 4: 0, 7: np.log10(0.2)}, np.log10(0.7)),
        ({2: np.log10(0.13), 4: 0}, np.log10(0.8)),
    )
    allowed = model.allowed(inverse, top_k, top_p, 4)
    assert 1 < len(allowed) < 7
    assert chi_square(draw(model, to_device, range(20_000), 11, inverse, top_k, top_p, 4), allowed) < 41


def test_long_lists_of_children(to_device, mixture):
    """More children than lanes, at levels whose ranges begin at no multiple of 32; a third and a ninth of all words."""
    rng = np.random.default_rng(1)
    values = (-4 * rng.random(1500)).tolist()
    model = mixture(values, *(({w: -3 * rng.random() for w in range(step, 1500, step)}, -0.3) for step in (3, 9)))
    for settings in {"top_p": 0.8}, {"top_k": 300}, {"top_k": 200, "top_p": 0.6, "inverse": 1.5}:
        expected = [model.drawn(4, n, left_out=1, **settings) for n in range(25)]
        assert draw(model, to_device, range(25), 4, left_out=1, **settings) == expected


def test_nothing_to_draw(to_device, mixture):
    assert draw(mixture([-99.0, -np.inf]), to_device, [0, 1], top_p=0.5) == [NO_WORD] * 2
    half = float(np.log10(0.5))
    assert draw(mixture([half, half], ({0: -99.0, 1: -99.0}, 0.0)), to_device, [0], top_p=0.5) == [NOT_DRAWN]
    assert draw(mixture([half]), to_device, [], top_k=1) == []


def test_arrays_that_do_not_fit_are_refused(mixture):
    arrays, prob_G = mixture([-0.5, -0.5]).arrays(np.array, [0])
    ranked_V = np.arange(2, dtype=np.uint32)
    for ranking, message in (
        (Ranking(prob_G[:1], ranked_V, np.zeros(2)), "got 2 words and 1 probabilities; pass one of each per node"),
        (Ranking(prob_G, ranked_V[:1], np.zeros(2)), "got 1 ranks and 2 sums for 2 words; pass one of each per word"),
        (Ranking(prob_G, ranked_V, np.zeros(3)), "got 2 ranks and 3 sums for 2 words"),
    ):
        with pytest.raises(ValueError, match=message):
            draw_ranked(**arrays, ranking=ranking, seed=0)
