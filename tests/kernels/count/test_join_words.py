"""Join rows of equal words, against a dict."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.count.join_words import join_words
from mgpu_ngram.kernels.dispatch import to_host

# (word, count, source, offset)
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"b", b"ab", b"ba", b"a" * 30]),
        st.integers(0, 2**40),
        st.integers(-1, 2),
        st.integers(-1, 2**40),
    ),
    max_size=40,
)


def joined(rows, hashes, to_device):
    """Return (hash -> (first row, count), mismatches). rows_R sorts rows by hash."""
    words, counts, sources, offsets = zip(*rows, strict=True) if rows else ((),) * 4
    rows_R = np.array(sorted(range(len(rows)), key=lambda r: (hashes[r], -r)), np.int64)
    hash_R = np.array([hashes[r] for r in rows_R], np.uint64)
    arrays = (
        hash_R, rows_R, np.array([0, *itertools.accumulate(map(len, words))], np.int64),
        np.frombuffer(b"".join(words), np.uint8), np.array(counts, np.int64), np.array(sources, np.int32),
        np.array(offsets, np.int64),
    )  # fmt: skip
    rows_U, counts_U, mismatches = join_words(*map(to_device, arrays))
    assert rows_U.dtype == counts_U.dtype == np.int64
    found = zip(to_host(rows_U).tolist(), to_host(counts_U).tolist(), strict=True)
    return dict(zip(sorted(set(hashes)), found, strict=True)), mismatches


def test_by_hand(to_device):
    rows = [(b"of", 2, 1, 30), (b"the", 5, 0, 7), (b"of", 3, 1, 20), (b"of", 4, 2, 0), (b"", 1, 0, 0)]
    assert joined(rows, [9, 5, 9, 9, 2**64 - 1], to_device) == ({5: (1, 5), 9: (2, 9), 2**64 - 1: (4, 1)}, 0)
    assert joined([], [], to_device) == ({}, 0)


def test_words_that_differ_are_counted(to_device):
    # rows_R is descending here, so the other rows of a hash are compared with its last row
    words = [b"of", b"off", b"o", b"oe", b"of", b"of"]
    assert joined([(w, 1, 0, 0) for w in words], [3] * 6, to_device) == ({3: (5, 6)}, 3)
    assert joined([(w, 1, 0, 0) for w in words], range(6), to_device)[1] == 0
    assert joined([(b"", 1, 0, 0), (b"a", 1, 0, 0)], [1, 1], to_device)[1] == 1


@given(ROWS, st.booleans())
def test_against_a_dict(to_device, rows, collide):
    names = sorted({word for word, *_ in rows})
    hashes = [names.index(word) // (1 + collide) for word, *_ in rows]
    found, mismatches = joined(rows, hashes, to_device)
    expected = 0
    for h, (first, count) in found.items():
        mine = [r for r in range(len(rows)) if hashes[r] == h]
        assert count == sum(rows[r][1] for r in mine)
        assert first in mine and rows[first][2:] == min(rows[r][2:] for r in mine)
        expected += sum(rows[r][0] != rows[mine[-1]][0] for r in mine)
    assert mismatches == expected
