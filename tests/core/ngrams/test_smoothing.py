"""The rules of smoothings, by hand."""

import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.smoothing import Smoothing, absolute_discount, good_turing


def test_good_turing_by_hand():
    """Katz's d(c) with k = 2: (c* / c - (k + 1) n(k + 1) / n1) / (1 - (k + 1) n(k + 1) / n1)."""
    found, warnings = good_turing(2, [100, 30, 10], 2)
    common = 3 * 10 / 100
    assert found == pytest.approx([(2 * 30 / 100 - common) / (1 - common), (3 * 10 / (2 * 30) - common) / (1 - common)])
    assert not warnings


def test_good_turing_out_of_range():
    """SRILM's rules: no singletons, a lower maximum, and coefficients that are 0, negative, over 1 or not finite."""
    assert good_turing(1, [0, 5, 5], 2)[0] == []
    found, warnings = good_turing(3, [100, 30, 10, 0, 0], 4)
    assert found == good_turing(3, [100, 30, 10], 2)[0] and "only counts up to 2 are discounted" in warnings[0]
    assert good_turing(1, [7, 0], 1)[0] == [] and good_turing(1, [7, 3], 1) == ([1.0], [])
    found, warnings = good_turing(2, [10, 9, 20, 2], 3)  # 2 * 9 / 10 and 3 * 20 / 18 are over 1
    assert found[:2] == [1.0, 1.0] and len(warnings) == 3
    found, warnings = good_turing(2, [10, 0, 3], 2)
    assert found[1] == 1.0 and "count 2" in warnings[-1]
    assert good_turing(1, [10, 5, 5], 0) == ([], [])


def test_the_discount_of_absolute_discounting():
    assert absolute_discount(2, [30, 10, 0, 0]) == 30 / 50
    with pytest.raises(InputError, match="2-grams, because none occurs twice; give the discounts .* --discount"):
        absolute_discount(2, [30, 0, 0, 0])


def test_values_of_orders():
    """The last value also holds for all higher orders."""
    smoothing = Smoothing("absolute", discount=(0.5, 0.7))
    assert [smoothing.rule(n, [9, 9, 9, 9], 5, 0)[1] for n in (1, 2, 3)] == [[0.5], [0.7], [0.7]]
    assert Smoothing("good-turing", gt_max=(1, 7)).counted(1) == 4
    assert Smoothing("good-turing", gt_max=(1, 7)).counted(5) == 8
    assert not Smoothing("additive", delta=(0.0,)).rule(1, [9, 9, 9, 9], 5, 0)[0].reserves
    assert Smoothing("additive", delta=(0.0,)).rule(1, [9, 9, 9, 9], 5, 1)[0].reserves
