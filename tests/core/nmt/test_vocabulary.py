"""Vocabularies in all formats, damaged ones, and byte pair codes by hand."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.bpe import Bpe, without_bpe
from mgpu_ngram.core.nmt.vocabulary import encode_factors, load_nmt_vocabulary

WORDS = {"eos": 0, "UNK": 1, "a": 2, "no": 3, "über": 4, "1.5": 5, "x:": 6}
FORMATS = {
    "v.json": json.dumps(WORDS, indent=1),
    "v.yml": "".join(f"{json.dumps(word)}: {id}\n" for word, id in WORDS.items()),
    "plain.txt": "\n".join(WORDS) + "\n",
    "bare.yml": "eos: 0\nUNK: 1\na: 2\nno: 3\nüber: 4\n1.5: 5\n'x:': 6\n",
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("zipped", [False, True])
def test_all_formats_give_the_same_words(tmp_path, name, zipped):
    path = tmp_path / (name + ".gz" * zipped)
    data = FORMATS[name].encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    vocabulary = load_nmt_vocabulary(str(path))
    assert vocabulary.tokens == ("</s>", "<unk>", "a", "no", "über", "1.5", "x:")
    assert vocabulary.encode("a no über eos zz 1.5 x:", 7).tolist() == [2, 3, 4, 1, 1, 5, 6, 0]
    assert vocabulary.encode("a no über", rows=4).tolist() == [2, 3, 1, 0]
    assert vocabulary.decode([2, 1, 99, 4, 0]) == ["a", "<unk>", "<unk>", "über"]
    assert vocabulary.encode("", 7).tolist() == [0]


def test_an_empty_line_of_a_plain_vocabulary_has_an_id(tmp_path):
    (tmp_path / "v").write_text("</s>\n<unk>\n\nb\n")
    vocabulary = load_nmt_vocabulary(str(tmp_path / "v"))
    assert vocabulary.encode("b", 9).tolist() == [3, 0] and vocabulary.decode([2, 3]) == ["<unk>", "b"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path, name):
    path = tmp_path / name
    path.write_text(FORMATS[name].replace('"eos"', '"b"').replace("eos", "b"), "utf-8-sig")
    vocabulary = load_nmt_vocabulary(str(path))
    assert vocabulary.encode("\ufeffb b a x:", 7).tolist() == [1, 1, 2, 6, 0]


def test_only_newlines_separate_the_words_of_a_plain_vocabulary(tmp_path):
    """As only spaces separate the words of a text. Ids are numbers of lines, the empty ones included."""
    (tmp_path / "v").write_bytes("\n\na\x85b\r\n\u2028\nc\u00a0\n\x0c\n d\n".encode())
    vocabulary = load_nmt_vocabulary(str(tmp_path / "v"))
    assert vocabulary.encode("a\x85b \u2028 c\u00a0 \x0c d", 9).tolist() == [2, 3, 4, 5, 6, 0]
    assert vocabulary.tokens == ("</s>", "<unk>", "a\x85b", "\u2028", "c\u00a0", "\x0c", "d")


def test_a_file_may_name_its_ends(tmp_path):
    path = tmp_path / "v.json"
    path.write_text(json.dumps({"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "a": 4}))
    vocabulary = load_nmt_vocabulary(str(path), named_ends=True)
    assert vocabulary.encode("a b", 5).tolist() == [4, 1, 3] and vocabulary.decode([4, 3]) == ["a"]
    path.write_text(json.dumps({"<unk>": 1, "a": 4}))
    with pytest.raises(InputError, match="lacks '</s>'"):
        load_nmt_vocabulary(str(path), named_ends=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 2', "damaged JSON"),
        (b'{"a": -2}', "the id -2"),
        (b'{"a": 1.5}', "the id 1.5"),
        (b'{"a": true}', "the id True"),
        (b'{"a": [2]}', r"the id \[2\]"),
        (b'{"a": "x"}', "the id 'x'"),
        (b'{"a": 2, "b": 2}', "the id 2 to 'a' and 'b'"),
        (b'{"a": 2, "a": 3}', "the ids 2 and 3"),
        (b'{"a": 99999999999}', "1 words but id"),
        (b"{}", "has no words"),
        (b"", "has no words"),
        (b"a\n\xff\n", "not UTF-8 at byte 2"),
        (b"\x1f\x8b\x08garbage", "gzip"),
        (gzip.compress(b'{"a": 2}')[:-4], "truncated gzip"),
        (b"a\nb\na\n", "the ids 0 and 2"),
        (b"a\n0 b\n", "line 2 of vocabulary .* is '0 b' but must be one word"),
        (b"a\t-1.5\n", "line 1 of vocabulary .* but must be one word"),
    ],
)
def test_a_damaged_vocabulary_is_one_line(tmp_path, text, message):
    path = tmp_path / "v"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message) as error:
        load_nmt_vocabulary(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: 'b\n", "a: {b: 1}\n"])
def test_yaml_that_holds_no_pairs_is_one_line(tmp_path, text):
    path = tmp_path / "v.yml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_nmt_vocabulary(str(path))
    assert "\n" not in str(error.value)


def test_factors(tmp_path):
    (tmp_path / "w").write_text("</s>\n<unk>\ncat\ndog\n")
    (tmp_path / "f").write_text("</s>\n<unk>\nN\nV\n")
    both = [load_nmt_vocabulary(str(tmp_path / name)) for name in "wf"]
    assert encode_factors(both, "dog|N cat|X", [4, 4]).tolist() == [[3, 2], [2, 1], [0, 0]]
    with pytest.raises(InputError, match="token 'cat' has 1 factors but the model has 2"):
        encode_factors(both, "dog|N cat", [4, 4])


MERGES = ["l o", "lo w", "e r", "er </w>", "n e", "ne w"]


def test_codes_of_version_1_by_hand():
    bpe = Bpe(MERGES)
    assert bpe.encode("lower newer low") == "low@@ er new@@ er low"
    assert bpe.encode("slow") == "s@@ low"
    assert bpe.encode("x yz") == "x y@@ z"
    assert bpe.encode_factors("lower|A|1 x|B") == "low@@|A|1 er|A|1 x|B"


def test_codes_of_version_2_by_hand():
    """The last letter has its end from the start, so "e r" does not match at the end of a word."""
    bpe = Bpe(["#version: 0.2", "l o", "lo w", "e r</w>", "e r"])
    assert bpe.encode("lower erx") == "low@@ er er@@ x"
    assert bpe.encode("low") == "lo@@ w"


def test_overlapping_pairs_merge_from_the_left():
    assert Bpe(["a a"]).encode("aaaaa") == "aa@@ aa@@ a"


def test_a_pair_has_the_rank_of_its_first_line():
    assert Bpe(["a b", "b c", "a b"]).encode("abc") == "ab@@ c"


@pytest.mark.parametrize(
    ("lines", "message"), [(["#version: 0.3"], "version '0.3'"), (["a b", "a"], "line 2 .* has 1 symbols")]
)
def test_damaged_codes(lines, message):
    with pytest.raises(InputError, match=message):
        Bpe(lines)


@given(st.lists(st.text("abc", min_size=1, max_size=6), max_size=5), st.integers(0, 2))
def test_joining_undoes_splitting(words, version):
    lines = ["#version: 0.2"] * (version == 2) + ["a b", "ab c", "c </w>", "b c</w>"]
    bpe = Bpe(lines)
    line = " ".join(words)
    assert without_bpe(bpe.encode(line)) == line
    assert without_bpe("a@@ b@@") == "ab"


def test_ids_are_64_bit(tmp_path):
    (tmp_path / "w").write_text("</s>\n<unk>\ncat\n")
    assert load_nmt_vocabulary(str(tmp_path / "w")).encode("cat", 3).dtype == np.int64
