"""The best hypotheses of sentences, against a sort of all words of all rows of each sentence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.best_hypotheses import SentenceRows, best_hypotheses
from mgpu_ngram.kernels.dispatch import to_host


def choose(to_device, logits_RV, k, costs_R, starts, sizes, **others):
    """Return (rows, words, scores, sums) on the host."""
    arrays = logits_RV[None], costs_R, np.array(starts, np.int64), np.array(sizes, np.int32)
    logits, costs, starts_S1, sizes_S = map(to_device, arrays)
    chosen, log_sums_MR = best_hypotheses(logits, k, SentenceRows(costs, starts_S1, sizes_S), **others)
    return [to_host(a) for a in (*chosen, log_sums_MR)]


def test_by_hand(to_device):
    """Probabilities 1/8, 2/8 and 5/8, then 1/2, 1/4 and 1/4, of two hypotheses; a row behind the last sentence."""
    logits = np.log(np.array([[1, 2, 5], [2, 1, 1], [1, 1, 1]], np.float32))
    costs = np.array([0, 0, 0], np.float32)
    rows, words, scores, sums = choose(to_device, logits, 3, costs, [0, 2, 2], [3, 1])
    assert rows.tolist() == [[0, 1, 0], [-1, -1, -1]] and words.tolist() == [[2, 0, 1], [-1, -1, -1]]
    np.testing.assert_allclose(scores[0], np.log([5 / 8, 1 / 2, 2 / 8]), rtol=1e-6)
    assert np.isneginf(scores[1]).all()
    np.testing.assert_allclose(sums, [[np.log(8), np.log(4), np.nan]], rtol=1e-6)


@st.composite
def sentences(draw):
    """Rows of one sum, so that equal logits are equal scores; sentences of 0 to k rows."""
    k, V = draw(st.sampled_from([1, 2, 3, 9, 13, 33, 64])), draw(st.sampled_from([2, 5, 70, 2100]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    counts = rng.integers(0, k + 1, draw(st.integers(1, 3)))
    R = counts.sum() + draw(st.integers(0, 1))
    first = rng.integers(-16, 17, V).astype(np.float32) / 8
    logits_RV = np.stack([rng.permutation(first) for _ in range(R)]) if R else np.zeros((0, V), np.float32)
    sizes = rng.integers(0, k + 1, len(counts))
    return logits_RV, k, -rng.integers(0, 3, R).astype(np.float32) / 8, [0, *np.cumsum(counts)], sizes


@given(sentences())
def test_hypotheses_are_those_of_a_sort(to_device, case):
    """Ties by lower row, then by lower word. Sums of rows may differ in the last place, so scores are rounded."""
    logits_RV, k, costs_R, starts, sizes = case
    rows, words, scores, _ = choose(to_device, logits_RV, k, costs_R, starts, sizes)
    log_sum_R = np.log(np.exp(logits_RV.astype(np.float64)).sum(axis=1))
    for s, size in enumerate(sizes):
        own = range(starts[s], starts[s + 1])
        exact = [(costs_R[r] + float(x) - log_sum_R[r], r, v) for r in own for v, x in enumerate(logits_RV[r])]
        wanted = sorted(exact, reverse=True, key=lambda c: c[0])[:size]
        n = len(wanted)
        np.testing.assert_allclose(scores[s, :n], [c[0] for c in wanted], atol=1e-5)
        found = list(zip((-np.round(scores[s, :n], 3)).tolist(), rows[s, :n], words[s, :n], strict=True))
        assert [c[0] for c in found] == sorted(c[0] for c in found) and len({c[1:] for c in found}) == n
        value_of = {(r, v): score for score, r, v in exact}
        np.testing.assert_allclose(scores[s, :n], [value_of[c[1:]] for c in found], atol=1e-5)
        assert rows[s, n:].tolist() == words[s, n:].tolist() == [-1] * (k - n) and np.isneginf(scores[s, n:]).all()


def test_equal_scores_are_in_the_order_of_rows_then_words(to_device):
    """Three equal rows; costs make the first of them worse."""
    logits = np.tile(np.array([0, 1, 1, 0], np.float32), (3, 1))
    rows, words, scores, _ = choose(to_device, logits, 4, np.array([-1, 0, 0], np.float32), [0, 3], [4])
    assert rows.tolist() == [[1, 1, 2, 2]] and words.tolist() == [[1, 2, 1, 2]] and len(set(scores[0].tolist())) == 1


def test_a_row_without_a_score_spoils_its_sentence(to_device):
    logits = np.ones((4, 5), np.float32)
    logits[1, 3] = np.nan
    rows, words, scores, sums = choose(to_device, logits, 2, np.zeros(4, np.float32), [0, 2, 4], [2, 2])
    assert rows.tolist() == [[-1, -1], [2, 2]] and words.tolist() == [[-1, -1], [0, 1]]
    assert np.isnan(scores).tolist() == [[True, True], [False, False]]
    assert np.isnan(sums).tolist() == [[False, True, False, False]]
    rows, words, scores, _ = choose(to_device, logits[2:], 2, np.array([-np.inf, 0], np.float32), [0, 2], [2])
    assert rows.tolist() == [[1, 1]] and words.tolist() == [[0, 1]]


def test_wrong_arguments_are_refused():
    logits, costs = np.zeros((4, 5), np.float32), np.zeros(4, np.float32)
    for starts, sizes, message in (
        ([0, 4], [2], "up to 4 rows each"),
        ([1, 2], [2], "starts are 1 to 2"),
        ([0, 2, 5], [2, 2], "to at most 4"),
        ([0, 1], [1, 1], "got 2 starts and 2 sizes"),
    ):
        with pytest.raises(ValueError, match=message):
            choose(lambda a: a, logits, 2, costs, starts, sizes)
