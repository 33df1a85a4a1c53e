"""The best candidates of sentences, against Python's own sort."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.kernels.decode.best_of_beams import best_of_beams
from mgpu_ngram.kernels.decode.best_words import best_words
from mgpu_ngram.kernels.dispatch import to_host


def merge(to_device, rows, starts, sizes, K):
    """Return (rows, words, scores) as lists; `rows` are lists of (score, word), filled up to K with none."""
    full = [[*row, *[(-math.inf, -1)] * (K - len(row))] for row in rows]
    scores_RK = np.array([[s for s, _ in row] for row in full], np.float32).reshape(len(rows), K)
    words_RK = np.array([[w for _, w in row] for row in full], np.int32).reshape(len(rows), K)
    arrays = words_RK, scores_RK, np.array(starts, np.int64), np.array(sizes, np.int32)
    return [to_host(a).tolist() for a in best_of_beams(*map(to_device, arrays))]


def test_by_hand(to_device):
    """Two sentences of 2 and 1 rows, with beams of 3 and 1; equal scores by row, then by word."""
    rows = [[(-1, 7), (-2, 3), (-2, 9)], [(-1, 2), (-2, 1), (-3, 0)], [(-5, 4), (-6, 8)]]
    found = merge(to_device, rows, [0, 2, 3], [3, 1], 3)
    assert found[0] == [[0, 1, 0], [2, -1, -1]]
    assert found[1] == [[7, 2, 3], [4, -1, -1]]
    assert found[2] == [[-1, -1, -2], [-5, -math.inf, -math.inf]]


@st.composite
def beams(draw):
    """Sentences of 0 to 6 rows of up to K candidates, with few scores, so that many are equal."""
    K, S = draw(st.sampled_from([1, 2, 5, 33, 64])), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    counts = rng.integers(0, 7, S)
    rows = []
    for _ in range(counts.sum()):
        n = K if draw(st.booleans()) else rng.integers(0, K + 1)
        words = rng.permutation(200)[:n].tolist()
        rows.append(sorted(zip((-rng.integers(0, 9, n) / 4).tolist(), words, strict=True), key=lambda c: (-c[0], c[1])))
    return rows, np.concatenate([[0], np.cumsum(counts)]).tolist(), rng.integers(0, K + 1, S).tolist(), K


@given(beams())
def test_results_are_those_of_a_sort(to_device, given_beams):
    rows, starts, sizes, K = given_beams
    found = merge(to_device, rows, starts, sizes, K)
    for s, size in enumerate(sizes):
        all_of = [(score, r, word) for r in range(starts[s], starts[s + 1]) for score, word in rows[r]]
        best = sorted(all_of, key=lambda c: (-c[0], c[1], c[2]))[:size]
        behind = K - len(best)
        assert found[0][s] == [r for _, r, _ in best] + [-1] * behind
        assert found[1][s] == [word for *_, word in best] + [-1] * behind
        assert found[2][s] == [score for score, *_ in best] + [-math.inf] * behind


def test_a_score_of_nan_spoils_its_sentence(to_device):
    rows = [[(-1, 7)], [(math.nan, -1)], [(-2, 5)], [(-math.inf, 3)]]
    found = merge(to_device, rows, [0, 1, 3, 4, 4], [1, 1, 1, 1], 1)
    assert found[0] == [[0], [-1], [-1], [-1]] and found[1] == [[7], [-1], [-1], [-1]]
    assert found[2][0] == [-1] and math.isnan(found[2][1][0]) and found[2][2] == found[2][3] == [-math.inf]


def test_both_stages_give_the_best_of_all_words_of_a_sentence(to_device):
    """3 sentences of 1, 4 and 3 rows, beside a sort of all their words."""
    rng = np.random.default_rng(5)
    R, V, k, starts = 8, 3001, 6, [0, 1, 5, 8]
    logits = (rng.integers(-80, 80, (R, V)) / 8).astype(np.float32)  # many words are equal
    costs = -rng.integers(0, 3, R).astype(np.float32)
    words, scores, _ = best_words(to_device(logits[None]), k, to_device(costs))
    arrays = np.array(starts, np.int64), np.array([6, 3, 5], np.int32)
    found = [to_host(a) for a in best_of_beams(words, scores, *map(to_device, arrays))]
    exact = costs[:, None] + logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1))[:, None]
    for s, size in enumerate((6, 3, 5)):
        part = exact[starts[s] : starts[s + 1]].astype(np.float32).ravel()
        best = np.argsort(-part, kind="stable")[:size]
        assert np.allclose(part[best], found[2][s, :size], rtol=1e-5)
        flat = (found[0][s, :size] - starts[s]) * V + found[1][s, :size]
        assert np.allclose(part[flat], part[best], rtol=1e-5) and len(set(flat.tolist())) == size
        if s == 0:  # the scores of a row are rounded alike
            assert flat.tolist() == best.tolist()


def test_wrong_arguments_are_refused():
    arrays = [np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32), np.zeros(2, np.int64), np.zeros(1, np.int32)]
    for at, wrong, message in (
        (0, np.zeros((2, 65), np.int32), "1 to 64 columns"),
        (1, np.zeros((2, 2), np.float32), r"\(2, 3\) and \(2, 2\)"),
        (2, np.zeros(3, np.int64), "got 3 starts and 1 sizes"),
    ):
        with pytest.raises(ValueError, match=message):
            best_of_beams(*arrays[:at], wrong, *arrays[at + 1 :])
    with pytest.raises(TypeError, match="expected int32 but got int64"):
        best_of_beams(arrays[0].astype(np.int64), *arrays[1:])
