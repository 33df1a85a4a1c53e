"""Representative documents of topics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.topics.doc_topics import DocTopics, representative_documents


def doc_topics(documents, num_topics=3):
    """Of a list of {topic: weight}."""
    starts = np.cumsum([0, *map(len, documents)])
    topics = np.array([z for document in documents for z in document], np.uint16)
    weights = np.array([w for document in documents for w in document.values()], np.uint32)
    return DocTopics(starts, topics, weights, num_topics)


EXAMPLE = [{0: 3, 1: 1}, {1: 2, 2: 2}, {}, {0: 6, 2: 2}, {2: 1}, {2: 5}]


def test_representatives_by_hand():
    """Equal shares by weight: document 3 has more tokens than 0, and 5 more than 4."""
    found = representative_documents(doc_topics(EXAMPLE), 3)
    assert found.documents_Zn.tolist() == [[3, 0, -1], [1, 0, -1], [5, 4, 1]]
    assert found.shares_Zn.tolist() == [[0.75, 0.75, 0], [0.5, 0.25, 0], [1, 1, 0.5]]
    found = representative_documents(doc_topics(EXAMPLE), 2, first_document=100)
    assert found.documents_Zn.tolist() == [[103, 100], [101, 100], [105, 104]]


DOCUMENTS = st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 4), max_size=3), max_size=15)


@settings(max_examples=60)
@given(DOCUMENTS, st.integers(0, 4), st.integers(0, 15))
def test_representatives_of_parts_merge(documents, n, cut):
    cut = min(cut, len(documents))
    whole = representative_documents(doc_topics(documents), n)
    parts = representative_documents(doc_topics(documents[:cut]), n)
    rest = representative_documents(doc_topics(documents[cut:]), n, first_document=cut)
    for merged in parts.merged(rest), rest.merged(parts):
        assert all(map(np.array_equal, merged, whole))
    for z in range(3):
        ranked = sorted(
            (-document[z] / sum(document.values()), -document[z], d)
            for d, document in enumerate(documents)
            if z in document
        )[:n]
        assert whole.documents_Zn[z].tolist() == [d for *_, d in ranked] + [-1] * (n - len(ranked))


def test_errors():
    with pytest.raises(InputError, match="-1 documents"):
        representative_documents(doc_topics(EXAMPLE), -1)
