"""Topics of new documents, compared with the same iteration in float64 over all topics."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.examples import bags, corpus
from mgpu_ngram.kernels.lda.fold_in import Bag, FixedTopics, fixed_topics, fold_in
from mgpu_ngram.kernels.lda.weights import PRIOR_BITS, WordTopics


def naive(words, bag, iterations):
    """Return theta by the dense formula, a document after the other."""
    beta_VZ = np.full(words.counts_VZ.shape, words.beta)
    for v, row in enumerate(words.seeds_V):
        if row >= 0:
            beta_VZ[v] = words.beta_KZ[row]
    phi_VZ = (words.counts_VZ + beta_VZ) * words.inverse_Z.astype(float)
    alpha_Z = words.alpha_Z / (1 << PRIOR_BITS)
    rows = []
    for first, end in zip(bag.starts_D1, bag.starts_D1[1:], strict=False):
        phi_PZ, counts_P = phi_VZ[bag.words_P[first:end]], bag.counts_P[first:end]
        theta_Z = alpha_Z * (1 + counts_P.sum() / alpha_Z.sum())
        for _ in range(iterations):
            shares_PZ = phi_PZ * theta_Z
            theta_Z = alpha_Z + counts_P @ (shares_PZ / shares_PZ.sum(1, keepdims=True))
        rows.append(theta_Z)
    return np.array(rows)


def on_device(group, to_device):
    return type(group)(*map(to_device, group))


@pytest.mark.parametrize("size", [200, 201, 203, 204])
@pytest.mark.parametrize("iterations", [0, 1, 12])
def test_theta_is_that_of_the_dense_iteration(size, iterations, to_device):
    words = corpus(np.random.default_rng(size), size)[2]
    bag = Bag(*bags(np.random.default_rng(size + 1), size)[:3])
    theta_DZ = to_host(
        fold_in(on_device(bag, to_device), on_device(fixed_topics(words), to_device), iterations, tol=0.0)
    )
    assert theta_DZ == pytest.approx(naive(words, bag, iterations), rel=2e-4)
    lengths_D = np.add.reduceat(np.append(bag.counts_P, 0), bag.starts_D1[:-1]) * (np.diff(bag.starts_D1) > 0)
    alpha = words.alpha_Z.sum() / (1 << PRIOR_BITS)
    assert theta_DZ.sum(1) == pytest.approx(lengths_D + alpha, rel=1e-4)


def test_a_document_alone_has_the_same_bits(to_device):
    words = corpus(np.random.default_rng(1), 300)[2]
    bag = Bag(*bags(np.random.default_rng(2), 300)[:3])
    topics = on_device(fixed_topics(words), to_device)
    whole = to_host(fold_in(on_device(bag, to_device), topics))
    for d, (first, end) in enumerate(zip(bag.starts_D1, bag.starts_D1[1:], strict=False)):
        alone = Bag(np.array([0, end - first]), bag.words_P[first:end], bag.counts_P[first:end])
        assert to_host(fold_in(on_device(alone, to_device), topics)).tobytes() == whole[d].tobytes()


def test_by_hand(to_device):
    """Two topics, two words; word 0 has probabilities 0.75 and 0.25. One iteration from theta = alpha (1 + 2 / 4)."""
    topics = FixedTopics(
        np.array([0, 1, 2]), np.array([0, 1], np.uint16), np.array([0.5, 0.5], np.float32),
        np.array([0.25, 0.25], np.float32), np.array([1, 3], np.float32),
    )  # fmt: skip
    bag = Bag(np.array([0, 1, 1]), np.array([0], np.uint32), np.array([2], np.uint32))
    theta_DZ = to_host(fold_in(on_device(bag, to_device), on_device(topics, to_device), 1))
    # theta = (1.5, 4.5): shares of word 0 are 1.5 * 0.75 and 4.5 * 0.25, half each, so each topic gets 1 token of 2
    assert theta_DZ.tolist() == [[2, 4], [1, 3]]


def test_topics_with_own_priors_and_without_any_token():
    counts_VZ = np.array([[2, 0], [0, 0]], np.uint32)
    words = WordTopics(
        counts_VZ, np.array([0.5, 0.25], np.float32), np.ones(2, np.float32), np.array([256, 512], np.float32), 0.5,
        np.array([-1, 0], np.int32), np.array([[4, 0.25]], np.float32),
    )  # fmt: skip
    topics = fixed_topics(words)
    assert topics.starts_V1.tolist() == [0, 1, 3] and topics.topics_N.tolist() == [0, 0, 1]
    assert topics.floor_Z.tolist() == [0.25, 0.125] and topics.alpha_Z.tolist() == [1, 2]
    assert topics.shares_N.tolist() == [1.0, 1.75, -0.0625]
