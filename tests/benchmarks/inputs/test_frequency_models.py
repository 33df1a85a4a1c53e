"""The models of the benchmarks hold relative frequencies of their text; generated text has the n-grams of English."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.benchmarks.inputs import frequency_models
from mgpu_ngram.benchmarks.inputs.frequency_models import (
    VOCABULARY,
    ngrams_of,
    seen_words,
    trie_of,
    write_model,
    zipf_codes,
    zipf_words,
)
from mgpu_ngram.core.ngrams.trie import TRIE_ARRAYS
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.trie.build import index_of
from mgpu_ngram.kernels.score.score_tokens import TrieValues, score_tokens

pytestmark = pytest.mark.slow

UNK, S, E, A, B, C = range(6)  # <unk>, <s>, </s> and three words
SYMBOLS = 6
texts = st.lists(st.lists(st.integers(A, C), max_size=6), min_size=1, max_size=8)


def codes_of(sentences):
    return np.array([code for words in sentences for code in [*(w + 1 for w in words), 0]], np.uint32)


def zipf_model(tokens, heldout_tokens, order=5, vocabulary=VOCABULARY, seed=0, xp=np):
    """Return the trie of a model of generated text, its words, and more text of the same language in its codes."""
    codes_T = zipf_codes(tokens, vocabulary, seed, xp)
    code_V, words = seen_words(codes_T, zipf_words(vocabulary))
    trie = trie_of(code_V[codes_T], len(words), order)
    return trie, words, code_V[zipf_codes(heldout_tokens, vocabulary, seed + 1, xp)]


def sentences_of(codes_T):
    ends = np.flatnonzero(codes_T == 0) + 1
    return [codes_T[a : b - 1].tolist() for a, b in pairwise([0, *ends.tolist()])]


def values_of(levels):
    """Return {n-gram: (10 ** prob, 10 ** backoff)}; each n-gram occurs once."""
    values = {}
    for n, level in enumerate(levels, 1):
        assert level.ids.dtype == np.uint32 and level.prob.dtype == np.float32 and level.ids.shape == (len(level), n)
        backoff = np.full(len(level), np.nan) if level.backoff is None else 10.0**level.backoff
        assert not {*map(tuple, level.ids.tolist())} & {*values}
        values |= dict(zip(map(tuple, level.ids.tolist()), zip(10.0**level.prob, backoff, strict=True), strict=True))
    assert len(values) == sum(map(len, levels))
    return values


def oracle(sentences, order):
    """Return the same values, computed with dictionaries."""
    counts = Counter()
    for words in sentences:
        padded = [S, *words, E]
        counts.update(tuple(padded[i : i + n]) for n in range(1, order + 1) for i in range(len(padded) - n + 1))
    for word in range(SYMBOLS):
        counts[word,] = max(counts[word,], 1)
    total = sum(count for ngram, count in counts.items() if len(ngram) == 1 and ngram != (S,))
    values = {}
    for ngram, count in counts.items():
        prob = count / (counts[ngram[:-1]] if len(ngram) > 1 else total)
        successors = sum(longer[:-1] == ngram for longer in counts)
        backoff = 0.5 * successors / count if successors else 1
        values[ngram] = (1 if ngram == (S,) else prob), (backoff if len(ngram) < order else math.nan)
    return values


def test_values_by_hand():
    found = values_of(list(ngrams_of(codes_of([[A, B, A], [B, A]]), 5, 3)))
    no = math.nan
    expected = {
        (UNK,): (1 / 8, 1), (S,): (1, 1 / 2), (E,): (2 / 8, 1), (A,): (3 / 8, 1 / 3), (B,): (2 / 8, 1 / 4),
        (S, A): (1 / 2, 1 / 2), (S, B): (1 / 2, 1 / 2), (A, B): (1 / 3, 1 / 2), (A, E): (2 / 3, 1), (B, A): (1, 1 / 4),
        (S, A, B): (1, no), (S, B, A): (1, no), (A, B, A): (1, no), (B, A, E): (1, no),
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for ngram, value in expected.items():
        assert found[ngram] == pytest.approx(value, rel=1e-6, nan_ok=True), ngram


def test_probabilities_are_rounded_logarithms():
    [first, *_] = ngrams_of(codes_of([[A, B, A], [B, A]]), 5, 2)
    assert first.prob[A] == np.float32(math.log10(3 / 8)) and first.backoff[A] == np.float32(math.log10(1 / 3))


@given(texts, st.integers(1, 5))
def test_values_match_dictionaries(sentences, order):
    levels = list(ngrams_of(codes_of(sentences), SYMBOLS, order))
    found, expected = values_of(levels), oracle(sentences, order)
    assert len(levels) == order and found.keys() == expected.keys()
    for ngram, value in expected.items():
        assert found[ngram] == pytest.approx(value, rel=1e-6, nan_ok=True), ngram


@given(texts, st.integers(2, 5))
def test_frequencies_after_each_history_sum_to_one(sentences, order):
    sums = Counter()
    for level in ngrams_of(codes_of(sentences), SYMBOLS, order):
        assert (level.prob <= 0).all() and np.isfinite(level.prob).all()
        assert level.backoff is None or (np.isfinite(level.backoff) & (level.backoff <= 0)).all()
        for ngram, prob in zip(map(tuple, level.ids.tolist()), level.prob.tolist(), strict=True):
            sums[ngram[:-1]] += 10**prob if ngram != (S,) else 0
    assert max(abs(total - 1) for total in sums.values()) < 1e-5


@given(texts, st.integers(1, 5))
def test_the_trie_has_every_ngram_of_the_text(sentences, order):
    codes_T = codes_of(sentences)
    trie = trie_of(codes_T, SYMBOLS, order, fanout=2)
    by_order = Counter(map(len, oracle(sentences, order)))
    assert np.diff(trie.starts).tolist() == [by_order[n] for n in range(1, order + 1)]
    matched_T = score(trie, codes_T)[1]
    assert matched_T.tolist() == [min(order, t + 2) for words in sentences for t in range(len(words) + 1)]


def score(trie, codes_T):
    return score_tokens(index_of(trie), TrieValues(trie.prob_G, trie.backoff_M), trie.order, S, E, codes_T)


def test_words_that_a_text_lacks_become_unknown():
    words = Words.of(["<unk>", "<s>", "</s>", "a", "bb", "", "dddd"])
    code_V, seen = seen_words(np.array([5, 0, 7, 5, 0], np.uint32), words)
    assert list(seen) == ["<unk>", "<s>", "</s>", "bb", "dddd"]
    assert code_V.dtype == np.uint32 and code_V.tolist() == [0, 1, 2, 3, 1, 4, 1, 5]


def test_arpa_by_hand(tmp_path):
    write_model(tmp_path / "model.arpa", codes_of([[A, A]]), Words.of(["<unk>", "<s>", "</s>", "a"]), 2)
    sections = (tmp_path / "model.arpa").read_text().split("\n\n")
    assert sections[0] == "\\data\\\nngram 1=4\nngram 2=3" and sections[3] == "\\end\\\n"
    rows = [row.split("\t") for row in [*sections[1].split("\n")[1:], *sections[2].split("\n")[1:]]]
    found = {row[1]: [10 ** float(x) for x in (row[0], *row[2:])] for row in rows}
    expected = {
        "<unk>": [1 / 4, 1], "<s>": [1, 1 / 2], "</s>": [1 / 4, 1], "a": [2 / 4, 1 / 2],
        "<s> a": [1], "a a": [1 / 2], "a </s>": [1 / 2],
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for ngram, value in expected.items():
        assert found[ngram] == pytest.approx(value, rel=1e-6), ngram


TOKENS = 190_000  # like the English text that generated text is compared with


@pytest.fixture(scope="module")
def stream():
    return zipf_codes(TOKENS)


def test_sentences(stream):
    lengths = [len(words) for words in sentences_of(stream)]
    assert stream.dtype == np.uint32 and stream[-1] == 0 and len(lengths) == TOKENS // 20
    assert min(lengths) == 10 and max(lengths) == 30 and sum(lengths) == pytest.approx(TOKENS, rel=0.01)
    assert stream[stream > 0].min() == A + 1  # no special words


def test_generated_text_has_the_ngrams_of_english(stream):
    sentences = sentences_of(stream)
    share_N = []
    for n in range(1, 6):
        windows = [tuple(words[i : i + n]) for words in sentences for i in range(len(words) - n + 1)]
        share_N.append(len(set(windows)) / len(windows))
    # The shares of as many words of the English Wikipedia.
    assert share_N == pytest.approx([0.10, 0.53, 0.85, 0.96, 0.99], abs=0.04)


def test_the_language_is_fixed_and_texts_differ(stream):
    other = zipf_codes(TOKENS, seed=1)
    assert not {*map(tuple, sentences_of(stream))} & {*map(tuple, sentences_of(other))}
    pairs = [Counter(pairwise(codes_T.tolist())) for codes_T in (stream, other)]
    for pair, count in pairs[0].most_common(30):
        assert pairs[1][pair] == pytest.approx(count, rel=0.5), pair
    independent = np.random.default_rng(0).permutation(stream)
    share = [
        sum(count for pair, count in p.items() if pair in pairs[0])
        for p in (pairs[1], Counter(pairwise(independent.tolist())))
    ]
    assert share[0] > 1.2 * share[1]


def test_blocks_do_not_change_the_text(monkeypatch, stream):
    monkeypatch.setattr(frequency_models, "BLOCK_SENTENCES", 700)
    assert np.array_equal(zipf_codes(TOKENS), stream)
    assert np.array_equal(zipf_codes(1_000), stream[: len(zipf_codes(1_000))])


def test_no_tokens():
    assert zipf_codes(0).tolist() == []


def test_a_small_language():
    words = zipf_words(40)
    stream = zipf_codes(2_000, vocabulary=40)
    assert len(words) == 43 == len({*words}) and list(words)[:3] == ["<unk>", "<s>", "</s>"]
    assert A + 1 <= stream[stream > 0].min() and stream.max() <= 43


def test_scores_of_seen_and_unseen_text(stream):
    trie, words, heldout_T = zipf_model(TOKENS, 20_000, order=4)
    assert trie.symbols == len(words) == 3 + len({*stream.tolist()} - {0}) and trie.order == 4
    heldout = zipf_codes(20_000, seed=1)
    all_words = zipf_words()
    spelt = [all_words.symbol(code - 1) if code else b"" for code in heldout.tolist()]
    codes = [words.id(word) + 1 if word else 0 for word in spelt]
    assert heldout_T.tolist() == codes and 0.01 < (heldout_T == 1).mean() < 0.2
    prob_T, matched_T = score(trie, heldout_T)
    assert np.isfinite(prob_T).all() and (prob_T <= 0).all()
    assert np.bincount(matched_T, minlength=5)[1:].min() > len(heldout_T) / 100  # matches of every order


def test_a_model_is_reproducible():
    first, again, other = (zipf_model(20_000, 1_000, vocabulary=5_000, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(getattr(first[0], name), getattr(again[0], name)) for name in TRIE_ARRAYS)
    assert first[1] == again[1] and np.array_equal(first[2], again[2])
    assert first[0].starts == again[0].starts != other[0].starts


@pytest.mark.gpu
def test_a_gpu_makes_the_same_model(tmp_path):
    import cupy

    trie, words, heldout_T = zipf_model(100_000, 10_000)
    gpu_trie, gpu_words, gpu_heldout_T = zipf_model(100_000, 10_000, xp=cupy)
    assert gpu_words == words and gpu_trie.starts == trie.starts and np.array_equal(gpu_heldout_T.get(), heldout_T)
    for name in TRIE_ARRAYS:
        found, expected = getattr(gpu_trie, name).get(), getattr(trie, name)
        assert found.dtype == expected.dtype and np.array_equal(found, expected), name
    codes_T, words = codes_of([[A, B, A], [], [B, A]]), Words.of(["<unk>", "<s>", "</s>", "a", "b"])
    write_model(tmp_path / "cpu", codes_T, words, 3)
    write_model(tmp_path / "gpu", cupy.asarray(codes_T), words, 3)
    assert (tmp_path / "cpu").read_bytes() == (tmp_path / "gpu").read_bytes()
