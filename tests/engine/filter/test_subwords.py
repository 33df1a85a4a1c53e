"""Tokenisers of other libraries beside the words that a plain lookup finds."""

import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from mgpu_ngram.core.documents.sentencepiece_proto import read_model
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.filter.subwords import SubwordCodes, open_subwords
from tests.support.slow_cases import first_fast

WORDS = Words.of(["<unk>", "<s>", "</s>", "a", "b", "Ω", "c"])


class Letters:
    """A piece is a letter; id 0 is any other letter, id 4 two words, and id 5 a word after a blank."""

    pieces = (None, "a", "b", "x", "b c", " c")
    unigram = None

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


@pytest.mark.parametrize("known", [["b", "a"], ["c", "Ω", "b"], ["a", "b", "c", "Ω"], []])
def test_codes_of_another_model(known):
    """Its words are some of this model's, with other ids: the table gives the codes of its own lookup."""
    codes, other = SubwordCodes(Letters(), WORDS), SubwordCodes(Letters(), Words.of(["<unk>", *known]))
    texts = ["ab", "", "xΩb", "a_ a", "?", "a~"]
    assert codes.table_for(other)[codes(texts)].tolist() == other(texts).tolist()


def test_a_model_with_more_words_has_no_table():
    codes = SubwordCodes(Letters(), WORDS)
    assert codes.table_for(SubwordCodes(Letters(), Words.of(["<unk>", "a", "x"]))) is None


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


def train(folder, **options):
    """Return the path of a small unigram model."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(1, 8))) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=9)) for _ in range(3_000)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "m"), vocab_size=200, minloglevel=2, **options
    )
    return str(folder / "m.model"), words


def test_tokenisers_with_damaged_pieces(tmp_path):
    path, _ = train(tmp_path)
    data = Path(path).read_bytes()
    (tmp_path / "m.model").write_bytes(data.replace("▁".encode(), b"\xff\xff\xff", 9))
    with pytest.raises(InputError, match="m.model: cannot be read .it is not a SentencePiece model"):
        open_subwords(path)


def test_a_tokeniser_that_cannot_split_a_text(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}}')
    codes = SubwordCodes(open_subwords(str(path)), Words.of(["<unk>", "a"]))
    assert codes(["a"]).tolist() == [2, 0]
    with pytest.raises(InputError, match="tokenizer.json: cannot split a text .WordLevel error: Missing .UNK. token"):
        codes(["b"])


KINDS = [
    {},
    {"normalization_rule_name": "identity", "add_dummy_prefix": False},
    {"normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": False},
    {"character_coverage": 0.98, "normalization_rule_name": "nfkc"},
]


@pytest.mark.parametrize("options", first_fast(KINDS))
def test_unigram_codes_are_those_of_the_library(options, tmp_path):
    """Odd characters and spaces, unknown letters, words of the text, and a vocabulary that has some of the pieces.

    Rules make a space and U+0301 of U+00B4. No piece has U+0301, but the vocabulary does.
    """
    path, words = train(tmp_path, **options)
    subwords = open_subwords(path)
    some = dict.fromkeys(piece for piece in subwords.pieces[3::2] if piece)
    vocabulary = Words.of(["<unk>", "é", "zz", "\u0301", *some])
    library, kernels = SubwordCodes(subwords, vocabulary), SubwordCodes(subwords, vocabulary)
    assert subwords.unigram is not None
    rng = random.Random(1)
    odd = [chr(c) for c in range(1, 0x3100) if unicodedata.normalize("NFKC", chr(c)) != chr(c)]
    letters = [*"abcdexyz", " ", " ", " ", "\t", "▁", "é", "中", "😀", "\u200b", "\u0301", "\0", "\uff21"]
    sentences = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(4_000)]
    sentences += ["".join(rng.choices(letters, k=rng.randrange(16))) for _ in range(4_000)]
    sentences += ["".join(rng.choices([*odd, " ", "a"], k=rng.randrange(9))) for _ in range(4_000)]
    sentences += ["", " ", "▁", "a" * 70_000]
    parts = [f"{sentence}\n".encode() for sentence in sentences]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    text = np.frombuffer(b"".join(parts), np.uint8)
    assert kernels.of_sentences(text, ends).tolist() == library(sentences).tolist()
    assert kernels.of_sentences(text[:0], ends[:0]).tolist() == []


@pytest.mark.parametrize(
    "options", [{"model_type": "bpe"}, {"byte_fallback": True, "vocab_size": 500}, {"user_defined_symbols": ["<x>"]}]
)
def test_models_that_are_left_to_the_library(options, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 500 + "abcdefghijklmnopqrstuvwxyz\n" * 9)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "m"), minloglevel=2, hard_vocab_limit=False,
        **{"vocab_size": 200} | options,
    )  # fmt: skip
    subwords = open_subwords(str(tmp_path / "m.model"))
    assert subwords.unigram is None
    codes = SubwordCodes(subwords, Words.of(["<unk>", "▁the", "▁cat"]))
    text = np.frombuffer(b"the cat\n<x>\n", np.uint8)
    assert codes.of_sentences(text, np.array([8, 12])).tolist() == codes(["the cat", "<x>"]).tolist()


def test_a_model_file_by_hand():
    """A piece of 1.5, and settings that are not the defaults; a field that ends behind the data is not a model."""
    piece = b"\x0a\x01a\x15\x00\x00\xc0\x3f\x18\x02"
    data = b"\x0a" + bytes([len(piece)]) + piece + b"\x12\x02\x18\x02" + b"\x1a\x04\x18\x00\x20\x00"
    model = read_model(data)
    assert (model.pieces, model.scores, model.kinds) == ([b"a"], [1.5], [2])
    assert (model.model_kind, model.dummy_prefix, model.single_spaces, model.escape_spaces) == (2, False, False, True)
    for wrong in data[:-1], b"\x0a\x7f", b"\xff", b"\x0b\x00":
        with pytest.raises(ValueError):
            read_model(wrong)
