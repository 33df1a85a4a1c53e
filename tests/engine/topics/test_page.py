"""The page of topics: its data, its escapes, and what a browser does with it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from mgpu_ngram.core.bags.topic_model import Priors, TopicModel
from mgpu_ngram.engine.topics.doc_topics import DocTopics, GroupShares, representative_documents
from mgpu_ngram.engine.topics.page import PageOptions, page_data, topic_page
from mgpu_ngram.engine.topics.rows import TopicRows
from mgpu_ngram.engine.topics.table import TopicFacts, topic_table
from mgpu_ngram.engine.topics.words import largest, most_relevant
from tests.support.browser import Browser, find_browser
from tests.support.topic_rows import rows_of_dense

ATTACKS = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "{{script}}",
    '"&quot;\u2028\\u003c',
    "\udc80\x1b[31m",
    "<svg/onload=alert(2)>",
]
TEXT = "</ScRiPt><script>alert(3)</script>"


def model(Z=6, V=200, seed=1):
    """Planted topics: topic z has the words v with v % Z == z, and the first few words are in all."""
    rng = np.random.default_rng(seed)
    topic_of_V, weight_V = np.arange(V) % Z, 40 / (1 + np.arange(V) // Z)
    mean_VZ = np.where(topic_of_V[:, None] == np.arange(Z), weight_V[:, None], 0.05)
    mean_VZ[:4] += 30
    mean_VZ *= np.linspace(1, 2, Z)
    return rows_of_dense(rng.poisson(mean_VZ).astype(np.uint32), 0.01)


def facts_of(rows, seed=2):
    rng = np.random.default_rng(seed)
    shares_DZ = rng.dirichlet(np.full(rows.num_topics, 0.2), 60)
    starts = np.arange(61) * rows.num_topics
    documents = DocTopics(starts, np.tile(np.arange(rows.num_topics), 60), shares_DZ.reshape(-1), rows.num_topics)
    coherence = {"c_v": np.linspace(0.3, 0.7, rows.num_topics)}
    documents_Z = np.bincount(shares_DZ.argmax(1), minlength=rows.num_topics)
    groups = GroupShares([str(2019 + g) for g in range(5)], np.full(5, 12), shares_DZ.reshape(5, 12, -1).mean(1))
    return TopicFacts(documents_Z, coherence, None, representative_documents(documents, 3)), groups


def word(v):
    return ATTACKS[v] if v < len(ATTACKS) else f"word{v}"


@pytest.fixture(scope="module")
def page():
    rows = model()
    facts, groups = facts_of(rows)
    return topic_page(
        rows, word, facts, PageOptions(title="<b>Topics</b> & more", text=lambda d: f"{TEXT} {d}", groups=groups)
    )


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


class Elements(HTMLParser):
    """The elements and addresses of a page, as a parser of HTML sees them."""

    def __init__(self, page):
        super().__init__()
        self.names, self.addresses, self.handlers = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action")]
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def test_words_documents_and_titles_stay_text(page):
    found = Elements(page)
    assert found.names.count("script") == 2 and found.names.count("svg") == 1 and "img" not in found.names
    assert not found.addresses and not found.handlers
    assert "<title>&lt;b&gt;Topics&lt;/b&gt; &amp; more</title>" in page
    data = data_of(page)
    assert {ATTACKS[0], ATTACKS[1], ATTACKS[2], ATTACKS[5]} <= set(data["words"])
    assert "�[31m" in "".join(data["words"]) and page.encode()  # no surrogates
    assert all(text.startswith(TEXT) for text in data["texts"].values()) and len(data["texts"]) > 3


def test_the_page_names_no_other_place(page):
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp", without_namespace)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize("lambda_", [0.0, 0.35, 0.6, 1.0])
def test_the_data_give_the_most_relevant_words(lambda_):
    rows = model()
    data = data_of(topic_page(rows, str))
    expected = most_relevant(rows, 30, lambda_)
    for topic in data["topics"]:
        words, counts = np.array(topic["words"]), np.array(topic["counts"])
        log_prob = np.log((counts + data["beta"]) * topic["scale"])
        share = np.array(data["totals"])[words] / data["tokens"]
        score = lambda_ * log_prob + (1 - lambda_) * (log_prob - np.log(share))
        best = largest(score, data["shown"])
        assert np.allclose(score[best][:20], expected.scores_Zn[topic["id"]][:20])


def test_priors_of_seed_words_are_no_tokens():
    """They count for the probabilities alone; a seed word without a token is not among the words of a topic."""
    counts_VZ = np.array([[3, 0], [0, 2], [0, 0]], np.uint32)
    seeds = {1: np.array([900.5, 0.5], np.float32), 2: np.array([0.5, 70.5], np.float32)}
    rows = TopicRows.of_model(TopicModel.of_counts(counts_VZ, Priors(np.ones(2), 0.5, seeds)))
    for part in rows, rows.take(np.array([0, 1])):
        assert part.totals_Z.tolist() == [3, 2] and part.shares_Z.tolist() == [0.6, 0.4]
        assert part.word_totals_V.tolist() == [3, 2, 0]
        assert part.probabilities(0) == pytest.approx(np.array([3.5, 900.5, 0.5]) / 904.5)
        assert part.probabilities(1) == pytest.approx(np.array([0.5, 2.5, 70.5]) / 73.5)
    table = topic_table(rows, "abc".__getitem__, 3).topics
    assert [(row.topic, row.tokens, row.words) for row in table] == [(0, 3, ["b", "a"]), (1, 2, ["b", "a"])]
    data = page_data(rows, "abc".__getitem__, TopicFacts(), PageOptions())
    assert (data["tokens"], data["words"], data["totals"]) == (5, ["a", "b"], [3, 2])
    for topic, words, counts in zip(data["topics"], ([0, 1], [1]), ([3, 0], [2]), strict=True):
        assert (topic["words"], topic["counts"]) == (words, counts)
        weights = np.array(counts) + topic["excess"] + data["beta"]
        assert weights * topic["scale"] == pytest.approx(rows.probabilities(topic["id"])[words])


def test_topics_by_hand():
    rows = rows_of_dense(np.array([[3, 0, 0], [1, 8, 0], [0, 0, 2]], np.uint32), np.array([0.5, 0.25, 0.25]))
    data = data_of(topic_page(rows, "abc".__getitem__, options=PageOptions(max_topics=2)))
    assert (data["topics_of"], data["vocabulary"], data["tokens"]) == (3, 3, 14)
    assert data["words"] == ["a", "b"] and data["totals"] == [3, 9] and data["beta"] == [0.5, 0.25]
    first, second = data["topics"]
    assert (first["id"], first["words"], first["counts"]) == (1, [1], [8])
    assert (second["id"], second["words"], second["counts"]) == (0, [0, 1], [3, 1])
    assert first["scale"] == 1 / 9 and second["near"] == [[0, first["near"][0][1]]]
    assert first["x"] == pytest.approx(-second["x"], abs=1e-4) and data["groups"] is None


def test_a_model_without_words():
    data = data_of(topic_page(rows_of_dense(np.zeros((3, 2), np.uint32), 0.5), str))
    assert data["words"] == [] and [topic["words"] for topic in data["topics"]] == [[], []]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    if not path:
        pytest.skip("no Chromium is installed; install one or set CHROME_BIN")
    with Browser(path, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def opened(browser, page, tmp_path):
    """The browser with the page."""
    path = tmp_path / "topics.html"
    path.write_text(page, encoding="utf-8")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(path.as_uri())
    yield browser
    assert browser.errors == [] and browser.requests == [path.as_uri()]


BARS = "[...document.querySelectorAll('#words button')].map(b => b.textContent)"
TITLE = "document.querySelector('#topic-title').textContent"


def test_a_click_on_a_topic_changes_the_bars(opened, page):
    data = data_of(page)
    before = opened.run(BARS)
    assert len(before) == 30 and opened.run("document.querySelectorAll('#map circle').length") == 6
    assert opened.run(TITLE) == f"Topic {data['topics'][0]['id']}"
    opened.click("#dot-3 circle")
    after = opened.run(BARS)
    assert after != before and opened.run(TITLE) == f"Topic {data['topics'][3]['id']}"
    rows = model()
    best = most_relevant(rows, 30).words_Zn[data["topics"][3]["id"]]
    assert set(after) <= set(data["words"]) and after[0] == word(int(best[0])).replace("\udc80\x1b", "��")
    opened.click("#near button")
    assert opened.run(TITLE) == f"Topic {data['topics'][data['topics'][3]['near'][0][0]]['id']}"
    opened.click("#list tr:last-child")
    assert opened.run(TITLE) == f"Topic {data['topics'][5]['id']}"


def test_the_slider_ranks_words_anew(opened):
    before = opened.run(BARS)
    opened.enter("#lambda", "1")
    after = opened.run(BARS)
    assert after != before and ATTACKS[0] in after  # a word that all topics have
    assert opened.run("document.querySelector('#lambda-value').textContent") == "1.00"
    assert opened.run("location.hash").endswith("lambda=1.00")


def test_keys_select_topics(opened, page):
    ids = [topic["id"] for topic in data_of(page)["topics"]]
    opened.run("document.querySelector('#map').focus()")
    for key, place in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("End", 5), ("ArrowRight", 0)):
        opened.press(key)
        assert opened.run(TITLE) == f"Topic {ids[place]}"
        assert opened.run("document.querySelector('#map').getAttribute('aria-activedescendant')") == f"dot-{place}"
        assert opened.run("document.querySelectorAll('[aria-selected=true]').length") == 1


def test_documents_groups_and_marked_words(opened):
    assert opened.run("document.querySelectorAll('#documents li').length") == 3
    assert TEXT in opened.run("document.querySelector('#documents').textContent")
    assert opened.run("document.querySelectorAll('#groups rect').length") == 5
    opened.click("#words li:nth-child(2) button")
    assert opened.run("document.querySelector('#words button[aria-pressed=true]') !== null")
    assert 1 <= opened.run("document.querySelectorAll('#map .with-word').length") <= 6
    opened.enter("#filter", "WORD60")
    assert opened.run("[...document.querySelectorAll('#list tr')].filter(r => !r.hidden).length") == 1


def test_nothing_of_the_model_becomes_markup(opened):
    assert opened.run("document.querySelectorAll('img, #words svg, #documents script').length") == 0
    assert opened.run("document.querySelector('h1').textContent") == "<b>Topics</b> & more"


def test_a_page_without_topics(browser, tmp_path):
    path = tmp_path / "empty.html"
    path.write_text(topic_page(rows_of_dense(np.zeros((2, 2), np.uint32), 0.5), str), encoding="utf-8")
    browser.errors.clear()
    browser.open(path.as_uri())
    assert browser.run("document.querySelector('#summary').textContent") == "2 topics · 2 words · 0 tokens"
    assert browser.errors == []
