# ruff: noqa: RUF001 - Greek on purpose
"""Text to bags of words: by hand, against plain Python, and CountVectorizer."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags.text_options import TextOptions
from mgpu_ngram.core.bags.word_list import make_words
from mgpu_ngram.core.counts.vocabulary import HashCollision
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.bags import text_bags
from mgpu_ngram.engine.bags.bags_of import bags_of
from mgpu_ngram.engine.bags.local_bags import WordIndex, choose_words, join_local, merge_terms
from mgpu_ngram.engine.bags.text_bags import NO_BAGS, count_tokens

DOCUMENTS = ["The cat, the CAT!", "", "A dog_1 saw the cat\nand Élan", "ΑΣ ΑΣΑ İx x² 漢字"]


def rows(bags, words):
    """A dict from word to count for each document."""
    names = list(words)
    pairs = [(names[w], c) for w, c in zip(bags.words_P.tolist(), bags.counts_P.tolist(), strict=True)]
    starts = bags.starts_D1.tolist()
    return [dict(pairs[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]


def counted(documents, device="cpu", vocabulary=None, **options):
    corpus = bags_of(documents, vocabulary, TextOptions(**options), device)
    return rows(corpus.read().check(), corpus.words), list(corpus.words)


def test_by_hand(device):
    found, words = counted(DOCUMENTS, device)
    assert found[:3] == [{"cat": 2, "the": 2}, {}, {"and": 1, "cat": 1, "dog_1": 1, "saw": 1, "the": 1, "élan": 1}]
    assert found[3] == {"ας": 1, "ασα": 1, "x²": 1, "漢字": 1}  # i with a dot becomes two characters
    assert words == sorted(words) and words[:3] == ["and", "cat", "dog_1"]


def test_options_by_hand(device):
    assert counted(DOCUMENTS[:1], device, lowercase=False)[0] == [{"The": 1, "cat": 1, "the": 1, "CAT": 1}]
    assert counted(DOCUMENTS, device, min_df=2)[1] == ["cat", "the"]
    assert counted(DOCUMENTS, device, max_df=0.25, max_features=2)[1] == ["and", "dog_1"]
    assert counted(DOCUMENTS[:1], device, stop_words="english")[0] == [{"cat": 2}]
    assert counted(DOCUMENTS[:1], device, token_pattern=r"(?i)(c)at")[0] == [{"c": 2}]
    found, words = counted(DOCUMENTS[:2], device, vocabulary=["dog", "the", "cat"], stop_words=["cat"])
    assert (found, words) == ([{"the": 2}, {}], ["dog", "the", "cat"])


def test_a_word_a_million_times(device):
    assert counted(["ab " * 1_000_000, "x"], device)[0] == [{"ab": 1_000_000}, {}]


def test_the_same_hash_twice_is_found(monkeypatch):
    seeds = []

    def collide(text_B, positions_T, tokens_T, offsets_V, data):
        seeds.append(0)
        return len(seeds) < 3

    monkeypatch.setattr(text_bags, "count_mismatches", collide)
    assert counted(["aa bb"])[0] == [{"aa": 1, "bb": 1}] and len(seeds) == 3
    assert issubclass(HashCollision, Exception)


texts = st.lists(
    st.text(alphabet=st.sampled_from("abA Bcé1_.\n\tΣσİжЖ漢\u0301\u212a"), max_size=25), min_size=1, max_size=12
)


@settings(max_examples=60)
@given(texts, st.booleans())
def test_counts_are_those_of_plain_python(device, documents, lowercase):
    expected = [Counter(re.findall(r"\b\w\w+\b", text.lower() if lowercase else text)) for text in documents]
    if not any(expected):
        with pytest.raises(InputError, match="has no word in its"):
            counted(documents, device, lowercase=lowercase)
        return
    found, words = counted(documents, device, lowercase=lowercase)
    assert found == expected and words == sorted(set().union(*expected))


def same_as_count_vectorizer(documents, device, **options):
    vectorizer = pytest.importorskip("sklearn.feature_extraction.text").CountVectorizer
    theirs = vectorizer(**options)
    try:
        X = theirs.fit_transform(documents)
    except ValueError:
        with pytest.raises(InputError):
            counted(documents, device, **options)
        return
    vocabulary = options.pop("vocabulary", None)
    corpus = bags_of(documents, vocabulary, TextOptions(**options), device)
    assert list(corpus.words) == theirs.get_feature_names_out().tolist()
    bags = corpus.read()
    X.sort_indices()
    for ours, array in (bags.starts_D1, X.indptr), (bags.words_P, X.indices), (bags.counts_P, X.data):
        assert ours.tolist() == array.tolist()


@settings(max_examples=40)
@given(
    texts,
    st.booleans(),
    st.sampled_from([None, "english", ["ab", "a1"]]),
    st.sampled_from([1, 2, 0.0, 0.3]),
    st.sampled_from([1.0, 0.5, 2]),
    st.sampled_from([r"(?u)\b\w\w+\b", r"\S+", r"(?m)^\w", r"\b(\w)\w*"]),
    st.sampled_from([None, ["ab", "zz", "b"], {"ab": 1, "é1": 0}]),
)
@pytest.mark.filterwarnings("ignore:Your stop_words")
def test_count_vectorizer(device, documents, lowercase, stop_words, min_df, max_df, token_pattern, vocabulary):
    options = {"lowercase": lowercase, "stop_words": stop_words, "token_pattern": token_pattern}
    options |= {"min_df": min_df, "max_df": max_df, "vocabulary": vocabulary}
    same_as_count_vectorizer(documents, device, **{k: v for k, v in options.items() if v is not None})


@pytest.mark.parametrize(
    "options",
    [{}, {"stop_words": "english", "min_df": 3, "max_df": 0.2}, {"max_features": 9}, {"lowercase": False}],
)
def test_count_vectorizer_on_real_text(shared_data, device, options):
    import lzma

    with lzma.open(shared_data / "golden/inputs/small.txt.xz", "rt", encoding="utf-8") as file:
        same_as_count_vectorizer(file.read().split("\n")[:1500], device, **options)


def test_merging_in_any_order():
    rng = np.random.default_rng(0)
    parts = [count_tokens(rng.choice(["b", "a", "é", "zz", ""], (n, 3)).tolist()) for n in (3, 0, 1, 5)]
    joined = join_local(parts).terms()
    for order in (parts, parts[::-1]):
        terms = merge_terms([merge_terms([p.terms() for p in order[:2]]), *(p.terms() for p in order[2:])])
        assert terms.words == joined.words and terms.documents == 9
        assert terms.documents_V.tolist() == joined.documents_V.tolist()
        assert terms.counts_V.tolist() == joined.counts_V.tolist() and terms.counts_V.sum() == 27
    assert list(joined.words) == sorted(joined.words)


def test_an_index_finds_all_words_and_no_others():
    index = WordIndex(make_words(["b", "", "a", "<unk>"]), ignored={"a", "q"})
    assert index.ids(make_words(["a", "b", "c", "", "<unk>"])).tolist() == [-1, 0, -1, 1, 3]
    with pytest.raises(InputError, match="words 1 and 3 of v are both 'b'; give each word once"):
        WordIndex(make_words(["a", "b", "", "b"]), name="v")


def test_refusals():
    with pytest.raises(InputError, match="x is empty; give at least one document"):
        choose_words(NO_BAGS.terms(), TextOptions(), "x")
    with pytest.raises(InputError, match="has none of the 1 words left in its 1 documents; lower min_df"):
        counted(["the"], stop_words="english")
    with pytest.raises(InputError, match="max_df 0.5 is 1 of the 2 documents of X, fewer than min_df 2; raise"):
        counted(["aa", "bb"], min_df=2, max_df=0.5)
