"""Running a function for several items side by side."""

import threading

import pytest

from mgpu_ngram.engine.memory.threads import side_by_side
from tests.support.slowness import scaled


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_in_order(threads):
    first_may_end = threading.Event()

    def square(i):
        if threads > 1:  # the first item ends last
            assert first_may_end.wait(scaled(10)) if i == 0 else not first_may_end.set()
        return i * i

    assert list(side_by_side(square, iter(range(4)), threads)) == [0, 1, 4, 9]
    assert list(side_by_side(square, [], threads)) == []


def test_one_thread_takes_an_item_when_asked():
    taken, here = [], []
    found = side_by_side(lambda i: here.append(threading.get_ident()) or i, (taken.append(i) or i for i in range(3)), 1)
    assert taken == [] and next(found) == 0 and taken == [0]
    assert list(found) == [1, 2] and set(here) == {threading.get_ident()}


def test_an_error_reaches_the_caller():
    for threads in 1, 2:
        with pytest.raises(ZeroDivisionError):
            list(side_by_side(lambda i: 1 // i, range(3), threads))
