"""Paired differences of sentences: by hand, and beside SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.engine.score.compare_models import extremes, paired, sign_test


@pytest.mark.parametrize(("better", "worse", "p"), [(0, 0, 1), (1, 0, 1), (3, 0, 0.25), (8, 1, 20 / 512)])
def test_sign_test_by_hand(better, worse, p):
    assert sign_test(better, worse) == p == sign_test(worse, better)


@given(st.integers(0, 400), st.integers(0, 400))
def test_sign_test_is_exact(better, worse):
    stats = pytest.importorskip("scipy.stats")
    if better + worse:
        assert sign_test(better, worse) == pytest.approx(stats.binomtest(better, better + worse).pvalue, rel=1e-9)


@pytest.mark.parametrize(("better", "worse"), [(501, 500), (560, 480), (600, 402), (30_300, 30_000)])
def test_sign_test_of_many(better, worse):
    stats = pytest.importorskip("scipy.stats")
    exact = stats.binomtest(better, better + worse).pvalue
    assert sign_test(better, worse) == pytest.approx(exact, rel=0.01, abs=1e-9)


def test_paired_by_hand():
    """Gains 1 and 3 of two sentences of 2 words: 1 +- 1.96 * sqrt((1 + 1) * 2) / 4."""
    found = paired(np.array([1.0, 3.0]), np.array([2, 2]))
    assert (found.better, found.worse, found.equal, found.gain) == (2, 0, 0, 1.0)
    assert (found.low, found.high) == pytest.approx((1 - 1.959964 / 2, 1 + 1.959964 / 2), abs=1e-6)
    even = paired(np.array([1.0, 3.0]), np.array([1, 3]))  # the same gain per word in both
    assert (even.gain, even.low, even.high) == (1.0, 1.0, 1.0)
    few = paired(np.array([1.0]), np.array([2]))
    assert (few.gain, few.low, few.high) == (0.5, None, None)
    assert paired(np.zeros(0), np.zeros(0, int)).gain == 0.0


def test_extremes():
    difference_S = np.array([0.0, 2.0, -1.0, 2.0, -3.0, 0.5])
    assert extremes(difference_S, 2) == [1, 3, 4, 2]
    assert extremes(difference_S, 9) == [1, 3, 5, 4, 2]
    assert extremes(difference_S, 0) == extremes(np.zeros(3), 2) == []
