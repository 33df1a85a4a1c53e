"""Draw one of the most probable words: by hand, and by chi-square."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.distribution.draw_best import draw_best


def draw(to_device, ids, logs, numbers, **settings):
    """The same words for every number."""
    H = len(numbers)
    id_HK, value_HK = (to_device(np.tile(a, (H, 1))) for a in (np.array(ids, np.int32), np.array(logs, np.float32)))
    words_H = to_host(draw_best(id_HK, value_HK, to_device(np.array(numbers, np.int64)), **settings))
    assert words_H.dtype == np.int32
    return words_H.tolist()


def test_halves_by_the_first_bit(to_device, first_bits):
    expected = [(7, 3)[first_bits(5, n, 0)] for n in range(64)]
    assert draw(to_device, [7, 3], [-9, -9], range(64), seed=5) == expected and set(expected) == {3, 7}


@pytest.mark.parametrize("inverse", [1.0, 0.25, 3.0])
def test_how_often_words_come(to_device, chi_square, inverse):
    """20,000 samples of 4 words; above 35 for one in 10^6 seeds."""
    logs = np.log10([0.4, 0.3, 0.2, 0.15]).astype(np.float32)
    words = draw(to_device, [4, 9, 2, 7], logs, range(20_000), seed=1, inverse=inverse)
    assert chi_square(words, dict(zip([4, 9, 2, 7], 10.0 ** (inverse * logs.astype(float)), strict=True))) < 35


def test_words_without_a_weight(to_device):
    assert set(draw(to_device, [5, 6, 8, -1], [-1, -1, -45.2, -np.inf], range(100), seed=2, inverse=0.01)) == {5, 6}
    assert draw(to_device, [5, 6], [-99, -np.inf], [0, 1], seed=2) == [-1, -1]
    assert draw(to_device, [-1], [-np.inf], [0], seed=2) == [-1]
    assert set(draw(to_device, [5, 6], [-40, -40.1], range(50), seed=2, inverse=1e300)) == {5}
    assert draw(to_device, [5], [-1], [], seed=2) == []


def test_shapes_that_do_not_fit_are_refused():
    ids, logs, numbers = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    for wrong in (ids[:, :2], logs, numbers), (ids, logs, numbers[:1]), (ids[:, :0], logs[:, :0], numbers):
        with pytest.raises(
            ValueError, match=r"got words of shape \(2, [0-3]\), values of \(2, [03]\) and [12] numbers"
        ):
            draw_best(*wrong, seed=0)
    with pytest.raises(TypeError, match="expected float32 but got float64"):
        draw_best(ids, logs.astype(float), numbers, seed=0)
