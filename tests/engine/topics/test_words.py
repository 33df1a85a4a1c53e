"""Top words of topics: worked by hand, against plain Python, and by what must not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.words import (
    FREX_WEIGHT,
    LAMBDA,
    largest,
    most_frequent_and_exclusive,
    most_probable,
    most_relevant,
)
from tests.support.topic_rows import rows_of_dense

COUNTS_VZ = np.array([[8, 0], [4, 4], [0, 3], [1, 1]], np.uint32)
LISTS = (most_probable, most_relevant, most_frequent_and_exclusive)


def plain_ranks(values):
    """Ranks from 1; equal values share the mean of theirs."""
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def plain_frex(counts_VZ, beta, weight):
    """(Z, V) scores, formula by formula: those of words that occur."""
    V, Z = counts_VZ.shape
    totals = counts_VZ.sum(0)
    prob = [[(counts_VZ[v, z] + beta) / (totals[z] + V * beta) for v in range(V)] for z in range(Z)]
    occurs = [v for v in range(V) if counts_VZ[v].sum()]
    share = {}
    for v in occurs:
        shares = [prob[z][v] / sum(prob[k][v] for k in range(Z)) for z in range(Z)]
        tokens = int(counts_VZ[v].sum())
        distance = sum((p - 1 / Z) ** 2 for p in shares)
        variance = sum(p * (1 - p) for p in shares) / (tokens - 1) if tokens > 1 else np.inf
        shrink = min(1.0, variance / distance) if distance > 1e-15 else 1.0
        share[v] = [shrink / Z + (1 - shrink) * p for p in shares]
    scores = np.full((Z, V), -np.inf)
    for z in range(Z):
        frequency = plain_ranks([np.float32(prob[z][v]) for v in occurs])
        exclusivity = plain_ranks([np.float32(share[v][z]) for v in occurs])
        for i, v in enumerate(occurs):
            a, b = frequency[i] / len(occurs), exclusivity[i] / len(occurs)
            scores[z, v] = 1 / (weight / a + (1 - weight) / b)
    return scores


def counts_of(least_words=1):
    """(V, Z) counts, many of them 0."""
    shape = st.tuples(st.integers(least_words, 12), st.integers(1, 5))
    count = st.one_of(st.just(0), st.integers(0, 50))
    return shape.flatmap(
        lambda s: st.lists(count, min_size=s[0] * s[1], max_size=s[0] * s[1]).map(
            lambda flat: np.array(flat, np.uint32).reshape(s)
        )
    )


def test_probability_and_relevance_by_hand():
    rows = rows_of_dense(COUNTS_VZ, 0.5)
    assert rows.totals_Z.tolist() == [13, 8]
    assert np.allclose(rows.probabilities(0), np.array([8.5, 4.5, 0.5, 1.5]) / 15)
    words, scores = most_probable(rows, 3)
    assert words.tolist() == [[0, 1, 3], [1, 2, 3]]
    assert np.allclose(scores[1], [0.45, 0.35, 0.15])
    words, scores = most_relevant(rows, 4, lambda_=0.6)
    share = np.array([8, 8, 3, 2]) / 21  # of all tokens
    prob = np.array([0.05, 0.45, 0.35, 0.15])
    relevance = 0.6 * np.log(prob) + 0.4 * np.log(prob / share)
    assert words[1].tolist() == np.argsort(-relevance).tolist() == [2, 1, 3, 0]
    assert np.allclose(scores[1], np.sort(relevance)[::-1])


def test_lambda_1_is_probability_and_lambda_0_is_lift():
    rows = rows_of_dense(COUNTS_VZ, 0.01)
    assert np.array_equal(most_relevant(rows, 4, 1.0).words_Zn, most_probable(rows, 4).words_Zn)
    assert most_relevant(rows, 1, 0.0).words_Zn.tolist() == [[0], [2]]


def test_frex_by_hand():
    """Frequencies in topic 0 rank 4, 3, 1, 2; exclusivities 4, 2.5, 1, 2.5, as words 1 and 3 shrink to one half."""
    rows = rows_of_dense(COUNTS_VZ, 0.5)
    words, scores = most_frequent_and_exclusive(rows, 4, weight=0.5)
    harmonic = {0: 1.0, 1: 2 / (4 / 3 + 4 / 2.5), 2: 0.25, 3: 2 / (4 / 2 + 4 / 2.5)}
    assert words[0].tolist() == [0, 1, 3, 2]
    assert np.allclose(scores[0], [harmonic[v] for v in (0, 1, 3, 2)])
    assert np.allclose(most_frequent_and_exclusive(rows, 4, weight=1.0).scores_Zn[0], [1, 0.75, 0.5, 0.25])


@settings(max_examples=60)
@given(counts_of(), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_frex_is_that_of_plain_python(counts_VZ, weight):
    rows = rows_of_dense(counts_VZ, 0.25)
    found = most_frequent_and_exclusive(rows, len(counts_VZ), weight)
    expected = plain_frex(counts_VZ, 0.25, weight)
    for z in range(rows.num_topics):
        assert np.allclose(found.scores_Zn[z], expected[z][found.words_Zn[z]])
        assert np.allclose(found.scores_Zn[z], -np.sort(-expected[z]))


def test_frex_of_many_words_is_that_of_plain_python():
    """Their ranks change with small changes of the exclusivity, unlike those of few words."""
    counts_VZ = np.random.default_rng(0).poisson(2, (30, 6)).astype(np.uint32)
    words_Zn, scores_Zn = most_frequent_and_exclusive(rows_of_dense(counts_VZ, 0.1), 30)
    expected_ZV = plain_frex(counts_VZ, 0.1, FREX_WEIGHT)
    assert np.allclose(scores_Zn, np.take_along_axis(expected_ZV, words_Zn, axis=1))


@settings(max_examples=40)
@given(counts_of(least_words=2), st.randoms())
def test_swapped_words_give_swapped_results(counts_VZ, random):
    v, w = random.sample(range(len(counts_VZ)), 2)
    order = np.arange(len(counts_VZ))
    order[[v, w]] = w, v
    for best in LISTS:
        words, scores = best(rows_of_dense(counts_VZ, 0.1), len(counts_VZ))
        swapped_words, swapped_scores = best(rows_of_dense(counts_VZ[order], 0.1), len(counts_VZ))
        assert np.allclose(scores, swapped_scores)
        for z in range(counts_VZ.shape[1]):
            score_of = dict(zip(words[z].tolist(), scores[z].tolist(), strict=True))
            assert np.allclose([score_of[int(order[x])] for x in swapped_words[z]], swapped_scores[z])


@settings(max_examples=40)
@given(counts_of(), st.booleans())
def test_counts_by_word_are_the_dense_ones(counts_VZ, descending):
    topics, counts, starts = [], [], [0]
    for row in counts_VZ:
        found = np.flatnonzero(row)[:: -1 if descending else 1]
        topics.extend(found)
        counts.extend(row[found])
        starts.append(len(topics))
    by_word = np.array(starts, np.int64), np.array(topics, np.uint16), np.array(counts, np.uint32)
    rows, dense = TopicRows.of_words(*by_word, counts_VZ.shape[1], 0.1), rows_of_dense(counts_VZ, 0.1)
    for name in ("starts_Z1", "words_N", "counts_N", "beta_V", "totals_Z", "word_totals_V"):
        assert np.array_equal(getattr(rows, name), getattr(dense, name)), name
    for best in LISTS:
        assert all(map(np.array_equal, best(rows, 5), best(dense, 5, threads=2)))


def test_words_without_tokens_come_last():
    counts_VZ = np.array([[0, 0], [0, 5], [2, 0]], np.uint32)
    for best in LISTS:
        words, scores = best(rows_of_dense(counts_VZ, 0.5), 3)
        assert words[:, 2].tolist() == [0, 0] and np.isneginf(scores[:, 2]).all()
        assert words[:, 0].tolist() == [2, 1]


@pytest.mark.parametrize("shape", [(0, 2), (1, 1), (3, 2)])
def test_empty_models(shape):
    rows = rows_of_dense(np.zeros(shape, np.uint32), 0.5)
    for best in LISTS:
        assert best(rows, 10).words_Zn.shape == (shape[1], shape[0])
        assert best(rows, 0).words_Zn.shape == (shape[1], 0)
    assert np.allclose(rows.shares_Z, 1 / shape[1])


def test_priors_by_word_and_pseudo_counts():
    rows = rows_of_dense(np.array([[1.5, 0], [0, 2.0]]), np.array([0.5, 1.0]))
    assert np.allclose(rows.probabilities(0), np.array([2.0, 1.0]) / 3)
    assert np.allclose(rows.probabilities(1), np.array([0.5, 3.0]) / 3.5)
    assert np.array_equal(rows.take(np.array([1, 0])).probabilities(1), rows.probabilities(0))


def test_largest_breaks_ties_by_index():
    values = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert [largest(values, n).tolist() for n in (0, 1, 3, 4, 9)] == [
        [], [1], [1, 3, 2], [1, 3, 2, 4], [1, 3, 2, 4, 5, 0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows: most_relevant(rows, 3, lambda_=1.5), "lambda is 1.5"),
        (lambda rows: most_frequent_and_exclusive(rows, 3, weight=-1), "FREX weight is -1"),
        (lambda rows: most_probable(rows, -1), "the number of words of a topic is -1 but"),
        (
            lambda rows: TopicRows.of_words(np.zeros(2, np.int64), rows.words_N[:0], rows.counts_N[:0], 2, 0),
            "beta is 0",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(InputError, match=message):
        call(rows_of_dense(COUNTS_VZ, 0.5))


def test_relevance_is_that_of_pyldavis():
    """Its formula (_prepare._find_relevance): lambda ln p + (1 - lambda) ln (p / term proportion)."""
    rng = np.random.default_rng(1)
    counts_VZ = rng.integers(0, 9, (30, 4)).astype(np.uint32) + 1
    rows = rows_of_dense(counts_VZ, 0.1)
    term_proportion = counts_VZ.sum(1) / counts_VZ.sum()
    words, scores = most_relevant(rows, 7)
    for z in range(4):
        log_prob = np.log(rows.probabilities(z))
        expected = LAMBDA * log_prob + (1 - LAMBDA) * (log_prob - np.log(term_proportion))
        assert np.allclose(scores[z], expected[words[z]])
        assert np.allclose(scores[z], -np.sort(-expected)[:7])
    assert FREX_WEIGHT == 0.5


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("best", LISTS)
def test_words_of_some_topics(best, threads):
    rows = rows_of_dense(np.random.default_rng(3).poisson(2, (30, 6)).astype(np.uint32), 0.1)
    whole, some = best(rows, 4), best(rows, 4, threads=threads, topics=[5, 2])
    assert some.words_Zn[[2, 5]].tolist() == whole.words_Zn[[2, 5]].tolist()
    assert np.isneginf(some.scores_Zn[[0, 1, 3, 4]]).all()
