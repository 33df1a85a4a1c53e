"""The table of topics, as JSON and on a terminal."""

import json

import numpy as np
import pytest

from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.topics.distances import nearest_of
from mgpu_ngram.engine.topics.doc_topics import DocTopics, GroupShares, representative_documents
from mgpu_ngram.engine.topics.table import TopicFacts, TopicTable, topic_table
from mgpu_ngram.stages.topic_output import show_groups, show_topic, show_topics
from tests.support.topic_rows import rows_of_dense

WORDS = Words.of(["<unk>", "ball", "goal", "bank", b"cr\xe9dit", "\x1b[31mred", "the"])
COUNTS_VZ = np.array([[0, 0], [0, 6], [0, 3], [9, 0], [5, 0], [1, 0], [9, 4]], np.uint32)


@pytest.fixture
def rows():
    return rows_of_dense(COUNTS_VZ, 0.1)


@pytest.fixture
def table(rows):
    documents = DocTopics(np.array([0, 1, 3, 4]), np.array([0, 0, 1, 1]), np.array([4, 3, 1, 9]), 2)
    facts = TopicFacts(
        np.array([2, 1]),
        {"c_v": np.array([0.25, 0.5])},
        nearest_of(rows, 1),
        representative_documents(documents, 2),
    )
    return topic_table(rows, WORDS.word, 3, facts)


def test_by_hand(table):
    first, second = table.topics
    assert (first.topic, first.tokens, first.documents, first.share) == (0, 24, 2, 24 / 37)
    assert first.words == ["bank", "the", "cr�dit"]
    assert second.words == ["ball", "the", "goal"] and second.relevant_words == ["ball", "goal", "the"]
    assert first.frex_words[0] == "bank"
    assert (first.examples, second.examples) == ([(0, 1.0), (1, 0.75)], [(2, 1.0), (1, 0.25)])
    assert first.nearest[0][0] == 1 and first.coherence == {"c_v": 0.25}


def test_json(table, rows):
    read = json.loads(json.dumps(table.as_json()))
    assert read["lambda"] == 0.6 and [topic["topic"] for topic in read["topics"]] == [0, 1]
    assert read["topics"][1]["documents"] == 1 and read["topics"][1]["examples"] == [[2, 1.0], [1, 0.25]]
    plain = topic_table(rows, WORDS.word, 2).as_json()["topics"][0]
    assert set(plain) == {"topic", "share", "tokens", "words", "relevant_words", "frex_words"}


def test_words_without_tokens_and_control_characters_are_not_shown(rows):
    words = topic_table(rows, WORDS.word, 99).topics[0].words
    assert len(words) == 6 and "<unk>" not in words and "�[31mred" in words


def test_terminal(table, capsys):
    show_topics(table)
    assert capsys.readouterr().out.splitlines() == [
        "topic   share  documents  such as    c_v  nearest  words",
        "    0  64.86%          2  0 1      0.250  1        bank the cr�dit",
        "    1  35.14%          1  2 1      0.500  0        ball goal the",
    ]
    show_topics(table, ("probability", "frex"), limit=1)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    0  64.86%          2  0 1      0.250  1        probability  bank the cr�dit",
        "                                                   frex         bank cr�dit the",
        "1 smaller topic not shown",
    ]
    show_topic(table.topics[0], lambda document: f"text of\n {document}")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "topic 0: 64.86% of tokens, 2 documents"
    assert out[-2:] == ["document 0 (100%): text of 0", "document 1 (75%): text of 1"]


def test_groups_on_a_terminal(table, capsys):
    show_groups(GroupShares(["2020", ""], np.array([1, 1]), np.array([[0.25, 0.75], [1, 0]])), table)
    assert capsys.readouterr().out.splitlines() == [
        "topic   2020  (none)  words",
        "    0  25.0%  100.0%  bank the cr�dit",
        "    1  75.0%    0.0%  ball goal the",
    ]
    share = np.linspace(0, 1, 8)
    show_groups(GroupShares(list("abcdefgh"), np.ones(8, int), np.stack([share, 1 - share], axis=1)), table)
    out = capsys.readouterr().out.splitlines()
    assert out[2].split()[:4] == ["0", "100.0%", "h", "▁▂▃▄▅▆▇█"] and out[3].split()[2:4] == ["a", "█▇▆▅▄▃▂▁"]


def test_an_empty_table(capsys):
    show_topics(TopicTable([]))
    assert capsys.readouterr().out.strip() == "topic  share  words"
