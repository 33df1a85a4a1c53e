"""Searches of weights: by hand, and beside brute force over many weights."""

from functools import partial

import numpy as np
import pytest

from mgpu_ngram.engine.rescore.text_metrics import quality
from mgpu_ngram.engine.rescore.tune_weights import Lists, best_on_line, first_maxima, grid, search


def errors(values, lists, wrong):
    """Return lists of hypotheses with a number of wrong words each, of ten."""
    stats = np.stack([wrong, np.full(len(wrong), 10)], axis=1)
    return Lists(np.array(values, np.float32), np.array(lists), stats, partial(quality, "wer"))


def random_lists(seed):
    """Lists of 1 to 8 hypotheses with small integers as features, so that many totals are equal."""
    rng = np.random.default_rng(seed)
    first_L = np.cumsum([0, *rng.integers(1, 9, 12)])
    N = int(first_L[-1])
    return errors(rng.integers(-3, 4, (N, 3)), first_L[:-1], rng.integers(0, 11, N))


def test_a_line_by_hand():
    """Lines -1 + 2x, 0 + x, 1: they cross at x = 1 alone; then 3 - x, which is best until 1.5."""
    lists = errors([[-1, 2], [0, 1], [1, 0], [3, -1]], [0], [1, 5, 5, 9])
    assert lists.quality_of([1, 0.5]) == -90
    quality, weight = best_on_line(lists, [1, 0], 1)
    assert quality == -10 and weight == pytest.approx(4 / 3 + 1)  # -1 + 2x is best from 4/3 on; one beyond it


def test_the_present_weight_stays_in_the_best_interval():
    lists = errors([[0, 1], [1, 0]], [0], [1, 5])
    assert best_on_line(lists, [1, 1.25], 1) == (-10, 1.25)


def test_the_widest_of_equal_intervals_counts():
    """Lines 0, x, 2x - 1 and 3x - 11 cross at 0, 1 and 10; the first and the third are right."""
    lists = errors([[0, 0], [0, 1], [-1, 2], [-11, 3]], [0], [1, 5, 1, 5])
    assert best_on_line(lists, [1, 0.5], 1) == (-10, 5.5)


def test_a_feature_that_changes_nothing():
    lists = errors([[1, 2], [0, 2]], [0], [3, 1])
    assert best_on_line(lists, [1, 0.5], 1) == (-30, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_a_line_search_beside_brute_force(seed):
    """No weight of a fine grid is better, and the weight found has the quality that the search tells."""
    lists = random_lists(seed)
    weights = np.random.default_rng(seed).uniform(-1, 1, 3).round(2).tolist()
    for column in range(3):
        best, weight = best_on_line(lists, weights, column)
        tried = [[w if c == column else x for c, x in enumerate(weights)] for w in np.linspace(-8, 8, 801)]
        assert best >= max(map(lists.quality_of, tried)) - 1e-9
        assert lists.quality_of([weight if c == column else x for c, x in enumerate(weights)]) == pytest.approx(best)


def test_a_search_finds_what_a_grid_finds():
    lists, told = random_lists(7), []
    start = [1.0, 0.0, 0.0]
    best, weights = grid(lists, start, {1: np.linspace(-2, 2, 41), 2: np.linspace(-2, 2, 41)}, told.append)
    assert lists.quality_of(weights) == best == max(told) > lists.quality_of(start) and len(told) == 41 * 41
    found, moved = search(lists, start, [1, 2], restarts=5, seed=1)
    assert found >= best and lists.quality_of(moved) == found and moved[0] == 1
    assert search(lists, start, [1, 2], restarts=5, seed=1) == (found, moved)


def test_restarts_find_what_one_search_misses():
    """As the first one ends where no single weight gains, but two together do."""
    lists, start = random_lists(17), [1.0, 0.0, 0.0]
    alone, found = search(lists, start, [1, 2], restarts=0, seed=1)
    assert all(best_on_line(lists, found, column)[0] == pytest.approx(alone) for column in (1, 2))
    best, weights = search(lists, start, [1, 2], restarts=8, seed=1)
    assert best > alone and lists.quality_of(weights) == best


def test_an_interval_that_totals_cannot_hit_is_passed_over():
    """Both first lists are right between 1 and 1.000001, but float32 does not tell such totals near 100 apart; the next
    best weights are beyond 5.
    """
    plain, others = [100, 0, 0], [[100, -1, 1], [100, -1.000001, 1], [100, -5, 1]]
    lists = errors([x for other in others for x in (plain, other)], [0, 2, 4], [5, 0, 0, 5, 2, 0])
    best, weights = search(lists, [1, 1, 0], [2], restarts=0, seed=1)
    assert best == pytest.approx(-100 * 5 / 30) and weights[2] > 5


def test_a_gain_that_float32_does_not_reach_changes_nothing():
    """If weight 2 is 1 to 2, two lists would be right, but totals near 1e8 are multiples of 8; weight 3 gains."""
    plain = [1e8, 0, 0, 0]
    values = [plain, [1e8, -1, 1, 0], plain, [1e8, -2, 1, 0], [0, 0, 0, 0], [0, -1, 0, 1]]
    lists = errors(values, [0, 2, 4], [5, 0, 0, 5, 1, 0])
    assert best_on_line(lists, [1, 1, 0, 0], 2) == (pytest.approx(-100 * 1 / 30), 1.5)
    assert search(lists, [1, 1, 0, 0], [2, 3], restarts=0, seed=1) == (pytest.approx(-100 * 5 / 30), [1, 1, 0, 2])


def test_a_search_never_gets_worse():
    lists = random_lists(3)
    for seed in range(3):
        start = np.random.default_rng(seed).uniform(-1, 1, 3).tolist()
        assert search(lists, start, [0, 1, 2], restarts=0, seed=0)[0] >= lists.quality_of(start)


def test_the_first_of_equal_totals_counts():
    values = np.array([1, 3, 3, -1, -1, 0, 0], np.float32)
    assert first_maxima(values, np.array([0, 3, 5, 6])).tolist() == [1, 3, 5, 6]


def test_an_interval_is_narrow_relative_to_its_ends():
    """Both lists are right for weights of 1,000,000 to 1,000,005: too narrow for totals in float32."""
    lists = errors([[1e6, 0], [0, 1], [1000005, 0], [0, 1]], [0, 2], [5, 0, 0, 5])
    assert best_on_line(lists, [1, 0], 1) == (-25, 0)
    lists = errors([[10, 0], [0, 1], [15, 0], [0, 1]], [0, 2], [5, 0, 0, 5])
    assert best_on_line(lists, [1, 0], 1) == (0, 12.5)
