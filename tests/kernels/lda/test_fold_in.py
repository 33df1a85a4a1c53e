"""Topics of new documents, compared with the same iteration in float64 over all topics."""

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.examples import bags, corpus
from mgpu_ngram.kernels.lda.fold_in import LANES, Bag, FixedTopics, entries, fixed_topics, fold_in, lay_out_rows
from mgpu_ngram.kernels.lda.weights import WordTopics


def phi_of(topics):
    """Return the probabilities (V, Z) of words in topics."""
    phi_VZ = np.repeat(topics.floor_Z[None].astype(float), len(topics.rows_V2), 0)
    for phi_Z, entries_E in zip(phi_VZ, rows_of(topics), strict=True):
        phi_Z[entries_E & 0xFFFF] += entries_E.view(np.float32)
    return phi_VZ


def rows_of(topics):
    """Return the entries of each word."""
    return [topics.entries_N[LANES * row : LANES * row + size] for row, size in topics.rows_V2.astype(int)]


def stepped(topics, bag, theta_DZ):
    """Return theta after one application of the dense formula in float64, a document after the other."""
    phi_VZ, alpha_Z, rows = phi_of(topics), topics.alpha_Z.astype(float), []
    for first, end, theta_Z in zip(bag.starts_D1, bag.starts_D1[1:], theta_DZ, strict=False):
        shares_PZ = phi_VZ[bag.words_P[first:end]] * theta_Z
        rows.append(alpha_Z + bag.counts_P[first:end] @ (shares_PZ / shares_PZ.sum(1, keepdims=True)))
    return np.array(rows)


def distances(theta_DZ, expected_DZ):
    """Return the share of each document that has other topics."""
    return np.abs(theta_DZ - expected_DZ).sum(1) / expected_DZ.sum(1)


def on_device(group, to_device):
    return type(group)(*map(to_device, group))


@pytest.mark.parametrize("size", [200, 201])
def test_theta_is_the_fixed_point(size, to_device):
    words = corpus(np.random.default_rng(size), size)[2]
    bag, topics = Bag(*bags(np.random.default_rng(size + 1), size)[:3]), fixed_topics(words)
    expected = np.tile(topics.alpha_Z, (len(bag.starts_D1) - 1, 1))
    for _ in range(3000):
        expected = stepped(topics, bag, expected)
    found = to_host(fold_in(on_device(bag, to_device), on_device(topics, to_device), 1000, 0.0))
    assert distances(found, expected).max() < 1e-3


@pytest.mark.parametrize("size", [200, 201, 203, 204])
def test_theta_moves_less_than_the_tolerance(size, to_device):
    """One application of the dense formula moves theta by little more than the last iteration did."""
    words = corpus(np.random.default_rng(size), size)[2]
    bag, topics = Bag(*bags(np.random.default_rng(size + 1), size)[:3]), fixed_topics(words)
    lengths_D = [sum(bag.counts_P[a:b]) for a, b in zip(bag.starts_D1, bag.starts_D1[1:], strict=False)]
    sums_D, Z = lengths_D + topics.alpha_Z.sum(), len(topics.alpha_Z)
    for tol, most in ((1e-3, 100), (1e-5, 1000)):
        found = to_host(fold_in(on_device(bag, to_device), on_device(topics, to_device), most, tol))
        assert found.sum(1) == pytest.approx(sums_D, rel=1e-5)
        limits_D = np.minimum(tol * Z, 0.01 * sums_D)
        assert (np.abs(stepped(topics, bag, found) - found).sum(1) < 3 * limits_D + 1e-5 * sums_D).all()


@pytest.mark.parametrize("Z", [2, 16384])
def test_extreme_documents(Z, to_device):
    """No word, words that occur 10^6 times or not at all, and more pairs than two warps have lanes."""
    rng = np.random.default_rng(Z)
    V, size = 80, min(Z, 70)
    topics_VE = np.sort([rng.choice(Z, size, replace=False) for _ in range(V)], 1)
    shares_VE = rng.dirichlet(np.full(size, 0.2), V).astype(np.float32) + np.float32(1e-6)
    words_N = np.repeat(np.arange(V), size)
    topics = FixedTopics(
        *lay_out_rows(np.arange(V + 1) * size, entries(words_N, topics_VE.ravel(), shares_VE.ravel()), Z),
        np.full(Z, 1e-4, np.float32), np.full(Z, 50 / Z, np.float32),
    )  # fmt: skip
    words_P = np.concatenate([np.arange(V), [3, 5], [7]]).astype(np.uint32)
    counts_P = np.concatenate([rng.integers(1, 4, V), [10**6, 1], [0]]).astype(np.uint32)
    bag = Bag(np.array([0, 0, V, V + 2, V + 3]), words_P, counts_P)
    found = to_host(fold_in(on_device(bag, to_device), on_device(topics, to_device), 500, 1e-6))
    assert distances(stepped(topics, bag, found), found).max() < 2e-4
    assert found[0] == pytest.approx(topics.alpha_Z) and found[3].tolist() == found[0].tolist()


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
        *lay_out_rows(np.arange(3), entries(np.arange(2), np.arange(2), np.array([0.5, 0.5], np.float32)), 2),
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
    rows = rows_of(topics)
    assert [(row & 0xFFFF).tolist() for row in rows] == [[0], [0, 1]]
    assert topics.floor_Z.tolist() == [0.25, 0.125] and topics.alpha_Z.tolist() == [1, 2]
    assert np.concatenate(rows).view(np.float32) == pytest.approx([1.0, 1.75, -0.0625], rel=2**-8)


def test_entries_by_hand():
    """Of word 1, the largest share first; the lower half of the bits of 1.0, 0x3f800000, becomes the topic."""
    words_N, topics_N = np.array([0, 1, 1, 1]), np.array([0xFFFF, 2, 3, 4], np.uint16)
    found = entries(words_N, topics_N, np.array([1, 0.5, 1, 0.5], np.float32))
    assert found.tolist() == [0x3F7FFFFF, 0x3F800003, 0x3F000002, 0x3F000004]


def test_rows_by_hand():
    """Words of 0, 1, 32, 33, 97 and 0 entries: rows of 1, 1, 3 and 5 groups."""
    sizes_V, own = np.array([0, 1, 32, 33, 97, 0]), np.arange(1 << 16, (1 << 16) + 163, dtype=np.uint32)
    starts_V1 = np.concatenate([[0], np.cumsum(sizes_V)])
    rows_V2, entries_N = lay_out_rows(starts_V1, own, 300)
    assert rows_V2.tolist() == [[0, 0], [1, 1], [2, 32], [3, 33], [6, 97], [0, 0]]
    assert len(entries_N) == LANES * 11
    filled = np.sort(entries_N)[-163:]
    assert filled.tolist() == own.tolist()
    others = np.flatnonzero(entries_N < 1 << 16)
    assert (entries_N[others] == 300 + others % LANES).all()
    assert lay_out_rows(starts_V1, own, 65_530)[1][:LANES].tolist() == [*range(65_530, 65_536), *[65_535] * 26]


@pytest.mark.parametrize("topic", [0, 1, 40_000, 65_535])
def test_a_share_is_rounded_by_little(topic):
    shares = (np.random.default_rng(topic).random(200) ** 8).astype(np.float32)
    found = entries(np.arange(200), np.full(200, topic), shares)
    assert (found & 0xFFFF).tolist() == [topic] * 200
    assert found.view(np.float32) == pytest.approx(shares, rel=2**-8, abs=1e-37)


def test_words_with_many_equal_shares(to_device):
    """Sums that are four iterations old lead this document astray, so at last all iterations read all entries."""
    rng = np.random.default_rng(0)
    V, Z = 30, 500
    topics_VE = [[*rng.choice(400, 32, replace=False), *(400 + rng.choice(100, 32, replace=False))] for _ in range(V)]
    shares_VE = np.tile(np.repeat([0.0101, 0.01], 32), V).astype(np.float32)
    topics = FixedTopics(
        *lay_out_rows(np.arange(V + 1) * 64, entries(np.repeat(np.arange(V), 64), np.ravel(topics_VE), shares_VE), Z),
        np.full(Z, 1e-7, np.float32), np.full(Z, 0.01, np.float32),
    )  # fmt: skip
    bag = Bag(np.array([0, V]), np.arange(V, dtype=np.uint32), rng.integers(1, 30, V).astype(np.uint32))
    found = to_host(fold_in(on_device(bag, to_device), on_device(topics, to_device), 200, 1e-5))
    assert distances(stepped(topics, bag, found), found).max() < 1e-3
