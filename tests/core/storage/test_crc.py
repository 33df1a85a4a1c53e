"""The CRC of a file equals the combined CRCs of its parts."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.storage.crc import combine_crc32


@given(st.binary(max_size=500), st.lists(st.integers(0, 500), max_size=8), st.randoms())
def test_crcs_combine(text, cuts, random):
    cuts = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    parts = [(0, a, b - a, zlib.crc32(text[a:b])) for a, b in zip(cuts, cuts[1:], strict=False)]
    random.shuffle(parts)
    assert combine_crc32(parts) == zlib.crc32(text)


def test_a_missing_part_is_found():
    with pytest.raises(ValueError, match="start at byte 3 but starts at 5"):
        combine_crc32([(0, 0, 3, 1), (0, 5, 2, 1)])
