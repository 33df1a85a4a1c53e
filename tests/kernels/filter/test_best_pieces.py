"""Sentences cut into pieces by kernels, by hand and beside every cut."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.kernels.common.words import index_words
from mgpu_ngram.kernels.dispatch import to_host
from mgpu_ngram.kernels.filter.best_pieces import MOST, Pieces, WordTable, best_pieces, index_pieces
from mgpu_ngram.kernels.filter.piece_text import PieceRules, piece_text, plain_characters


def cut(sentences, scores, to_device, spelt=()):
    """Return the codes of each sentence, None if it failed; pieces and their scores have the codes 2, 3, ..."""
    pieces = [b"<unk>", *(piece.encode() for piece in scores)]
    score_P = np.array([0, *scores.values()], np.float32)
    code_P = np.array([0, *(0 if p in spelt else i + 2 for i, p in enumerate(scores))], np.uint32)
    vocabulary = [b"<unk>", *pieces[1:], b"zz"]
    offsets_V = np.cumsum([0, *map(len, vocabulary)], dtype=np.int64)
    data = np.frombuffer(b"".join(vocabulary), np.uint8)
    trie = index_pieces(pieces, score_P, np.arange(len(pieces)) > 0)
    made = Pieces(*map(to_device, trie), to_device(code_P), 0, float(score_P.min()) - 10)
    words = WordTable(*map(to_device, (offsets_V, data, index_words(offsets_V, data)[0])))
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
    most = int(MOST / 8) + 2
    assert cut(["a" * most, "a"], {"a": -8.0}, to_device) == [None, [2]]


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
