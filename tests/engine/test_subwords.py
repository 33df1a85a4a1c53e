"""Tokenisers of other libraries beside the words that a plain lookup finds."""

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.subwords import SubwordCodes, open_subwords

WORDS = Words.of(["<unk>", "<s>", "</s>", "a", "b", "Ω", "c"])


class Letters:
    """A piece is a letter; id 0 is any other letter, id 4 two words, and id 5 a word after a blank."""

    pieces = (None, "a", "b", "x", "b c", " c")

    def ids(self, texts, threads):
        return [[max(0, "?abx_~".index(c) if c in "abx_~" else 0) for c in text] for text in texts]

    def spell(self, texts, threads):
        return [[{"_": "b c", "~": " c"}.get(c, c) for c in text] for text in texts]


def test_codes_by_hand():
    """Words have code id + 1: a 4, b 5, x is unknown, Ω is a word whose piece has no name, and a blank is none."""
    codes = SubwordCodes(Letters(), WORDS)
    assert codes(["ab", "", "xΩb", "a_ a", "?"]).tolist() == [4, 5, 0, 0, 1, 6, 5, 0, 4, 5, 7, 4, 0, 1, 0]
    assert codes(["a~"]).tolist() == [4, 7, 0]
    assert codes(["aa", "b"]).tolist() == [4, 4, 0, 5, 0] and codes([""]).dtype == np.uint32


def test_a_hugging_face_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "b": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    words = Words.of(["<unk>", "##b", "a", "[UNK]"])
    assert SubwordCodes(open_subwords(str(path)), words)(["ab a z", "b"]).tolist() == [3, 2, 3, 4, 0, 1, 0]


def test_files_that_are_no_tokenisers(tmp_path):
    with pytest.raises(InputError, match=r"none.model: cannot be read \(No such file"):
        open_subwords("none.model")
    for name, library in ("sp.model", "sentencepiece"), ("tokenizer.json", "tokenizers"):
        (tmp_path / name).write_text("{")
        with pytest.raises(InputError, match=f"cannot be read|needs the library {library}; pip install") as error:
            open_subwords(str(tmp_path / name))
        assert "\n" not in str(error.value)
