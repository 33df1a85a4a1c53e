"""Probabilities and backoffs of contexts, by hand."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.estimate.smooth_contexts import NO_MASS, Rule, smooth_contexts


@pytest.fixture
def smooth(to_device):
    """Return a function: (probabilities, backoffs) of contexts, whose n-grams have these counts and lower values."""

    def run(counts, lowers, rule, marked=None):
        count_R, lower_L = np.concatenate(counts), np.log10(np.concatenate(lowers))
        first_C1 = np.cumsum([0, *map(len, counts)])
        arrays = count_R.astype(np.uint32), np.arange(len(count_R), dtype=np.uint32), lower_L.astype(np.float32)
        count_R, suffix_R, lower_L, first_C1 = map(to_device, (*arrays, first_C1))
        marked_R = None if marked is None else to_device(np.array(marked, bool))
        found = smooth_contexts(count_R, marked_R, suffix_R, lower_L, first_C1, rule)
        return tuple((10.0 ** to_host(a).astype(float)).tolist() for a in found)

    return run


def test_witten_bell(smooth):
    """Two words seen 3 times and once: 3/6, 1/6 and 2/6 for others, or interpolated; a context without n-grams."""
    probs, backoffs = smooth([[3, 1], []], [[0.2, 0.3], []], Rule(per_word=1.0, words=9))
    assert probs == pytest.approx([3 / 6, 1 / 6]) and backoffs == pytest.approx([2 / 6 / 0.5, 1])
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], Rule(per_word=1.0, lower=1.0, words=9))
    assert probs == pytest.approx([3 / 6 + 2 / 6 * 0.2, 1 / 6 + 2 / 6 * 0.3]) and backoffs == pytest.approx([2 / 6])


def test_pruned_n_grams_leave_their_mass(smooth):
    rule = Rule(shift=-0.5, lower=0.5, words=9)
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], rule, marked=[0, 1])
    first = 2.5 / 4 + 1 / 4 * 0.2
    assert probs == pytest.approx([first, 0]) and backoffs == pytest.approx([(1 - first) / 0.8])


def test_additive_and_good_turing(smooth):
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], Rule(shift=0.1, added=0.9, words=9))
    assert probs == pytest.approx([3.1 / 4.9, 1.1 / 4.9]) and backoffs == pytest.approx([0.7 / 4.9 / 0.5])
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], Rule((0.4, 1.5), words=9))
    assert probs == pytest.approx([3 / 4, 0.4 / 4]) and backoffs == pytest.approx([0.6 / 4 / 0.5])


def test_a_context_that_leaves_no_mass(smooth):
    """Its denominator grows by 1, or by more; interpolation ends first. Not if nothing is to be reserved."""
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], Rule(words=9))
    assert probs == pytest.approx([3 / 5, 1 / 5]) and backoffs == pytest.approx([1 / 5 / 0.5])
    probs, _ = smooth([[3_000_000, 1]], [[0.2, 0.3]], Rule(words=9))
    assert probs[0] == pytest.approx(3_000_000 / 3_000_011, abs=1e-7)  # 3,000,001 / Z is 1 - 3e-6 or less
    probs, _ = smooth([[3, 1]], [[0.2, 0.79999]], Rule(shift=-0.5, lower=0.5, words=9))
    assert probs == pytest.approx([2.5 / 4, 0.5 / 4])
    probs, backoffs = smooth([[3, 1]], [[0.2, 0.3]], Rule(reserves=False, words=9))
    assert probs == pytest.approx([3 / 4, 1 / 4]) and backoffs == pytest.approx([10.0 ** float(NO_MASS)])


def test_a_context_with_all_words(smooth):
    """The n-grams share the whole mass: the lower order has none for other words."""
    probs, backoffs = smooth([[3, 1]], [[0.6, 0.4]], Rule(per_word=1.0, words=2))
    assert probs == pytest.approx([3 / 4, 1 / 4]) and backoffs == [1]
