"""The tokens of a text between the passes."""

import numpy as np
import pytest

from mgpu_ngram.engine.count.count_chunk import Codes
from mgpu_ngram.engine.count.text_ids import _joined_up_to


def streams_of(*lengths, owned=0, begins=True):
    starts = np.cumsum([0, *lengths])
    return [
        Codes(np.arange(a, b, dtype=np.uint32), int(b - a) - owned, begins=begins)
        for a, b in zip(starts, starts[1:], strict=False)
    ]


@pytest.mark.parametrize(
    ("most", "expected"), [(1, [3, 4, 5, 20, 1]), (7, [7, 5, 20, 1]), (12, [12, 20, 1]), (21, [12, 21]), (99, [33])]
)
def test_neighbours_are_joined(most, expected):
    joined = _joined_up_to(streams_of(3, 4, 5, 20, 1), most)
    assert [len(codes.tokens_T) for codes in joined] == [codes.owned for codes in joined] == expected
    assert np.concatenate([codes.tokens_T for codes in joined]).tolist() == list(range(33))


def test_streams_that_read_past_their_end_stay():
    """The tokens at their ends are those of the next stream."""
    for streams in streams_of(3, 4, owned=1), streams_of(3, 4, begins=False):
        assert _joined_up_to(streams, 99) == streams
    assert _joined_up_to([], 99) == []
