"""Documents of topics, representative ones, and shares in groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.engine.doc_topics import (
    DocTopics,
    cut_dates,
    documents_of_topics,
    group_shares,
    representative_documents,
)


def doc_topics(documents, num_topics=3):
    """Of a list of {topic: weight}."""
    starts = np.cumsum([0, *map(len, documents)])
    topics = np.array([z for document in documents for z in document], np.uint16)
    weights = np.array([w for document in documents for w in document.values()], np.uint32)
    return DocTopics(starts, topics, weights, num_topics)


EXAMPLE = [{0: 3, 1: 1}, {1: 2, 2: 2}, {}, {0: 6, 2: 2}, {2: 1}, {2: 5}]


def test_documents_by_hand():
    assert documents_of_topics(doc_topics(EXAMPLE)).tolist() == [2, 1, 2]
    assert documents_of_topics(doc_topics(EXAMPLE), threshold=0.25).tolist() == [2, 2, 4]
    assert documents_of_topics(doc_topics([{2: 2, 1: 2}])).tolist() == [0, 1, 0]


def test_representatives_by_hand():
    """Equal shares by weight: document 3 has more tokens than 0, and 5 more than 4."""
    found = representative_documents(doc_topics(EXAMPLE), 3)
    assert found.documents_Zn.tolist() == [[3, 0, -1], [1, 0, -1], [5, 4, 1]]
    assert found.shares_Zn.tolist() == [[0.75, 0.75, 0], [0.5, 0.25, 0], [1, 1, 0.5]]
    found = representative_documents(doc_topics(EXAMPLE), 2, least_weight=4, first_document=100)
    assert found.documents_Zn.tolist() == [[103, 100], [101, 100], [105, 101]]


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


def test_groups_by_hand():
    found = group_shares(doc_topics(EXAMPLE), ["b", "a", "a", "b", None, "c"])
    assert found.groups == ["", "a", "b", "c"] and found.documents_G.tolist() == [1, 2, 2, 1]
    assert found.shares_GZ.tolist() == [[0, 0, 1], [0, 0.5, 0.5], [0.75, 0.125, 0.125], [0, 0, 1]]
    by_tokens = group_shares(doc_topics(EXAMPLE), ["b", "a", "a", "b", None, "c"], by_tokens=True)
    assert np.allclose(by_tokens.shares_GZ[2], [9 / 12, 1 / 12, 2 / 12])
    assert found.as_json()["groups"][1] == {"group": "a", "documents": 2, "shares": [0, 0.5, 0.5]}


def test_groups_of_numbers_and_dates_are_in_order():
    assert group_shares(doc_topics(EXAMPLE), [10, 9, 9, 10, 9, -1]).groups == ["-1", "9", "10"]
    dates = np.array(["2020-12-31", "2021-01-01", "NaT", "2021-05-02", "2020-01-01", "2021-01-31"], "datetime64[D]")
    assert group_shares(doc_topics(EXAMPLE), cut_dates(dates, "Y")).groups == ["2020", "2021", ""]
    assert group_shares(doc_topics(EXAMPLE), cut_dates(dates, "M")).groups[-2:] == ["2021-05", ""]


@settings(max_examples=30)
@given(DOCUMENTS)
def test_one_group_has_the_mean_of_documents(documents):
    found = group_shares(doc_topics(documents), ["all"] * len(documents))
    rows = [[d.get(z, 0) / sum(d.values()) for z in range(3)] for d in documents if d]
    if rows:
        assert np.allclose(found.shares_GZ, [np.mean(rows, axis=0)])
    else:
        assert not found.shares_GZ.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows: documents_of_topics(rows, 0.0), "threshold of documents is 0"),
        (lambda rows: representative_documents(rows, -1), "-1 documents"),
        (lambda rows: group_shares(rows, ["a"]), "1 groups were given for 6 documents"),
        (lambda rows: cut_dates([], "h"), "period of groups is 'h'"),
    ],
)
def test_errors(call, message):
    with pytest.raises(InputError, match=message):
        call(doc_topics(EXAMPLE))
