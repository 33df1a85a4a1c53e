"""Draws of topics, compared with probabilities in plain Python."""

from fractions import Fraction

import numpy as np
import pytest

from mgpu_ngram.kernels.common.philox import DRAWS, random_bits
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.count_topics import count_topics
from mgpu_ngram.kernels.lda.examples import corpus
from mgpu_ngram.kernels.lda.layout import lay_out
from mgpu_ngram.kernels.lda.sample_topics import SHORT, Draw, sample_topics
from mgpu_ngram.kernels.lda.weights import BLOCK, PRIOR_BITS, WordTopics, prior_weight, weigh_word, word_weight

CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}  # 0.1 % quantiles by degrees of freedom


def documents_of(texts, topics, num_topics):
    """Return (documents, pairs) of documents given as lists of (word, count), and lists of their tokens' topics."""
    starts_D1 = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    words_P, counts_P = (np.array([pair[i] for text in texts for pair in text], np.uint32) for i in (0, 1))
    documents, pairs = lay_out(starts_D1, words_P, counts_P, num_topics)
    for d, of_document in enumerate(topics):
        begin = 16 * int(documents.rows_D2[d, 0])
        documents.topics_T[begin : begin + len(of_document)] = of_document
    return count_topics(documents, num_topics), pairs


def words_of(counts_VZ, totals_Z, alpha_Z, beta, V):
    """Return word topics with these totals, which may be more than the counts say."""
    totals_Z = np.asarray(totals_Z, np.float64)
    alpha_Z = (np.asarray(alpha_Z) * (1 << PRIOR_BITS)).astype(np.float32)
    inverse_Z, less_Z = ((1 / (totals_Z - less + V * beta)).astype(np.float32) for less in (0, 1))
    nothing = np.zeros(0, np.int32), np.zeros((0, len(alpha_Z)), np.float32)
    return WordTopics(np.asarray(counts_VZ, np.uint32), inverse_Z, less_Z, alpha_Z, beta, *nothing)


def chances(row_Z, word_Z, totals_Z, alpha_Z, beta, V, z, exclude_self=True):
    """Return the probability of each topic for a token of topic z, with rational numbers."""
    weights = []
    for k in range(len(row_Z)):
        own = int(exclude_self and k == z)
        weights.append(
            (row_Z[k] - own + Fraction(alpha_Z[k]))
            * (word_Z[k] - own + Fraction(beta))
            / (totals_Z[k] - own + V * Fraction(beta))
        )
    return [float(w / sum(weights)) for w in weights]


def drawn(documents, pairs, words, to_device, draws, exclude_self=True, token=0):
    """Return how often each topic comes out for one token, in this many sweeps from the same state."""
    found = np.zeros(words.counts_VZ.shape[1], int)
    words = type(words)(*(to_device(a) if isinstance(a, np.ndarray) else a for a in words))
    pairs = type(pairs)(*map(to_device, pairs))
    for sweep in range(draws):
        here = type(documents)(*(to_device(a.copy()) for a in documents))
        sample_topics(here, pairs, words, words.counts_VZ.copy(), Draw(11, sweep, 0, exclude_self))
        found[int(to_host(here.topics_T)[token])] += 1
    return found


def assert_fits(found, expected):
    """Chi-square of draws and probabilities, without rare topics."""
    expected = np.array(expected) * found.sum()
    keep = expected >= 5
    statistic = ((found[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    assert statistic < CHI_SQUARE[max(1, int(keep.sum()) - 1)], (found, expected)


@pytest.mark.parametrize("exclude_self", [True, False])
def test_a_draw_has_the_probabilities_of_the_formula(exclude_self, to_device):
    alpha_Z, beta, V = [0.1, 0.7, 0.3, 1.5], 0.25, 3
    documents, pairs = documents_of([[(0, 1), (1, 4)]], [[1, 1, 1, 0, 2]], 4)
    counts_VZ = [[3, 2, 0, 1], [1, 2, 2, 0], [0, 1, 4, 9]]
    totals_Z = np.sum(counts_VZ, 0).tolist()
    words = words_of(counts_VZ, totals_Z, alpha_Z, beta, V)
    found = drawn(documents, pairs, words, to_device, 4000, exclude_self)
    assert_fits(found, chances([1, 3, 1, 0], counts_VZ[0], totals_Z, alpha_Z, beta, V, 1, exclude_self))


def test_one_token_for_each_word_and_document_follows_the_prior(device, to_device):
    """The exact posterior: the other tokens tell nothing of this one, whichever counts are delayed."""
    D, alpha_Z = 20_000, np.array([1.0, 2.0, 0.5, 4.0])
    documents, pairs = documents_of([[(d, 1)] for d in range(D)], [[d % 4] for d in range(D)], 4)
    counts_VZ = np.zeros((D, 4), np.uint32)
    counts_VZ[np.arange(D), np.arange(D) % 4] = 1
    words = words_of(counts_VZ, [1e15] * 4, alpha_Z, 0.01, 0)
    moved = [type(group)(*(to_device(a) if isinstance(a, np.ndarray) else a for a in group)) for group in
             (documents, pairs, words)]  # fmt: skip
    sample_topics(*moved, moved[2].counts_VZ.copy(), Draw(3, 1))
    topics = to_host(moved[0].topics_T)[16 * documents.rows_D2[:, 0].astype(int)]
    assert_fits(np.bincount(topics, minlength=4), alpha_Z / alpha_Z.sum())


@pytest.mark.parametrize(("count", "alpha_Z"), [(1, [1.0, 3.0]), (10**5 + 1, [1e4, 1e-3])])
def test_the_smallest_probabilities_do_not_vanish(count, alpha_Z, to_device):
    """With a topic of 10^9 tokens, a word that it lacks has p* = 10^-11, which 16-bit floats round to 0.

    By hand, the shares without the token: 1 and 3 times 0.01; or 10^4 times 0.01, and 10^-3 times 10^5.
    """
    documents, pairs = documents_of([[(0, 1)]], [[1]], 2)
    words = words_of([[0, count]], [10**9, 10**9], alpha_Z, 0.01, 1)
    expected = [0.25, 0.75] if count == 1 else [0.5, 0.5]
    assert_fits(drawn(documents, pairs, words, to_device, 3000), expected)


def test_every_weight_is_at_least_one():
    """Or a topic without tokens of a word, and with a small prior, could never be drawn."""
    assert word_weight(np.float32(1e-30), np.float32(1)) == 1
    assert prior_weight(np.int32(1), np.float32(1e-6 * (1 << PRIOR_BITS))) == 1
    assert prior_weight(np.int32(3), np.float32(1 << PRIOR_BITS)) == 3 << PRIOR_BITS


def test_a_topic_of_one_word_keeps_its_weight_without_the_token(to_device):
    """Both shares round to 1, one from below: the token's own share exceeds the greatest share that set the scale."""
    documents, pairs = documents_of([[(0, 32)]], [[0] * 32], 2)
    words = words_of([[32, 0]], [32, 1000], [0.1, 0.1], 0.01, 1)
    assert np.float32(32.01) * words.inverse_Z[0] < 1 <= np.float32(31.01) * words.less_Z[0]
    assert drawn(documents, pairs, words, to_device, 100).tolist() == [100, 0]


def plain_draws(documents, pairs, words, draw):
    """Return the topics of all tokens by the rule of `sample_topics`, token by token."""
    Z, topics_T = len(words.inverse_Z), documents.topics_T.copy()
    scratch = np.empty(Z, np.float32), np.empty(Z, np.int32), np.empty(-(-Z // BLOCK), np.uint64)
    for w, first_pair, end_pair in pairs.slots_S3.tolist():
        beta_Z = np.full(Z, words.beta, np.float32)
        scale, _ = weigh_word(words.counts_VZ[w], words.inverse_Z, words.alpha_Z, beta_Z, *scratch)
        weight_Z = scratch[1].astype(np.int64)
        prior_Z = np.maximum(1, (weight_Z.astype(np.float32) * words.alpha_Z).astype(np.int64))
        for p in range(first_pair, end_pair):
            d, begin = int(pairs.document_P[p]), 16 * int(documents.rows_D2[pairs.document_P[p], 0])
            row_Z = np.bincount(documents.topics_T[begin : begin + int(documents.lengths_D[d])], minlength=Z)
            for t in range(int(pairs.token_P[p]), int(pairs.token_P[p]) + int(pairs.count_P[p])):
                z = int(documents.topics_T[t])
                share = (np.float32(words.counts_VZ[w, z] - 1) + beta_Z[z]) * words.less_Z[z]
                less = max(1, int(share * np.float32(scale)))
                own = ((int(row_Z[z]) - 1) * less << PRIOR_BITS) + max(1, int(np.float32(less) * words.alpha_Z[z]))
                by_row, by_prior = row_Z * weight_Z << PRIOR_BITS, prior_Z.copy()
                by_row[z] = by_prior[z] = 0
                through = np.cumsum(np.concatenate([[own], by_row, by_prior]))
                bits = int(random_bits(np.uint64(draw.seed), DRAWS, draw.sweep, draw.first + d, t - begin))
                place = int(np.searchsorted(through, int(through[-1]) * bits >> 64, "right"))
                topics_T[t] = (place - 1) % Z if place else z
    return topics_T


@pytest.mark.parametrize(
    ("Z", "topics_of_document", "alpha"),
    [(2000, (3, 40), 0.1), (2000, (700, 900), 0.1), (5000, (700, 900), 0.1), (20, (3, 9), 99)],
)
def test_draws_are_those_of_plain_python(Z, topics_of_document, alpha, to_device):
    """Rows of few blocks of entries and of many, small and large entries, topics of several entries, a strong prior."""
    rng, V = np.random.default_rng(1), 2
    texts = [[(w, int(rng.integers(600, 1000))) for w in range(V)] for _ in topics_of_document]
    lengths = [sum(count for _, count in text) for text in texts]
    topics = [
        np.concatenate([rng.integers(0, n, length - length // 4), np.full(length // 4, n // 2)]) * 2
        for n, length in zip(topics_of_document, lengths, strict=True)
    ]
    documents, pairs = documents_of(texts, topics, Z)
    assert {bool(size > SHORT) for size in documents.rows_D2[:, 1]} == {topics_of_document[0] > SHORT}
    counts_VZ = np.zeros((V, Z), np.uint32)
    for text, of_document in zip(texts, topics, strict=True):
        np.add.at(counts_VZ, (np.repeat(range(V), [count for _, count in text]), of_document), 1)
    words = words_of(counts_VZ, counts_VZ.sum(0), rng.random(Z) * alpha, 0.05, V)
    draw = Draw(5, 3, 2**33)
    expected_T = plain_draws(documents, pairs, words, draw)
    moved = [type(group)(*(to_device(a) if isinstance(a, np.ndarray) else a for a in group)) for group in
             (documents, pairs, words)]  # fmt: skip
    changed = sample_topics(*moved, moved[2].counts_VZ.copy(), draw)
    assert to_host(moved[0].topics_T).tolist() == expected_T.tolist()
    assert 0 < int(changed[0]) < sum(lengths)


def test_a_word_a_million_times_in_a_document(to_device):
    """The document's counts need several entries, and the tokens several pairs."""
    n = 1_000_000
    topics = np.arange(n) % 3
    documents, pairs = documents_of([[(0, n)]], [topics], 3)
    assert documents.rows_D2[0, 1] == 3 * -(-(n // 3) // (2**14 - 1)) and len(pairs.count_P) == -(-n // 255)
    counts_VZ = np.array([np.bincount(topics), [5, 5, 5]])
    words = words_of(counts_VZ, counts_VZ.sum(0), [0.1, 0.2, 0.3], 0.01, 2)
    new_VZ = to_device(words.counts_VZ.copy())
    moved = [type(g)(*(to_device(a) if isinstance(a, np.ndarray) else a for a in g)) for g in (documents, pairs, words)]
    changed = int(to_host(sample_topics(*moved, new_VZ, Draw(1, 1)))[0])
    new = to_host(moved[0].topics_T)[:n]
    assert changed == (new != topics).sum()
    assert np.bincount(new, minlength=3).tolist() == to_host(new_VZ)[0].tolist()
    row = np.bincount(topics)
    expected = np.mean([chances(row, counts_VZ[0], counts_VZ.sum(0), [0.1, 0.2, 0.3], 0.01, 2, z) for z in range(3)], 0)
    assert_fits(np.bincount(new, minlength=3), expected)


@pytest.mark.parametrize("size", [300, 301, 303, 304])
def test_draws_do_not_depend_on_slots_and_their_order(size, to_device):
    rng = np.random.default_rng(size)
    documents, pairs, words = corpus(rng, size)
    expected, new_VZ = documents.topics_T.copy(), words.counts_VZ.copy()
    sample_topics(documents._replace(topics_T=expected), pairs, words, new_VZ, Draw(5, 2, 9))
    words = type(words)(*(to_device(a) if isinstance(a, np.ndarray) else a for a in words))
    here = type(documents)(*map(to_device, documents))
    counts_VZ = words.counts_VZ.copy()
    order = rng.permutation(len(pairs.slots_S3))
    for slot in np.array_split(order, 3):
        part = pairs._replace(slots_S3=pairs.slots_S3[slot])
        sample_topics(here, type(part)(*map(to_device, part)), words, counts_VZ, Draw(5, 2, 9))
    assert (to_host(here.topics_T) == expected).all() and (to_host(counts_VZ) == new_VZ).all()


def test_two_words_swapped_give_swapped_rows():
    documents, pairs, words = corpus(np.random.default_rng(1), 500)
    V = len(words.counts_VZ)
    swap = np.arange(V)
    swap[[0, 1]] = [1, 0]
    words = words._replace(seeds_V=np.zeros(0, np.int32))
    first, second = documents.topics_T.copy(), documents.topics_T.copy()
    new_VZ, swapped_VZ = words.counts_VZ.copy(), words.counts_VZ[swap]
    sample_topics(documents._replace(topics_T=first), pairs, words, new_VZ, Draw(5, 2))
    slots_S3 = pairs.slots_S3.copy()
    slots_S3[:, 0] = swap[slots_S3[:, 0]]
    others = words._replace(counts_VZ=words.counts_VZ[swap])
    sample_topics(
        documents._replace(topics_T=second), pairs._replace(slots_S3=slots_S3), others, swapped_VZ, Draw(5, 2)
    )
    assert (first == second).all() and (new_VZ[swap] == swapped_VZ).all()


def test_a_seed_out_of_range_is_refused():
    documents, pairs, words = corpus(np.random.default_rng(1), 50)
    with pytest.raises(ValueError, match=r"seed is -1 but must be 0 to 2\^64 - 1"):
        sample_topics(documents, pairs, words, words.counts_VZ.copy(), Draw(-1, 1))
