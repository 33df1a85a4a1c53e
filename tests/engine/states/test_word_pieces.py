"""Scores of pieces of words, beside those of whole texts from KenLM's module; and words by their spelling."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.states.spellings import Spellings
from mgpu_ngram.engine.states.text_ends import TextReader
from mgpu_ngram.engine.states.word_pieces import WordPieces
from mgpu_ngram.kernels.dispatch import to_host

START, END, ROWS, LENGTH = 0, 1, 5, 30
BYTES = [b"a", b"b", b"\xc3", b"\xa9", b" ", b"\n", b"<", "é".encode()]


@given(
    words=st.sets(st.binary(min_size=1, max_size=4), max_size=12),
    texts=st.lists(st.binary(max_size=3), min_size=1, max_size=4),
)
def test_spellings(device, words, texts):
    words = [b"<unk>", *sorted(words - {b"<unk>", b"<s>", b"</s>"}, reverse=True), b"<s>", b"</s>"]
    spellings, known = Spellings(Words.of(words), device), words[1:-2]
    texts += [word[:i] for word in words for i in range(len(word) + 1)]
    nodes_T = to_host(spellings.walk_from_root(spellings.texts(texts)))
    first_M, end_M, word_M = map(to_host, (spellings.first_M, spellings.end_M, spellings.word_M))
    in_order = [words[word] for word in to_host(spellings.ids_W)]
    assert in_order == sorted(known)
    for text, node in zip(texts, nodes_T.tolist(), strict=True):
        beginning = [word for word in sorted(known) if word.startswith(text)]
        assert in_order[first_M[node] : end_M[node]] == beginning
        assert words[word_M[node]] == (text if text in known else b"<unk>")
        assert (node < spellings.nodes) == (bool(beginning) or not text)


@pytest.mark.parametrize(("order", "partial"), [(1, "sum"), (2, "lexicon"), (3, "sum"), (4, "none"), (5, "sum")])
def test_scores_are_those_of_whole_texts(order, partial, tmp_path, plain_texts, device, to_device):
    rng = random.Random(order)
    words = sorted({"".join(rng.choices("abé<", k=rng.randint(1, 5))) for _ in range(20)})
    (tmp_path / "text").write_text("".join(" ".join(rng.choices(words, k=rng.randint(1, 6))) + "\n" for _ in range(60)))
    command = ["estimate", str(tmp_path / "text"), "-o", str(tmp_path / "words.arpa"), "--order", str(order)]
    assert cli.main([*command, "--device", "cpu", "--discount-fallback"]) == 0
    model = ng.Model.load(tmp_path / "words.arpa", device)
    known = [word.encode() for word in model.vocabulary if word not in ("<unk>", "<s>", "</s>")]
    pieces = [b" <s> ", b"</s>", *(b"".join(rng.choices(BYTES, k=rng.randint(0, 7))) for _ in range(30)), *known]
    spellings = Spellings(model.vocabulary, device)
    reader = TextReader(model._state_model, spellings, pieces, [START])
    rows = [rng.choices(range(2, len(pieces)), k=LENGTH) for _ in range(ROWS)]
    rows[1][LENGTH - 3] = START
    lengths = [LENGTH, LENGTH, LENGTH - 1, 1, 0]
    ends = reader.ends(to_device(np.array(rows)), to_device(np.array(lengths)))
    scores, final = WordPieces(model._state_model, spellings, pieces, partial).scores(ends)
    plain = plain_texts(tmp_path / "words.arpa", known, partial)
    for b, row in enumerate(rows):
        tokens = row[LENGTH - lengths[b] :]
        tokens = tokens[len(tokens) - tokens[::-1].index(START) :] if START in tokens else tokens
        text = b"".join(pieces[token] for token in tokens)
        before = plain.score(text, False)
        wanted = [plain.score(text + piece, False) - before for piece in pieces]
        assert np.allclose(to_host(scores)[b], wanted, atol=5e-5, rtol=0)
        assert abs(float(final[b]) - (plain.score(text, True) - before)) < 5e-5
