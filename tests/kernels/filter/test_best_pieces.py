"""Sentences cut into pieces by kernels, by hand and beside every cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.word_table import index_words
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.filter.best_pieces import MAX_SUM, WordLookup, best_pieces, make_pieces
from mgpu_ngram.kernels.filter.piece_text import PieceRules, piece_text, plain_characters


def cut(sentences, scores, to_device, spelt=()):
    """Return the codes of each sentence, None if it failed; pieces and their scores have the codes 2, 3, ..."""
    pieces = [b"<unk>", *(piece.encode() for piece in scores)]
    score_P = np.array([0, *scores.values()], np.float32)
    code_P = np.array([0, *(0 if p in spelt else i + 2 for i, p in enumerate(scores))], np.uint32)
    vocabulary = [b"<unk>", *pieces[1:], b"zz"]
    offsets_V = np.cumsum([0, *map(len, vocabulary)], dtype=np.int64)
    data = np.frombuffer(b"".join(vocabulary), np.uint8)
    least = float(score_P.min()) - 10
    made = make_pieces(pieces, score_P, np.arange(len(pieces)) > 0, code_P, 0, least, to_device)
    words = WordLookup(*map(to_device, (offsets_V, data, index_words(offsets_V, data)[0])))
    parts = [sentence.encode() for sentence in sentences]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    text = np.frombuffer(b"".join(parts), np.uint8)
    failed = to_device(np.zeros(len(parts), bool))
    codes_T, failed_S = map(to_host, best_pieces(to_device(text), to_device(ends), failed, made, words))
    found = iter(np.split(codes_T, np.flatnonzero(codes_T == 0) + 1))
    return [None if bad else next(found)[:-1].tolist() for bad in failed_S]


def test_by_hand(to_device):
    """The pieces a 2, b 3, ab 4; z and é are unknown, neighbours are one piece, and the vocabulary has zz."""
    scores = {"a": -1.0, "b": -1.0, "ab": -2.5}
    assert cut(["ab", "", "aab"], scores, to_device) == [[2, 3], [], [2, 2, 3]]
    assert cut(["ab"], scores | {"ab": -1.9}, to_device) == [[4]]
    assert cut(["ab"], scores | {"ab": -2.0}, to_device) == [[4]], (
        "of equal sums, that of the candidate that came first"
    )
    assert cut(["azz", "zéa", "zzb"], scores, to_device) == [[2, 5], [1, 2], [5, 3]]
    assert cut(["z z"], scores, to_device) == [[1, 1]], "an unknown piece with white space inside is two words"
    assert cut(["ab"], {"ab": -1.0, "b": -5.0}, to_device, spelt=("ab",)) == [[2]]


def test_sums_that_the_library_shifts(to_device):
    most = int(MAX_SUM / 8) + 2
    assert cut(["a" * most, "a"], {"a": -8.0}, to_device) == [None, [2]]
    words = ["\u2581a" * size for size in (most, most - 5, 1)]
    assert cut(words, {"\u2581a": -8.0}, to_device) == [None, [2] * (most - 5), [2]]


def test_words_of_a_sentence(to_device):
    """A piece may cross a space; unknown pieces of two words are one."""
    assert cut(["a\u2581b"], {"a": -5.0, "\u2581b": -5.0, "a\u2581b": -9.0}, to_device) == [[4]]
    scores = {"a": -1.0, "\u2581": -3.0, "\u2581\u2581": -1.0, "\u2581a": -2.0}
    assert cut(["a\u2581\u2581a", "\u2581a\u2581a"], scores, to_device) == [[2, 4, 2], [5, 5]]
    assert cut(["z\u2581z", "\u2581zz\u2581az\u2581"], {"\u2581a": -1.0}, to_device) == [[1], [1, 2, 1]]
    assert cut(["z z a"], {" a": -1.0}, to_device) == [[1, 1, 2]]
    for size in (31, 32, 33, 64, 100):
        assert cut(["z" * size + "a", "a" * size], {"a": -1.0}, to_device) == [[1, 2], [2] * size]


def test_sums_run_from_the_beginning(to_device):
    """After -66000, float32 numbers are 1/128 apart: -2.001 becomes -2, and of equal sums the first one wins."""
    scores = {"\u2581c": -22000.0, "\u2581a": -1.0, "b": -1.0, "\u2581ab": -2.001}
    sentences = ["\u2581ab", "\u2581c\u2581c\u2581c\u2581ab", "\u2581c\u2581c\u2581ab\u2581ab"]
    assert cut(sentences, scores, to_device) == [[3, 4], [2, 2, 2, 5], [2, 2, 5, 5]]


def test_a_sum_may_reach_the_greatest(to_device):
    """The sum after a sentence may be any."""
    scores = {"\u2581": -MAX_SUM / 2, "c": 0.0}
    assert cut(["\u2581c\u2581c\u2581", "\u2581c\u2581c\u2581c", "c"], scores, to_device) == [
        [2, 3, 2, 3, 2],
        None,
        [3],
    ]
    scores = {"\u2581a": 60_000.0, "\u2581": 0.0, "c": -60_000.0}
    assert cut(["\u2581a\u2581ccc"], scores, to_device) == [[2, 3, 4, 4, 4]], "the second word alone would fail"


def test_no_sentence_has_codes(to_device):
    assert cut(["\u2581c" * 9], {"\u2581c": -MAX_SUM}, to_device) == [None]
    assert cut(["", ""], {"\u2581c": -1.0}, to_device) == [[], []]


@pytest.mark.parametrize("seed", range(6))
def test_against_plain_float32(seed, to_device):
    """Near ties in words after great sums, in short words and in one of 20,000 letters."""
    rng = np.random.default_rng(seed)
    marks = "\u2581abc" if seed % 2 else " abc"
    names = {"".join(rng.choice(list("abc"), n)) for n in rng.integers(1, 5, 40)} | set("abc")
    names |= {marks[0] + name for name in list(names)[::2]} | {marks[0]}
    scores = {name: float(np.float32(-len(name) - rng.integers(3) * 1e-4)) for name in sorted(names)}
    scores["c"] = -300.0
    sentences = ["".join(rng.choice(list(marks), n)) for n in rng.integers(0, 400, 60)]
    sentences.append(f"c{marks[0]}{'ab' * 10_000}")
    for sentence, codes in zip(sentences, cut(sentences, scores, to_device), strict=True):
        assert codes == [2 + list(scores).index(piece) for piece in plain_path(sentence, scores)]


def plain_path(sentence, scores):
    """Return the pieces of a sentence without unknown letters, whose sum stays below MAX_SUM."""
    scores = {name: np.float32(score) for name, score in scores.items()}
    longest = max(map(len, scores))
    best = [(np.float32(0), 0), *[None] * len(sentence)]
    for start in range(len(sentence)):
        for end in range(start + 1, min(start + longest, len(sentence)) + 1):
            if (score := scores.get(sentence[start:end])) is not None:
                total = best[start][0] + score
                if best[end] is None or total > best[end][0]:
                    best[end] = total, start
    pieces, end = [], len(sentence)
    while end:
        start = best[end][1]
        pieces.append(sentence[start:end])
        end = start
    return pieces[::-1]


def test_pairs_of_characters():
    """Of these pieces, 4 pairs are known: ab, bc, \u2581a and \u2581中; the piece ed is not used."""
    pieces = [piece.encode() for piece in ("abc", "\u2581", "bc", "\u2581a", "\u2581中", "ed", "d")]
    used = np.array([piece != b"ed" for piece in pieces])
    scores, codes = np.arange(7, dtype=np.float32), np.ones(7, np.uint32)
    made = make_pieces(pieces, scores, used, codes, 0, -20.0, lambda array: array)
    assert made.greatest_score == 20 and np.bitwise_count(made.pairs_X).sum() == 4
    nothing = make_pieces([b"ab"], scores[:1], used[5:6], codes[:1], 0, -20.0, lambda array: array)
    assert not nothing.pairs_X.any() and nothing.pairs_X.shape == made.pairs_X.shape


@settings(max_examples=60)
@given(
    st.lists(st.text("ab", min_size=0, max_size=7), max_size=5),
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.sampled_from([-1.0, -2.0, -3.5]), min_size=1),
)
def test_the_best_of_all_cuts(sentences, scores):
    """Of a sentence without unknown letters the sum is that of the best cut."""
    known = scores | {letter: scores.get(letter, -4.0) for letter in "ab"}
    names = list(known)
    for sentence, codes in zip(sentences, cut(sentences, known, lambda array: array), strict=True):
        pieces = [names[code - 2] for code in codes]
        assert "".join(pieces) == sentence
        best = [0.0] + [-1e9] * len(sentence)
        for end in range(1, len(sentence) + 1):
            for start in range(end):
                if sentence[start:end] in known:
                    best[end] = max(best[end], best[start] + known[sentence[start:end]])
        assert sum(known[piece] for piece in pieces) == best[-1]


def test_spaces_by_hand(to_device):
    """Without rules, all spaces of a sentence are U+2581, alone and not at the ends, but for one before it."""
    empty = np.empty(0, np.uint32)
    rules = PieceRules(*map(to_device, (empty, np.empty(0, np.uint8), plain_characters(empty))), 7)
    sentences = ["  a  b ", "", "   ", "é", "\u2581", "a\0", "c"]
    parts = [f"{sentence}\n".encode() for sentence in sentences]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    text = np.frombuffer(b"".join(parts), np.uint8)
    out, ends, failed = map(to_host, piece_text(to_device(text), to_device(ends), rules))
    found = [part.tobytes().decode() for part in np.split(out, ends[:-1])]
    assert found == ["\u2581a\u2581b", "", "", "\u2581é", "", "", "\u2581c"] and failed.tolist() == [False] * 5 + [
        True,
        False,
    ]
