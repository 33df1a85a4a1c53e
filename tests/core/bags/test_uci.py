"""UCI docword files: by hand, against a plain parser, KOS, and damaged files."""

import bz2
import gzip
import lzma
import sys

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.bags import uci
from mgpu_ngram.core.bags.bags import join_bags, make_bags
from mgpu_ngram.core.bags.uci import is_uci, read_uci, read_uci_header
from mgpu_ngram.core.bags.word_list import read_word_list
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.file_sources import file_source
from mgpu_ngram.engine.bags.bag_corpus import regroup

SMALL = b"4\n5\n4\n1 2 1\n1 5 70000\n3 1 2\n3 4 1\n"


def read(path):
    return join_bags(read_uci(file_source(str(path), str(path), "word", 1, "text")))


def write(tmp_path, data):
    path = tmp_path / "docword.x.txt"
    path.write_bytes(data)
    return path


def rows(bags):
    starts = bags.starts_D1.tolist()
    pairs = list(zip(bags.words_P.tolist(), bags.counts_P.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress]
)
def test_by_hand(tmp_path, compress):
    path = write(tmp_path, compress(SMALL))
    assert rows(read(path)) == [[(1, 1), (4, 70000)], [], [(0, 2), (3, 1)], []]
    assert read_uci_header(file_source("x", str(path), "word", 1, "text")) == (4, 5, 4)


@pytest.mark.parametrize(
    "text",
    [
        SMALL.replace(b"\n", b"\r\n"),
        SMALL.replace(b"\n", b" \n"),
        SMALL[:-1],
        SMALL + b"\n \n",
        SMALL.replace(b" ", b"\t"),
        b"4\n5\n6\n1 5 60000\n1 2 1\n1 5 10000\n3 4 1\n3 1 2\n3 2 0\n",
    ],
)
def test_spellings_of_the_same_file(tmp_path, text):
    assert rows(read(write(tmp_path, text))) == [[(1, 1), (4, 70000)], [], [(0, 2), (3, 1)], []]


def test_no_documents(tmp_path):
    assert rows(read(write(tmp_path, b"0\n5\n0\n"))) == []
    assert rows(read(write(tmp_path, b"2\n5\n0\n"))) == [[], []]


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10**6)), max_size=5), max_size=30), st.data())
def test_cuts_do_not_matter(tmp_path_factory, documents, data):
    lines = [f"{d} {w} {c}\n" for d, pairs in enumerate(documents, 1) for w, c in pairs]
    text = f"{len(documents)}\n9\n{len(lines)}\n{''.join(lines)}"
    path = write(tmp_path_factory.mktemp("uci"), text.encode())
    sums = [{} for _ in documents]
    for counter, pairs in zip(sums, documents, strict=True):
        for w, c in pairs:
            counter[w - 1] = counter.get(w - 1, 0) + c
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uci, "BLOCK_BYTES", data.draw(st.integers(30, 200)))
        source = file_source("x", str(path), "word", 1, "text")
        whole = join_bags(read_uci(source)).check()
        assert rows(whole) == [sorted(c.items()) for c in sums]
        tokens = data.draw(st.integers(1, 3 * 10**6))
        assert list(regroup(read_uci(source), tokens)) == list(whole.blocks(tokens))


def test_kos(shared_data, tmp_path):
    kos, oracles = shared_data / "lda_kos", shared_data.parent / "oracles"
    bags = read(kos / "docword.kos.txt.xz").check()
    assert (bags.documents, bags.num_words, bags.tokens) == (3430, 6906, 467_714)
    assert len(words := read_word_list(kos / "vocab.kos.txt")) == 6906
    assert words.word(0) == "aarp" and words.word(6905) == "zones"
    if not (oracles / "bow_io.py").exists():
        pytest.skip(f"no bow_io.py in {oracles}")
    plain = write(tmp_path, lzma.decompress((kos / "docword.kos.txt.xz").read_bytes()))
    sys.path.insert(0, str(oracles))
    try:
        from bow_io import read_uci as read_plainly
    finally:
        sys.path.pop(0)
    D, V, starts, words_P, counts_P = read_plainly(plain)
    assert make_bags(starts, words_P, counts_P, V) == bags and bags.documents == D
    split = [read(kos / f"docword.kos.{part}.txt.xz") for part in ("train", "test")]
    assert sum(part.tokens for part in split) == bags.tokens


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "line 1 is missing, .* give the number of documents"),
        (b"4\nx\n1\n", "line 2 is 'x', but a docword file starts with .* give the number of words"),
        (b"4\n5\n", "line 3 is missing.* pairs$"),
        (b"4\n-5\n1\n", "line 2 is '-5'"),
        (b"4\n5000000000\n1\n1 1 1\n", "line 2 gives 5,000,000,000 words but a vocabulary holds up to"),
        (b"999999999999\n5\n1\n1 1 1\n", "line 1 says 999,999,999,999 documents but line 3 only 1 pairs; correct"),
        (SMALL.replace(b"3 1 2", b"3 1"), "line 6 is '3 1', but holds a document, a word and a count"),
        (SMALL.replace(b"3 1 2", b"3 1 2 9"), "line 6 is '3 1 2 9', but holds"),
        (SMALL.replace(b"3 1 2", b"3 a 2"), "line 6 is '3 a 2', but holds"),
        (SMALL.replace(b"3 1 2", b"x" * 99), "line 6 is 'x{60}...', but holds"),
        (SMALL.replace(b"3 1 2", b"3 1 \xff"), "line 6 has the count '\ufffd'"),
        (SMALL.replace(b"3 1 2", b"3 1 0.5"), "line 6 has the count '0.5', but counts are whole numbers.* correct it"),
        (SMALL.replace(b"3 1 2", b"3 1 -2"), "line 6 has the count '-2'"),
        (SMALL.replace(b"3 1 2", b"3 1 nan"), "line 6 has the count 'nan'"),
        (SMALL.replace(b"3 1 2", b"3 1 4294967296"), "line 6 has the count '4294967296'"),
        (SMALL.replace(b"3 1 2", b"3 6 2"), "line 6 has word 6, but line 2 says 5 words"),
        (SMALL.replace(b"3 1 2", b"3 0 2"), "line 6 has word 0"),
        (SMALL.replace(b"3 1 2", b"5 1 2"), "line 6 has document 5, but line 1 says 4 documents"),
        (SMALL.replace(b"3 1 2", b"0 1 2"), "line 6 has document 0"),
        (SMALL.replace(b"3 4 1", b"1 4 1"), "line 7 has document 1 after 3, but documents ascend; sort"),
        (SMALL[:-6], "ends after line 6 with 3 of the 4 pairs that line 3 gives; it is truncated"),
        (SMALL + b"4 4 4\n", "has 5 pairs or more at line 8, but line 3 says 4; correct"),
        (gzip.compress(SMALL)[:-12], "is truncated gzip data"),
    ],
)
@pytest.mark.parametrize("block_bytes", [24, 1 << 20])
def test_damage(tmp_path, monkeypatch, text, said, block_bytes):
    monkeypatch.setattr(uci, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=said) as error:
        read(path)
    assert str(error.value).startswith(f"'{path}' ") and "\n" not in str(error.value)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(SMALL)), st.sampled_from(b"0123459 -.\n\0\xffe")), min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path_factory, changes):
    text = bytearray(SMALL)
    for at, byte in changes:
        text[at : at + 1] = bytes([byte])
    path = write(tmp_path_factory.getbasetemp(), bytes(text))
    try:
        read(path).check()
    except InputError as error:
        assert "\n" not in str(error)


def test_is_uci():
    assert is_uci(SMALL) and is_uci(b"1\n1\n0\n") and not is_uci(b"1\n2\n") and not is_uci(b"1 2\n2\n3\n1 1 1\n")
    assert is_uci(b"1\n1\n1\n1 1\n") and is_uci(b"1\n1\n1\n1 a 1\n") and not is_uci(b"1\n2\n3\n4\n")
    assert not is_uci(b"1\n2\n3\nsome words\nmore\n")
    assert np.all([not is_uci(head) for head in (b"", b"text\n", b"1\n2\nx\n")])
