"""Words copied out of a text, against slices of bytes."""

import itertools
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.gather_words import gather_words
from mgpu_ngram.kernels.dispatch import to_host

TEXTS = st.lists(st.sampled_from(b"ab\x00\t\n\r \x0b\xff"), min_size=1, max_size=100).map(bytes)


def words_at(text, positions, to_device):
    offsets_V, data = gather_words(to_device(np.frombuffer(text, np.uint8)), to_device(np.array(positions, np.uint32)))
    assert offsets_V.dtype == np.int64 and data.dtype == np.uint8
    offsets, data = to_host(offsets_V).tolist(), to_host(data).tobytes()
    assert offsets[0] == 0 and offsets[-1] == len(data)
    return [data[a:b] for a, b in itertools.pairwise(offsets)]


def test_by_hand(to_device):
    text = b"of the\r\nend"
    assert words_at(text, [8, 0, 3], to_device) == [b"end", b"of", b"the"]
    assert words_at(text, [3, 3], to_device) == [b"the", b"the"]
    assert words_at(text, [2, 6, 7, 10], to_device) == [b"", b"", b"", b"d"]  # delimiters give empty words
    assert words_at(text, [], to_device) == []
    assert words_at(b"", [], to_device) == []


@given(TEXTS, st.lists(st.integers(0, 99), max_size=30))
def test_against_slices(to_device, text, places):
    positions = [p % len(text) for p in places]
    assert words_at(text, positions, to_device) == [re.split(rb"[\x00\t\n\r ]", text[p:])[0] for p in positions]
