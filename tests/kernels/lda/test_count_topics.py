"""Rows of documents' topics, and counts of words' topics, compared with plain Python."""

from collections import Counter

import numpy as np
import pytest

from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.lda.count_topics import count_topics, example
from mgpu_ngram.kernels.lda.count_word_topics import count_word_topics
from mgpu_ngram.kernels.lda.examples import bags
from mgpu_ngram.kernels.lda.layout import lay_out
from mgpu_ngram.kernels.lda.topic_totals import topic_totals
from mgpu_ngram.kernels.lda.weights import count_bits


def rows_of(documents, num_topics):
    """Return the (topic, count) entries of each document."""
    rows_D2, _lengths_D, _, entries_T = map(to_host, documents)
    bits = count_bits(num_topics)[1]
    found = []
    for begin, size in rows_D2.astype(int):
        entries = [int(entry) for entry in entries_T[16 * begin : 16 * begin + size]]
        found.append([(entry >> bits, entry & ((1 << bits) - 1)) for entry in entries])
    return found


@pytest.mark.parametrize(
    ("num_topics", "dtype", "bits"),
    [
        (2, "uint16", 15),
        (3, "uint16", 14),
        (1024, "uint16", 6),
        (4096, "uint16", 4),
        (4097, "uint32", 19),
        (65536, "uint32", 16),
    ],
)
def test_the_bits_of_an_entry(num_topics, dtype, bits):
    assert count_bits(num_topics) == (np.dtype(dtype), bits)


@pytest.mark.parametrize("size", [0, 1, 900, 901, 902, 903, 904])
def test_rows_are_the_topics_of_documents_with_their_counts(size, to_device):
    made = example(np.random.default_rng(size), size)
    documents, num_topics = made["documents"], made["num_topics"]
    here = count_topics(type(documents)(*map(to_device, documents)), num_topics)
    most = (1 << count_bits(num_topics)[1]) - 1
    for d, row in enumerate(rows_of(here, num_topics)):
        begin, length = 16 * int(documents.rows_D2[d, 0]), int(documents.lengths_D[d])
        expected = Counter(documents.topics_T[begin : begin + length].tolist())
        found = Counter()
        for topic, count in row:
            assert 1 <= count <= most
            found[topic] += count
        assert found == expected
        assert [topic for topic, _ in row] == sorted(topic for topic, _ in row)
        assert len(row) == sum(-(-count // most) for count in expected.values())


def test_a_count_that_exceeds_an_entry_takes_several(to_device):
    """4,096 topics leave 4 bits of 16 for a count: 15 at most."""
    topics = np.repeat(np.array([7, 4_095, 0], np.uint16), [31, 15, 16])
    documents, _ = lay_out(np.array([0, 1]), np.array([3], np.uint32), np.array([62], np.uint32), 4_096)
    documents.topics_T[:62] = topics
    here = count_topics(type(documents)(*map(to_device, documents)), 4_096)
    assert rows_of(here, 4_096) == [[(0, 15), (0, 1), (7, 15), (7, 15), (7, 1), (4_095, 15)]]


def test_more_topics_than_fit_shared_memory(to_device):
    topics = np.array([65_535, 0, 65_535, 40_000, 2_048, 2_047], np.uint16)
    documents, _ = lay_out(np.array([0, 1, 1]), np.array([3], np.uint32), np.array([6], np.uint32), 65_536)
    documents.topics_T[:6] = topics
    here = count_topics(type(documents)(*map(to_device, documents)), 65_536)
    assert rows_of(here, 65_536) == [[(0, 1), (2_047, 1), (2_048, 1), (40_000, 1), (65_535, 2)], []]


def test_words_topics_are_counted(to_device):
    starts_D1, words_P, counts_P, V = bags(np.random.default_rng(4), 2000)
    documents, pairs = lay_out(starts_D1, words_P, counts_P, 7, max_pairs=20)
    documents.topics_T[:] = np.arange(len(documents.topics_T)) % 7
    counts_VZ = to_device(np.ones((V, 7), np.uint32))
    count_word_topics(type(pairs)(*map(to_device, pairs)), to_device(documents.topics_T), counts_VZ)
    expected = np.ones((V, 7), int)
    for d in range(len(starts_D1) - 1):
        t = 16 * int(documents.rows_D2[d, 0])
        for p in range(starts_D1[d], starts_D1[d + 1]):
            for _ in range(counts_P[p]):
                expected[words_P[p], t % 7] += 1
                t += 1
    assert to_host(counts_VZ).tolist() == expected.tolist()


def test_totals_above_32_bits(to_device):
    counts_VZ = np.array([[2**32 - 1, 0], [2**32 - 1, 1], [2**32 - 1, 2**31]], np.uint32)
    assert to_host(topic_totals(to_device(counts_VZ))).tolist() == [3 * 2**32 - 3, 2**31 + 1]


def test_the_layout_by_hand():
    # document 0: word 5 twice, word 7 300 times; document 1: nothing; document 2: word 5
    starts_D1, words_P, counts_P = np.array([0, 2, 2, 3]), np.array([5, 7, 5]), np.array([2, 300, 1])
    documents, pairs = lay_out(starts_D1, words_P.astype(np.uint32), counts_P.astype(np.uint32), 10, max_pairs=1)
    assert documents.lengths_D.tolist() == [302, 0, 1]
    assert documents.rows_D2.tolist() == [[0, 0], [19, 0], [19, 0]]  # 302 tokens take 19 times 16 places
    assert len(documents.topics_T) == 20 * 16
    found = list(zip(*(a.tolist() for a in pairs[1:]), strict=True))
    assert found == [(0, 0, 2), (2, 304, 1), (0, 2, 255), (0, 257, 45)]
    assert sorted(pairs.slots_S3.tolist()) == [[5, 0, 1], [5, 1, 2], [7, 2, 3], [7, 3, 4]]


def test_pairs_of_a_word_come_by_falling_tokens_then_length():
    # word 5: once in documents 0, 2 and 3, of 1, 41 and 1 tokens; three times in document 1
    starts_D1, words_P, counts_P = np.array([0, 1, 2, 4, 5]), np.array([5, 5, 5, 7, 5]), np.array([1, 3, 1, 40, 1])
    _, pairs = lay_out(starts_D1, words_P.astype(np.uint32), counts_P.astype(np.uint32), 10)
    assert pairs.document_P.tolist() == [1, 2, 0, 3, 2]
    assert pairs.count_P.tolist() == [3, 1, 1, 1, 40]


def test_too_many_tokens_for_one_block_are_refused():
    counts_P = np.full(2, 2**31, np.uint32)
    with pytest.raises(ValueError, match=r"4,294,967,296 tokens, including gaps, but a block holds at most 2\^32 - 1"):
        lay_out(np.array([0, 1, 2]), np.zeros(2, np.uint32), counts_P, 4)
