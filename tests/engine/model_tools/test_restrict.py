"""Models restricted to the words of a text: on random models, and against KenLM's filter."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.ngrams.phrases import Phrases
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.model_tools.backoff_nodes import nodes_of
from mgpu_ngram.engine.model_tools.restrict import by_line, read_allowed, restrict
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.engine.trie.write_model import write_model
from mgpu_ngram.kernels.dispatch import to_host

WORDS = Words.of(["<unk>", "<s>", "</s>", "a", "b", "<c>", "d>", "e"])


@pytest.mark.parametrize("mode", ["single", "union"])
@pytest.mark.parametrize(("seed", "whole"), [(1, True), (2, False)])
def test_random_models(seed, whole, mode, tmp_path, plain_backoff, to_device):
    """Lines that matter lie more than 64 lines apart; `<c>` is in all lines, `d>` is a word as others."""
    (tmp_path / "words").write_text("a\tb x\n" + "x\n" * 80 + "b d>\n\nd>")
    plain = plain_backoff.random(seed, words=len(WORDS), whole=whole)
    allowed = read_allowed(str(tmp_path / "words"), WORDS)
    trie, words = restrict(plain.trie(to_device), WORDS, allowed, mode)
    assert list(words) == ["<unk>", "<s>", "</s>", "a", "b", "<c>", "d>"]
    ids = {"a": 3, "b": 4, "d>": 6}
    lines = [{"a", "b", "d>"}] if mode == "single" else [{"a", "b"}, {"b", "d>"}]
    sets = [{0, 1, 2, 5} | {ids[w] for w in line} for line in lines]
    found = plain_backoff.of(trie.map_arrays(to_host))
    assert found.probs == {g: np.float32(p) for g, p in plain.probs.items() if any(set(g) <= s for s in sets)}
    kept = {h: np.float32(plain.backoffs.get(h, 0)) for h in found.probs if len(h) < 4}
    assert found.backoffs == kept


def test_no_words(tmp_path, plain_backoff):
    (tmp_path / "words").write_text("\n")
    plain = plain_backoff.random(1, words=len(WORDS))
    for mode in "single", "union":
        trie, words = restrict(plain.trie(), WORDS, read_allowed(str(tmp_path / "words"), WORDS), mode)
        assert list(words) == ["<unk>", "<s>", "</s>", "<c>"] and trie.order == 4


def lines(path):
    return sorted(line for line in path.read_bytes().split(b"\n") if line)


@pytest.mark.parametrize(
    ("mode", "context", "phrases", "text", "expected"),
    [
        ("single", False, False, "vocab.txt", "a.single.arpa"),
        ("single", True, False, "vocab.txt", "a.single_context.arpa"),
        ("union", False, False, "sent12.txt", "a.union.arpa"),
        ("union", True, False, "sent12.txt", "a.union_context.arpa"),
        ("union", False, True, "phrases12.txt", "a.union_phrase.arpa"),
    ],
)
def test_what_kenlm_keeps(mode, context, phrases, text, expected, golden_filter, tmp_path):
    """The same lines of text; KenLM keeps the order of its input."""
    model, folder = open_model(golden_filter / "a.arpa"), golden_filter
    allowed = read_allowed(str(folder / text), model.words, phrases)
    write_model(tmp_path / "made.arpa", *restrict(model.trie, model.words, allowed, mode, context), "arpa", 1)
    assert lines(tmp_path / "made.arpa") == lines(folder / expected)


@pytest.mark.parametrize(
    ("phrases", "text", "expected"), [(False, "sent12.txt", "multi"), (True, "phrases12.txt", "multi_phrase")]
)
def test_the_models_of_lines_that_kenlm_writes(phrases, text, expected, golden_filter, tmp_path):
    model, folder = open_model(golden_filter / "a.arpa"), golden_filter
    allowed = read_allowed(str(folder / text), model.words, phrases)
    found = list(by_line(nodes_of(model.trie), model.trie, model.words, allowed))
    assert len(found) == 12
    for i, (trie, words) in enumerate(found):
        write_model(tmp_path / "made.arpa", trie, words, "arpa", 1)
        assert lines(tmp_path / "made.arpa") == lines(folder / expected / f"a.{i}")


def test_models_of_many_lines(plain_backoff, to_device, tmp_path):
    """150 lines are three groups; the models are those of files with one line each."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["a", "b", "d>", "e", "x"], rng.integers(0, 5))) for _ in range(150)]
    (tmp_path / "words").write_text("\n".join(texts))
    trie = plain_backoff.random(3, words=len(WORDS), whole=False).trie(to_device)
    made = by_line(nodes_of(trie), trie, WORDS, read_allowed(str(tmp_path / "words"), WORDS), context=True)
    for text, (found, words) in zip(texts, made, strict=True):
        (tmp_path / "line").write_text(text + "\n")
        expected, same = restrict(trie, WORDS, read_allowed(str(tmp_path / "line"), WORDS), "single", context=True)
        assert words == same
        assert plain_backoff.of(found.map_arrays(to_host)).probs == plain_backoff.of(expected.map_arrays(to_host)).probs


def test_phrases_by_hand():
    phrases = Phrases([(1, 2), (3,), (4, 5, 6)])
    for words in [(), (1, 2), (2, 3), (2, 4), (2, 3, 4), (2, 3, 4, 5), (5,), (4, 5, 6, 4, 5, 6), (6, 1, 2, 3, 3, 1)]:
        assert phrases.allow(words), words
    for words in [(1, 3), (3, 2), (2, 5), (5, 1), (4, 6), (2, 3, 5), (7,), (2, 7), (-1,)]:
        assert not phrases.allow(words), words


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
def test_phrases_are_cut_from_concatenations(phrases, words):
    """All concatenations that could hold the words: a phrase more at either end than the words are long."""
    whole = {
        tuple(w for phrase in some for w in phrase)
        for n in range(1, len(words) + 2)
        for some in product(phrases, repeat=n)
    }
    n = len(words)
    expected = any(text[i : i + n] == tuple(words) for text in whole for i in range(len(text) - n + 1))
    assert Phrases(phrases).allow(tuple(words)) == expected
