"""Draw words along backoffs: by hand, by the rule in plain Python, and by chi-square."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.draw_words import NO_WORD, NOT_DRAWN, Siblings, draw_words

HALF, QUARTER = float(np.log10(0.5)), float(np.log10(0.25))


def draw(model, to_device, numbers, seed=0, inverse=1.0, left_out=-1, tries=1000, code=np.uint32):
    arrays, _ = model.arrays(to_device, numbers, inverse, left_out, code)
    words_H = to_host(draw_words(**arrays, seed=seed, tries=tries))
    assert words_H.dtype == np.int32
    return words_H.tolist()


def test_the_first_draws_by_hand(to_device, mixture, first_bits):
    """Number 0 draws the level, number 1 the word: halves, by the first bit of each, the children first."""
    even = mixture([HALF, HALF, -np.inf, -np.inf], ({2: HALF, 3: HALF}, 0))
    expected = [(0 if first_bits(5, n, 0) else 2) + first_bits(5, n, 1) for n in range(64)]
    assert draw(even, to_device, range(64), seed=5) == expected
    assert set(expected) == {0, 1, 2, 3}


def test_a_word_of_a_longer_history_is_drawn_again(to_device, mixture, first_bits):
    """Words 0 and 1 of the shorter level, 1 of the longer one: the second try decides where the first gives 1."""
    model = mixture([HALF, HALF], ({1: 0}, 0))
    expected = []
    for n in range(64):
        words = [(1 if not first_bits(7, n, 2 * t) else None if first_bits(7, n, 2 * t + 1) else 0) for t in range(2)]
        expected.append(next((word for word in words if word is not None), NOT_DRAWN))
    assert draw(model, to_device, range(64), seed=7, tries=2) == expected
    assert set(expected) == {0, 1, NOT_DRAWN}


@given(
    st.integers(0),
    st.sampled_from([1, 2, 5, 60, 400]),
    st.integers(0, 4),
    st.sampled_from([1.0, 2.0, 1 / 3, 1 / 0.15]),
    st.sampled_from([1000, 1]),
    st.sampled_from([np.uint32, np.int64]),
)
def test_words_are_those_of_the_rule(to_device, random_mixture, seed, V, K, inverse, tries, code):
    rng = np.random.default_rng(seed)
    model, left_out, seed = random_mixture(rng, V, K), int(rng.integers(-1, V)), seed % 2**64
    numbers = rng.integers(0, 2**63, 4).tolist()
    found = draw(model, to_device, numbers, seed, inverse, left_out, tries, code)
    if model.allowed(inverse, left_out=left_out):
        assert found == [model.drawn(seed, n, inverse, left_out=left_out, most=tries) for n in numbers]
    else:  # all that have a weight are covered
        assert set(found) <= {NO_WORD, NOT_DRAWN}


@pytest.mark.parametrize("inverse", [1.0, 0.5, 2.0])
def test_how_often_words_come(to_device, mixture, chi_square, inverse):
    """Of 20,000 samples of 7 words; above 41 for one in 10^6 seeds. The row does not sum to 1, and word 4 is <s>."""
    model = mixture(
        np.log10([0.3, 0.2, 0.05, 0.1, 1, 0.1, 0.1, 0.2]).tolist(),
        ({1: np.log10(0.3), 2: np.log10(0.06), 4: 0, 7: np.log10(0.2)}, np.log10(0.7)),
        ({2: np.log10(0.13), 4: 0}, np.log10(0.8)),
    )
    words = draw(model, to_device, range(20_000), 11, inverse, left_out=4)
    assert chi_square(words, model.weights(inverse, 4)) < 41


def test_children_cover_nearly_all(to_device, mixture, chi_square):
    """All of the shorter history's mass but a thousandth is covered, by children of about the same weight."""
    model = mixture([HALF, HALF, -4, -4], ({0: QUARTER, 1: HALF}, 1.0))
    assert chi_square(draw(model, to_device, range(20_000), 3), model.weights()) < 35


def test_nothing_to_draw(to_device, mixture):
    assert draw(mixture([-99.0, -np.inf]), to_device, [0, 1]) == [NO_WORD] * 2
    assert draw(mixture([HALF, HALF], ({}, -np.inf)), to_device, [0]) == [NO_WORD]
    assert draw(mixture([0.0], ({0: 0.0}, 0.0)), to_device, [0], left_out=0) == [NO_WORD]
    assert draw(mixture([HALF, HALF], ({0: -99.0, 1: -99.0}, 0.0)), to_device, [0, 1]) == [NOT_DRAWN] * 2
    assert draw(mixture([HALF]), to_device, []) == []


def test_any_cut_into_calls_draws_the_same(to_device, random_mixture):
    model = random_mixture(np.random.default_rng(0), 60, 3)
    whole = draw(model, to_device, range(50), 8)
    assert whole == [word for number in range(50) for word in draw(model, to_device, [number], 8)]
    assert whole != draw(model, to_device, range(50), 9) and whole != draw(model, to_device, range(50, 100), 8)


def test_arrays_that_do_not_fit_are_refused(mixture):
    arrays, _ = mixture([HALF, HALF]).arrays(np.array, [0, 1])
    word_G, sums_G, symbols = arrays["siblings"]
    for changed, error, message in (
        ({"numbers_H": np.zeros(1, np.int64)}, ValueError, "got 2 histories and 1 numbers; pass one of each"),
        ({"siblings": Siblings(word_G, np.zeros(3), symbols)}, ValueError, "got 2 words and 3 sums; pass one of each"),
        ({"siblings": Siblings(word_G, sums_G.astype(np.float32), symbols)}, TypeError, "expected float64 but got fl"),
        ({"siblings": Siblings(np.zeros(2), sums_G, symbols)}, TypeError, "expected uint32 but got float64"),
    ):
        with pytest.raises(error, match=message):
            draw_words(**arrays | changed, seed=0)
