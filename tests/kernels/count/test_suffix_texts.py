"""Texts without the words that they share with the text before: cases by hand, and plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.count import suffix_texts as suffix_texts_module
from mgpu_ngram.kernels.count.suffix_texts import join_texts, suffix_texts, word_texts
from mgpu_ngram.kernels.dispatch import to_host


def texts_of(rows, words, bits, starts, to_device):
    """Return (prefix lengths, suffixes) of rows of codes."""
    order = len(rows[0])
    columns = -(-order * bits // 64)
    keys = np.zeros((columns, len(rows)), np.uint64)
    for r, row in enumerate(rows):
        whole = sum(code << (64 * columns - (n + 1) * bits) for n, code in enumerate(row))
        for c in range(columns):
            keys[c, r] = whole >> 64 * (columns - 1 - c) & (1 << 64) - 1
    offsets_V = np.cumsum([0, *map(len, words)]).astype(np.int64)
    data_V = np.frombuffer(b"".join(words), np.uint8)
    arrays = [to_device(a) for a in (offsets_V, data_V.copy(), np.array(starts, np.int64))]
    found = suffix_texts(to_device(keys), order, bits, *arrays)
    ends, data = to_host(found.suffix_R).cumsum().tolist(), to_host(found.data).tobytes()
    assert ends[-1] == len(data)
    return to_host(found.prefix_R).tolist(), [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def test_a_case_by_hand(to_device):
    rows = [(1, 1, 2), (1, 1, 3), (1, 3, 3), (1, 3, 3), (1, 3, 3), (2, 1, 1)]
    prefixes, suffixes = texts_of(rows, [b"of", b"the", b"\xc3\xa9"], 2, [0, 4, 6], to_device)
    assert prefixes == [0, 6, 3, 6, 0, 0]  # a row that equals the row before keeps its last word; row 4 begins a page
    assert suffixes == [
        b"of of the",
        b"\xc3\xa9",
        b"\xc3\xa9 \xc3\xa9",
        b"\xc3\xa9",
        b"of \xc3\xa9 \xc3\xa9",
        b"the of of",
    ]


def test_hundreds_of_shared_words(to_device):
    rows = [(1,) * 299 + (last,) for last in (1, 2, 3)]
    prefixes, suffixes = texts_of(rows, [b"of", b"the", b"a"], 2, [0, 3], to_device)
    assert prefixes == [0, 897, 897]
    assert suffixes == [b" ".join([b"of"] * 300), b"the", b"a"]


@pytest.mark.parametrize("slots", [0, 2, 100])
@pytest.mark.parametrize("word_bytes", [0, 1, 12])
def test_words_with_and_without_a_slot_and_room_that_grows(slots, word_bytes, monkeypatch):
    """The CPU twin: words of all lengths about 16, and texts far longer than the room for them."""
    monkeypatch.setattr(suffix_texts_module, "MAX_SLOTS", slots)
    monkeypatch.setattr(suffix_texts_module, "WORD_BYTES", word_bytes)
    rng = np.random.default_rng(slots)
    words = [bytes(rng.integers(97, 123, n, np.uint8)) for n in (0, 1, 8, 15, 16, 17, 5000)]
    rows = sorted(tuple(int(c) for c in rng.integers(1, len(words) + 1, 3)) for _ in range(200))
    prefixes, suffixes = texts_of(rows, words, 3, [0, 150, 200], np.asarray)
    before = b""
    for r, row in enumerate(rows):
        before = before[: prefixes[r]] + suffixes[r]
        assert before == b" ".join(words[c - 1] for c in row)
    assert sum(map(bool, prefixes)) > 100


@pytest.mark.parametrize("word_bytes", [0, 12])
def test_texts_up_to_a_limit(word_bytes, monkeypatch):
    """Also where the room for them grows between two rows."""
    monkeypatch.setattr(suffix_texts_module, "WORD_BYTES", word_bytes)
    words = word_texts(np.array([0, 2, 20]), np.frombuffer(b"ab" + b"x" * 18, np.uint8))
    ids = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], np.uint32)  # texts of 5, 21, 21 and 37 bytes
    for limit, rows in (0, 1), (5, 1), (25, 1), (26, 2), (46, 2), (47, 3), (83, 3), (84, 4):
        texts = join_texts(ids, words, limit)
        assert (texts.prefix_R.tolist(), texts.suffix_R.tolist()) == ([0, 3, 0, 19][:rows], [5, 18, 21, 18][:rows])
        whole = join_texts(ids, words, limit, share=False)
        assert whole.suffix_R.tolist() == [5, 21, 21, 37][:rows] and not whole.prefix_R.any()
        spelled = [b"ab", b"x" * 18]
        assert whole.data.tobytes() == b"".join(b" ".join(spelled[v] for v in row) for row in ids.T[:rows])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), order=st.integers(1, 7), bits=st.sampled_from([3, 13, 17, 32]))
def test_prefixes_and_suffixes_give_the_texts(data, order, bits, to_device):
    words = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=7))
    code = st.integers(1, len(words))
    rows = sorted(data.draw(st.lists(st.tuples(*[code] * order), min_size=1, max_size=40)))
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) - {len(rows)}), len(rows)]
    prefixes, suffixes = texts_of(rows, words, bits, starts, to_device)
    before, last = b"", None
    for r, row in enumerate(rows):
        text = b" ".join(words[c - 1] for c in row)
        shared = 0
        while r not in starts and shared < order - 1 and row[shared] == last[shared]:
            shared += 1
        assert prefixes[r] == sum(len(words[c - 1]) + 1 for c in row[:shared])
        assert before[: prefixes[r]] + suffixes[r] == text
        before, last = text, row


@pytest.mark.parametrize("code", [0, 3])
def test_codes_without_a_word_are_refused(code, to_device):
    with pytest.raises(ValueError, match=r"codes outside 1\.\.2"):
        texts_of([(1, code)], [b"a", b"b"], 4, [0, 1], to_device)
