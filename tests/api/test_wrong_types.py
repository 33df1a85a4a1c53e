"""Arguments of the wrong type in Python: one line that names the argument and the value."""

import re
import sys

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.yaml_file import read_yaml

BAGS = [["a", "b"], ["b", "c"]]
NOT_WHOLE = [None, 1.5, "2", [2], object()]
NOT_PATHS = [3, 1.5, [3], object(), b"x"]


def check(call, name, value):
    with pytest.raises(ng.InputError, match=re.escape(f"{name} is {value!r} but ")) as caught:
        call(value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def model(arpa):
    return ng.Model.load(arpa, device="cpu")


@pytest.fixture(scope="module")
def lda():
    return ng.LDA(n_components=2, max_iter=2, random_state=1, device="cpu").fit(BAGS)


@pytest.fixture
def counts(tmp_path):
    return ng.count(ng.Lines(["a b", "a"]), 2, output=tmp_path / "counts", device="cpu")


@pytest.mark.parametrize("value", [3, None, 2.5, True, object()])
def test_sentences(model, value):
    check(model.score, "sentences", value)
    check(model.perplexity, "sentences", value)
    check(model.full_scores, "sentence 0", value)
    check(lambda given: model.score(["a", given]), "sentence 1", value)
    assert model.score(iter(["a b"])) == [model.score("a b")]


def test_ids(model):
    ids, ends = np.array([3, 4]), np.array([0, 2])
    assert model.score_ids([3, 4], [0, 2]) == model.score_ids(ids, ends)
    for wrong in (None, 3, 2.5, "x", [None], ["3"], [0.0, 2.0], [[0, 2]], {"a": 1}, object()):
        with pytest.raises(
            ng.InputError, match="^offsets are .* but ids and offsets must be integers in one dimension"
        ):
            model.score_ids(ids, wrong)
        with pytest.raises(ng.InputError, match="^ids are .* but ids and offsets must be integers in one dimension"):
            model.score_ids(wrong, ends)


def test_words(model):
    words = model.vocabulary
    assert words.word(np.int32(3)) == words.word(np.array(3)) == words.word(3)
    for value in NOT_WHOLE:
        check(words.word, "word id", value)
    with pytest.raises(IndexError, match="word id -1 is not one of"):
        words.word(-1)


def test_rows_and_samples(model):
    check(lambda rows: list(model.iter_distributions(["a"], rows=rows)), "rows", sys.maxsize + 1)
    check(lambda top_k: model.sample(["a"], top_k=top_k), "top_k", True)
    check(lambda tokens: model.advance_tokens(model.start(1), tokens), "tokens", None)


def test_counts(counts):
    for value in NOT_WHOLE:
        check(counts.order(2).top, "k", value)
        check(lambda rows: list(counts.order(2).batches(rows)), "batch_rows", value)
        check(counts.part_paths, "order", value)
        check(lambda shard: counts.part_path(2, shard), "shard", value)
        with pytest.raises(ng.InputError, match="^order .* was not counted"):
            counts.order(value)
    check(counts.order(2).top, "k", -1)
    assert counts.order(1).top(10**30) == [("a", 2), ("b", 1)]
    assert sum(map(len, counts.order(1).batches(10**30))) == 2


def test_functions(arpa):
    lines = ng.Lines(["a b"])
    for value in NOT_PATHS:
        check(lambda output: ng.count(lines, 2, output=output, device="cpu"), "output", value)
        check(lambda output: ng.score(arpa, lines, output, device="cpu"), "output", value)
        check(lambda output: ng.filter("text.jsonl", arpa, output=output, device="cpu"), "output", value)
    for value in [3, "bar", object()]:
        check(lambda progress: ng.count(lines, 2, progress=progress, device="cpu"), "progress", value)
        check(lambda progress: ng.score(arpa, lines, progress=progress, device="cpu"), "progress", value)
    for value in [None, "1", [1], -1, float("nan")]:
        check(lambda seconds: ng.count(lines, 2, checkpoint_seconds=seconds, device="cpu"), "checkpoint_seconds", value)


def test_topics(lda, tmp_path):
    for value in [*NOT_WHOLE, -1]:
        for call in lda.top_words, lda.topics, lambda n: lda.coherence(BAGS, n_words=n):
            check(call, "the number of words of a topic", value)
    for value in [*NOT_PATHS, None]:
        for call in lda.save, lda.load, lda.to_html:
            check(call, "path", value)
    check(lambda title: lda.to_html(tmp_path / "page.html", title), "title", 3)
    for value in [None, ["u_mass"], "u-mass"]:
        check(lambda measure: lda.coherence(BAGS, measure), "measure", value)


def test_paths_with_nul(tmp_path):
    with pytest.raises(ng.InputError, match=r"^path is 'a\\x00b' but no path has NUL characters; correct it$"):
        ng.Model.load("a\0b")
    with pytest.raises(
        ng.InputError, match=r"^'a\\x00b' cannot be read \(embedded null byte\); give the path of a YAML"
    ):
        read_yaml("a\0b", "a mapping")
