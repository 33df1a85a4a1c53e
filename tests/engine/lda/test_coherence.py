"""Coherence of topics: by hand, against plain Python and against gensim."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags.bags import Bags, join_bags, make_bags
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.lda.coherence import COHERENCE_MEASURES, WordPairs, c_npmi, c_uci, coherence, count_pairs, u_mass

TEXTS = [
    "a b c a", "a b d", "a c d e", "b c", "e f g", "f g g h", "e f h", "a f", "g h", "d e", "", "c h h"
]  # fmt: skip
TOPICS = ["a b c d", "f g h e", "b f d h"]
# gensim 4.4.0 with NumPy 2.4.6 and SciPy 1.17.1: CoherenceModel(topics, texts, corpus, dictionary, coherence=MEASURE,
# window_size=1000, topn=4, processes=1).get_coherence_per_topic()
GENSIM = {
    "u_mass": [-0.828302216588, -0.828302216588, -17.843058093482743],
    "c_npmi": [0.25043743164455284, 0.18508710049216634, -0.5497011249731991],
    "c_uci": [0.4620981203812969, 0.3182570841554065, -16.648551780664043],
    "c_v": [0.7836060297010456, 0.7134975196491672, 0.19843519805780396],
}
WORDS = "abcdefgh"


def bags_of(texts, words=WORDS):
    ids = [[words.index(word) for word in text.split()] for text in texts]
    starts = np.cumsum([0, *map(len, ids)])
    flat = np.array([v for text in ids for v in text], np.int64)
    return make_bags(starts, flat, np.ones(len(flat), np.uint32), len(words))


def top(*topics):
    return np.array([[WORDS.index(word) for word in topic.split()] for topic in topics])


def test_by_hand():
    """a is in 2 of 4 documents, b in 2, both in 1, c in none."""
    bags = bags_of(["a b b", "a", "b", ""], "abc")
    pairs = WordPairs.of(np.array([[0, 1], [0, 2]]), 3)
    counts = count_pairs(bags, pairs)
    assert (counts.documents, counts.words_U.tolist(), sorted(counts.pairs_E.tolist())) == (4, [2, 2, 0], [0, 1])
    assert np.allclose(u_mass(counts, pairs), [math.log((1 / 4) / (2 / 4)), math.log(1e-12 / (2 / 4))])
    assert np.allclose(c_uci(counts, pairs), [math.log((1 / 4) / (1 / 4)), 0])
    assert np.allclose(c_npmi(counts, pairs), 0, atol=1e-11)


def test_gensim_gave_these_values():
    found = coherence(bags_of(TEXTS), top(*TOPICS))
    assert found.keys() == COHERENCE_MEASURES.keys() == GENSIM.keys()
    for name, values in GENSIM.items():
        assert np.allclose(found[name], values, rtol=1e-12), name


@pytest.mark.slow
def test_gensim_gives_these_values():
    """With the gensim of this environment, or of the folder $GENSIM_PATH."""
    script = f"""
import sys
sys.path[:0] = sys.argv[1:]
from gensim.corpora import Dictionary
from gensim.models import CoherenceModel
texts = [text.split() for text in {TEXTS!r}]
dictionary = Dictionary(texts)
corpus = [dictionary.doc2bow(text) for text in texts]
topics = [topic.split() for topic in {TOPICS!r}]
given = dict(topics=topics, texts=texts, corpus=corpus, dictionary=dictionary, topn=4, processes=1)
for name in {list(COHERENCE_MEASURES)!r}:
    print(*CoherenceModel(coherence=name, window_size=1000, **given).get_coherence_per_topic())
"""
    folder = os.environ.get("GENSIM_PATH")
    if not folder:
        pytest.importorskip("gensim", reason="gensim is not installed; pip install gensim, or set GENSIM_PATH")
    done = subprocess.run([sys.executable, "-c", script, *filter(None, [folder])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    found = coherence(bags_of(TEXTS), top(*TOPICS))
    for name, values in zip(COHERENCE_MEASURES, theirs, strict=True):
        assert np.allclose(found[name], values, rtol=1e-9), name


DOCUMENTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), max_size=20)
TOP_WORDS = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.permutations(range(8)).map(lambda words: words[:n]), min_size=1, max_size=6)
)


@settings(max_examples=60)
@given(DOCUMENTS, TOP_WORDS, st.integers(1, 3))
def test_pairs_are_those_of_plain_python(texts, words_Zn, threads):
    bags, words_Zn = bags_of(texts), np.array(words_Zn)
    pairs = WordPairs.of(words_Zn, 8)
    counts = count_pairs(bags, pairs, threads)
    sets = [set(text.split()) for text in texts]
    for z, words in enumerate(words_Zn.tolist()):
        for i, v in enumerate(words):
            assert counts.words_U[pairs.tops_Zn[z, i]] == sum(WORDS[v] in s for s in sets)
            for j, w in enumerate(words):
                if i != j:
                    both = sum({WORDS[v], WORDS[w]} <= s for s in sets)
                    assert counts.pairs_E[pairs.pairs_Znn[z, i, j]] == both
    assert len(pairs.others_E) == len({frozenset(p) for t in words_Zn.tolist() for p in zip_pairs(t)})
    assert np.diff(pairs.starts_U1).max(initial=0) <= math.sqrt(2 * len(pairs.others_E))


def zip_pairs(words):
    return [(v, w) for i, v in enumerate(words) for w in words[:i]]


@settings(max_examples=30)
@given(DOCUMENTS, TOP_WORDS, st.integers(0, 20))
def test_counts_of_parts_add_up(texts, words_Zn, cut):
    bags, pairs = bags_of(texts), WordPairs.of(np.array(words_Zn), 8)
    cut = min(cut, len(texts))
    parts = [count_pairs(part, pairs) for part in (bags.slice(0, cut), bags.slice(cut, len(texts)))]
    whole, total = count_pairs(bags, pairs), parts[1] + parts[0]
    assert whole.documents == total.documents
    assert np.array_equal(whole.words_U, total.words_U) and np.array_equal(whole.pairs_E, total.pairs_E)


@settings(max_examples=30)
@given(DOCUMENTS, TOP_WORDS, st.permutations(range(8)))
def test_renamed_words_and_doubled_documents_change_nothing(texts, words_Zn, names):
    bags, words_Zn = bags_of(texts), np.array(words_Zn)
    expected = coherence(bags, words_Zn)
    renamed = make_bags(bags.starts_D1, np.array(names)[bags.words_P.astype(int)], bags.counts_P, 8)
    for other, words in (renamed, np.array(names)[words_Zn]), (join_bags([bags, bags]), words_Zn):
        for name, values in coherence(other, words).items():
            assert np.isfinite(values).all() and np.allclose(values, expected[name], atol=1e-9), name


@pytest.mark.parametrize("n", [0, 1])
def test_few_top_words_and_no_documents(n):
    empty = Bags(np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32), 8)
    for bags in empty, bags_of(TEXTS):
        for values in coherence(bags, np.arange(n * 2).reshape(2, n)).values():
            assert values.shape == (2,) and np.isfinite(values).all()
    assert all(len(values) == 0 for values in coherence(bags_of(TEXTS), np.empty((0, n), np.int64)).values())


@pytest.mark.parametrize(
    ("words_Zn", "num_words", "message"),
    [
        ([[0, 1, 0]], 8, "topic 0 has word 0 twice"),
        ([[0, 9]], 8, "ids up to 9"),
        ([[0, 1]], 7, "the documents have 8 words but the topics 7"),
    ],
)
def test_errors(words_Zn, num_words, message):
    with pytest.raises(InputError, match=message):
        count_pairs(bags_of(TEXTS), WordPairs.of(np.array(words_Zn), num_words))
