"""The words of a model and their ids."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.ngrams.words import Words

BY_HAND = ["<unk>", "<s>", "</s>", "of", "the", "Straße", "a-word-of-more-than-sixteen-bytes"]


def as_arrays(texts):
    """Return (offsets, data) of a list of bytes."""
    return np.cumsum([0, *map(len, texts)], dtype=np.int64), np.frombuffer(b"".join(texts), np.uint8)


def test_words_by_hand():
    words = Words.of(BY_HAND)
    assert len(words) == 7 and list(words) == BY_HAND
    assert words.id("the") == words.id(b"the") == 4
    assert words.id("Straße") == words.id("Straße".encode()) == 5
    assert [words.find(word.encode()) for word in (*BY_HAND, "th", "")] == [*range(7), 0, 0]
    assert words.word(6) == BY_HAND[6] and words.symbol(5) == "Straße".encode()
    assert words.offsets_V.tolist() == [0, 5, 8, 12, 14, 17, 24, 57]
    assert repr(words) == "Words(7 words)"


@pytest.mark.parametrize(
    "word", ["\ud800", "<unk>", "<UNK>", "", "th", "thee", "The", "the ", "the\0", BY_HAND[6] + "s"]
)
def test_unknown_words_have_id_0(word):
    assert Words.of(BY_HAND).id(word) == 0


def test_membership():
    words = Words.of(BY_HAND)
    assert "the" in words and b"the" in words and "<unk>" in words
    assert "thee" not in words and "<UNK>" not in words and "\ud800" not in words and 4 not in words


def test_words_that_are_not_utf8_survive():
    words = Words.of(["<unk>", b"caf\xe9", b"\xff\xfe", b"a\0b"])
    assert list(words) == ["<unk>", "caf\udce9", "\udcff\udcfe", "a\0b"]
    assert [words.id(word) for word in words] == [0, 1, 2, 3]
    assert words.id(b"caf\xe9") == 1 and words.id("café") == 0


@pytest.mark.parametrize("v", [-1, 7])
def test_ids_past_the_last_are_refused(v):
    with pytest.raises(IndexError, match=f"word id {v} is not one of the 7 ids from 0 on"):
        Words.of(BY_HAND).word(v)


def test_a_duplicate_word_is_refused():
    with pytest.raises(ValueError, match="word 3 is 'a', as an earlier one is; give each word once"):
        Words.of(["<unk>", "a", "b", "a"]).id("a")


def test_words_are_equal_if_their_bytes_are():
    assert Words.of(["<unk>", "ab"]) == Words.of([b"<unk>", b"ab"])
    assert Words.of(["<unk>", "ab"]) != Words.of(["<unk>", "a", "b"])
    assert Words.of(["<unk>", "a", "bc"]) != Words.of(["<unk>", "ab", "c"])


@given(st.lists(st.binary(max_size=20), unique=True), st.lists(st.binary(max_size=20)), st.integers(0, 9))
def test_lookups_agree_with_a_dict(listed, others, odd):
    """At any offset in the text, also for words at its end."""
    listed = [word for word in listed if word != b"<unk>"]
    words = Words.of([b"<unk>", *listed])
    ids = {word: v for v, word in enumerate(listed, 1)}
    asked = [b"x" * odd, *others, *listed, *(word[:-1] for word in listed), *(word + b"\0" for word in listed)]
    found = words.ids(*as_arrays(asked))
    assert found.dtype == np.uint32
    assert found.tolist() == [ids.get(word, 0) for word in asked] == [words.id(word) for word in asked]


def test_many_words_in_many_threads():
    rng = np.random.default_rng(3)
    listed = [b"<unk>", *(b"%x" % n for n in rng.permutation(50_000))]
    words = Words.of(listed)
    asked = rng.integers(0, 60_000, 40_000)
    texts = [b"%x" % n for n in asked]
    ids = {word: v for v, word in enumerate(listed)}
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda i: words.ids(*as_arrays(texts[i : i + 10_000])), range(0, 40_000, 10_000)))
    assert np.concatenate(parts).tolist() == [ids.get(text, 0) for text in texts]


def test_no_words():
    assert words_of_nothing().tolist() == []


def words_of_nothing():
    return Words.of(["<unk>"]).ids(np.zeros(1, np.int64), np.empty(0, np.uint8))


def test_ids_of_ngrams_by_hand():
    words = Words.of(BY_HAND)
    texts = [
        b"the of",
        b"of of",
        b"thee the",
        "a-word-of-more-than-sixteen-bytes Straße".encode(),
        b"the",
        b"of the of",
    ]
    offsets, data = as_arrays([b"the the", *texts, b"of"])
    ids = words.ids_of_ngrams(offsets[1:-1], data, 2)
    assert ids.dtype == np.uint32
    # n-grams of one word too few or too many: a missing or overlong last word is unknown
    assert ids.tolist() == [[4, 3], [3, 3], [0, 4], [6, 5], [4, 0], [3, 0]]
    assert words.ids_of_ngrams(offsets[:1], data, 3).shape == (0, 3)
    assert words.ids_of_ngrams(*as_arrays([b"the of the"]), 3).tolist() == [[4, 3, 4]]
    assert words.ids_of_ngrams(*as_arrays([b"the", b"of"]), 1).tolist() == [[4], [3]]


def test_words_that_are_kept():
    words = Words.of(BY_HAND)
    assert list(words.kept(np.array([1, 0, 1, 0, 0, 1, 1], bool))) == ["<unk>", "</s>", "Straße", BY_HAND[6]]
    assert words.kept(np.ones(7, bool)) is words
