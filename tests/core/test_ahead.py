"""map_ahead keeps the order, works ahead but not too far, and passes errors on."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mgpu_ngram.core.ahead import map_ahead


@pytest.mark.parametrize("ahead", [0, 1, 3, 99])
def test_results_come_in_order(ahead):
    taken = []

    def items():
        for i in range(20):
            taken.append(i)
            yield i

    with ThreadPoolExecutor(3) as pool:
        found = map_ahead(pool, lambda i: i * i, items(), ahead)
        assert next(found) == 0 and len(taken) == min(ahead + 1, 20)
        assert list(found) == [i * i for i in range(1, 20)]


def test_an_error_is_passed_on():
    with ThreadPoolExecutor(2) as pool:
        found = map_ahead(pool, lambda i: 1 // (2 - i), range(5), 1)
        assert next(found) == 0 and next(found) == 1
        with pytest.raises(ZeroDivisionError):
            next(found)
        assert list(map_ahead(pool, str, [], 2)) == []
