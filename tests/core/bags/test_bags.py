"""Bags of words: by hand, against a plain sum of pairs, and everything that is refused."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.bags.bags import MAX_COUNT, Bags, check_vocabulary, empty_corpus, join_bags, make_bags
from mgpu_ngram.core.errors import InputError


def bags_of(documents, num_words):
    """The bags of lists of (word, count) pairs."""
    starts = np.cumsum([0, *map(len, documents)])
    pairs = [pair for document in documents for pair in document]
    words, counts = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return make_bags(starts, words, counts, num_words)


def plain(bags):
    """Lists of (word, count) pairs of each document."""
    starts = bags.starts_D1.tolist()
    pairs = list(zip(bags.words_P.tolist(), bags.counts_P.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]


documents = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70_000)), max_size=8), max_size=12)


def test_by_hand():
    bags = bags_of([[(2, 1), (0, 3)], [], [(1, 70_000), (1, 2), (3, 0)]], 4)
    assert plain(bags) == [[(0, 3), (2, 1)], [], [(1, 70_002)]]
    assert (bags.documents, bags.pairs, bags.tokens, bags.num_words) == (3, 3, 70_006, 4)
    assert bags.lengths_D().tolist() == [4, 0, 70_002]
    assert [a.dtype.name for a in (bags.starts_D1, bags.words_P, bags.counts_P)] == ["int64", "uint32", "uint32"]
    assert bags.check() is bags
    assert plain(bags.slice(1, 3)) == [[], [(1, 70_002)]]
    assert repr(bags) == "Bags(3 documents, 3 pairs, 4 words)"


@given(documents)
def test_duplicates_are_summed(documents):
    sums = [Counter() for _ in documents]
    for counter, document in zip(sums, documents, strict=True):
        for word, count in document:
            counter[word] += count
    expected = [sorted((w, c) for w, c in counter.items() if c) for counter in sums]
    bags = bags_of(documents, 10).check()
    assert plain(bags) == expected
    assert bags.tokens == sum(c for document in expected for _, c in document)


@given(documents, st.integers(1, 200_000))
def test_blocks_join_again(documents, tokens):
    bags = bags_of(documents, 10)
    blocks = list(bags.blocks(tokens))
    assert all(block.documents == 1 or block.tokens <= tokens for block in blocks)
    assert all(a.tokens + int(b.lengths_D()[0]) > tokens for a, b in zip(blocks[:-1], blocks[1:], strict=True))
    if documents:
        assert join_bags(blocks) == bags


@pytest.mark.parametrize("documents", [0, 1, 3])
def test_no_words(documents):
    bags = make_bags(np.zeros(documents + 1, np.int32), np.empty(0, np.int32), np.empty(0), 5).check()
    assert (bags.documents, bags.tokens, len(list(bags.blocks(1)))) == (documents, 0, min(documents, 1))
    assert ("no word in them; give" if documents else "is empty; give") in str(empty_corpus("x", documents))


def test_sound_arrays_are_not_copied():
    starts, words, counts = np.array([0, 2]), np.array([1, 4], np.uint32), np.array([1, MAX_COUNT], np.uint32)
    bags = make_bags(starts, words, counts, 5)
    assert bags.starts_D1 is starts and np.shares_memory(bags.words_P, words)
    assert bags.tokens == MAX_COUNT + 1 and np.shares_memory(bags.counts_P, counts)


def test_a_read_only_map_is_taken():
    words = np.array([4, 1], np.uint32)
    words.flags.writeable = False
    assert plain(make_bags(np.array([0, 2]), words, words, 5)) == [[(1, 1), (4, 4)]]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (2.5, "2.5"),
        (-1, "-1"),
        (-1.0, "-1.0"),
        (np.nan, "NaN"),
        (np.inf, "inf"),
        (MAX_COUNT + 1, "4294967296"),
        (np.float32(2**32), "4294967296.0"),
    ],
)
def test_wrong_counts(count, said):
    with pytest.raises(
        InputError,
        match=f"document 1 of x has the count {said}, but counts are whole numbers.*; (give|replace)",
    ):
        make_bags([0, 1, 2], [0, 1], np.array([1, count]), 5, "x")


@pytest.mark.parametrize("word", [-1, 5])
def test_words_outside_the_vocabulary(word):
    with pytest.raises(
        InputError, match=f"^document 2 of x has the word id {word}, .* 5 words go from 0 to 4; correct"
    ):
        make_bags([0, 1, 1, 2], [0, word], [1, 1], 5, "x")


@pytest.mark.parametrize("starts", [[0, 1], [1, 2], [0, 3], [0, 2, 1, 2], []])
def test_wrong_starts(starts):
    with pytest.raises(InputError, match="row starts of x are" if not starts else "row starts of x go from .* make it"):
        make_bags(np.array(starts, np.int64), [0, 1], [1, 1], 5, "x")


def test_other_refusals():
    with pytest.raises(InputError, match=r"word ids of shape \(2,\) and counts of \(1,\)"):
        make_bags([0, 2], [0, 1], [1], 5)
    with pytest.raises(InputError, match="word ids of the matrix are of dtype float64 but must be integers"):
        make_bags([0, 1], [0.5], [1], 5)
    with pytest.raises(InputError, match="row starts of the matrix are float64 of shape .2,.; give 1 . D integers"):
        make_bags([0.0, 1.0], [0], [1], 5)
    with pytest.raises(InputError, match="document 7 of m has the word id 9"):
        make_bags([0, 1], [9], [1], 5, "m", 7)
    with pytest.raises(InputError, match="counts of the matrix are of dtype <U1 but must be whole numbers"):
        make_bags([0, 1], [0], ["1"], 5)
    with pytest.raises(InputError, match=r"document 0 of the matrix has a word over 4,294,967,295 times"):
        make_bags([0, 2], [0, 0], [MAX_COUNT, 1], 5)
    with pytest.raises(InputError, match="w has 2 words but m has 3 columns; give"):
        check_vocabulary(["a", "b"], 3, "w", "m")
    with pytest.raises(InputError, match="blocks with vocabularies of 2 and 3 words"):
        join_bags([bags_of([], 3), bags_of([], 2)])
    with pytest.raises(InputError, match="no bags"):
        join_bags([])
    with pytest.raises(IndexError, match="documents 0 to 2 are outside the 1 documents"):
        bags_of([[]], 1).slice(0, 2)


def test_check_refuses_what_the_class_forbids():
    starts, words, counts = np.array([0, 2]), np.array([1, 1], np.uint32), np.array([1, 1], np.uint32)
    with pytest.raises(InputError, match="document 0 of b has word 1 after 1, but the words of a document ascend"):
        Bags(starts, words, counts, 2).check("b")
    with pytest.raises(InputError, match="document 0 of b has word 1 0 times; leave"):
        Bags(starts, words, counts * np.uint32(0), 2).check("b")
    with pytest.raises(InputError, match="word id 1, but the ids of 1 words go from 0 to 0"):
        Bags(np.array([0, 1]), words[:1], counts[:1], 1).check("b")
