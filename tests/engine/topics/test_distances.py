"""Distances, neighbours and the map of topics."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.topics import distances as module
from mgpu_ngram.engine.topics.distances import nearest_of, nearest_topics, topic_distances, topic_map
from tests.support.topic_rows import rows_of_dense


def plain_distance(p, q):
    """By the definition, over all words."""
    divergence = 0.0
    for a, b in zip(p, q, strict=True):
        mean = (a + b) / 2
        divergence += (a * math.log2(a / mean) + b * math.log2(b / mean)) / 2
    return math.sqrt(max(0.0, divergence))


def test_by_hand():
    """Topics (3/4, 1/4) and (1/4, 3/4): the divergence is 1 - H(1/4) bits."""
    rows = rows_of_dense(np.array([[2, 0], [0, 2]], np.uint32), 1.0)
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert topic_distances(rows)[0, 1] == pytest.approx(math.sqrt(1 - entropy))


COUNTS = st.tuples(st.integers(1, 10), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        st.one_of(st.just(0), st.integers(0, 99)), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
    ).map(lambda flat: np.array(flat, np.uint32).reshape(shape))
)


@settings(max_examples=60)
@given(COUNTS, st.integers(1, 3))
def test_distances_are_those_of_the_definition(counts_VZ, threads):
    beta_V = 0.05 + 0.1 * np.arange(len(counts_VZ))
    rows = rows_of_dense(counts_VZ, beta_V)
    found_ZZ = topic_distances(rows, threads)
    assert np.array_equal(found_ZZ, found_ZZ.T) and not np.diag(found_ZZ).any()
    for a in range(rows.num_topics):
        for b in range(a):
            expected = plain_distance(rows.probabilities(a), rows.probabilities(b))
            assert found_ZZ[a, b] ** 2 == pytest.approx(expected**2, abs=1e-12)
    order = np.random.default_rng(0).permutation(len(counts_VZ))
    renamed = rows_of_dense(counts_VZ[order], beta_V[order])
    assert np.allclose(topic_distances(renamed) ** 2, found_ZZ**2, atol=1e-12)


def test_nearest_topics_by_hand():
    distances_ZZ = np.array([[0, 0.5, 0.2, 0.5], [0.5, 0, 0, 0.1], [0.2, 0, 0, 0.3], [0.5, 0.1, 0.3, 0]])
    found = nearest_topics(distances_ZZ, 2)
    assert found.topics_Zn.tolist() == [[2, 1], [2, 3], [1, 0], [1, 2]]
    assert found.distances_Zn.tolist() == [[0.2, 0.5], [0, 0.1], [0, 0.2], [0.1, 0.3]]
    assert nearest_topics(distances_ZZ, 9).topics_Zn.shape == (4, 3)
    assert nearest_topics(np.zeros((1, 1)), 2).topics_Zn.shape == (1, 0)


def test_the_topics_nearest_to_some():
    """Beside the plain distances of all pairs."""
    rows = rows_of_dense(np.random.default_rng(1).integers(0, 9, (20, 7)).astype(np.uint32), 0.2)
    p = [rows.probabilities(z) for z in range(7)]
    plain_ZZ = np.array([[plain_distance(a, b) for b in p] for a in p])
    expected = [[b for b in np.argsort(plain_ZZ[a]) if b != a][:3] for a in range(7)]
    every = nearest_of(rows, 3, threads=2)
    assert {a: [b for b, _ in others] for a, others in every.items()} == dict(enumerate(expected))
    assert nearest_of(rows, 3, [5, 2], threads=2) == {5: every[5], 2: every[2]}
    np.testing.assert_allclose([distance for _, distance in every[5]], plain_ZZ[5, expected[5]], atol=1e-6)
    assert len(nearest_of(rows, 9, [0])[0]) == 6


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_flat_map_keeps_its_distances(Z, seed):
    points_Z2 = np.random.default_rng(seed).normal(size=(Z, 2))
    distances_ZZ = np.linalg.norm(points_Z2[:, None] - points_Z2, axis=2)
    found_Z2 = topic_map(distances_ZZ)
    assert np.allclose(np.linalg.norm(found_Z2[:, None] - found_Z2, axis=2), distances_ZZ, atol=1e-6)
    assert np.allclose(found_Z2.mean(0), 0)
    assert (found_Z2.max(0) + 1e-7 >= -found_Z2.min(0)).all()


def test_maps_of_one_and_of_equal_topics():
    assert topic_map(np.zeros((0, 0))).shape == (0, 2)
    assert topic_map(np.zeros((1, 1))).tolist() == [[0, 0]]
    assert np.allclose(topic_map(np.zeros((3, 3))), 0)
    assert np.allclose(np.abs(topic_map(np.array([[0, 1.0], [1.0, 0]]))), [[0.5, 0], [0.5, 0]], atol=1e-7)


def test_errors(monkeypatch):
    rows = rows_of_dense(np.ones((2, 3), np.uint32), 1.0)
    monkeypatch.setattr(module, "MAX_COMPARED_TOPICS", 2)
    with pytest.raises(InputError, match="3 topics .* the limit is 2; .*--limit N"):
        topic_distances(rows)
    assert [*nearest_of(rows, 1, [2])] == [2]
