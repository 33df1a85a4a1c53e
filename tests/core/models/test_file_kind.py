"""The description from `identify_file`; the headers of KenLM binary models were written by KenLM."""

import bz2
import lzma
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.file_kind import identify_file
from mgpu_ngram.core.models.model_file import describe_model, save_model
from mgpu_ngram.core.storage.safetensors import save_arrays
from mgpu_ngram.engine.trie.open_model import open_model

ARPA = rb"""\data\
ngram 1=4
ngram 2=1

\1-grams:
-1	<unk>
-1	<s>	-0.5
-1.5	</s>
-0.5	a	-0.25

\2-grams:
-0.25	<s> a

\end\
"""
KENLM = {  # type, order, whether the file holds the vocabulary
    "t2.probing": ("probing", 2, True),
    "t3.probing_i_novocab": ("probing", 3, False),
    "t3.rest": ("probing with rest costs", 3, True),
    "t3.trie": ("trie", 3, True),
    "t3.trie_novocab": ("trie", 3, False),
    "t3.trie_q8b8": ("quantised trie", 3, True),
    "t3.trie_a22": ("trie with array pointers", 3, True),
    "t3.trie_a22_q8b8": ("quantised trie with array pointers", 3, True),
    "t5.probing": ("probing", 5, True),
}


@pytest.mark.parametrize(
    ("pack", "compression"),
    [(bytes, None), (bz2.compress, "bz2"), (lzma.compress, "xz"), (zstandard.compress, "zstd")],
)
def test_an_arpa_file(put, pack, compression):
    path = put(pack(ARPA))
    assert identify_file(path) == {
        "format": "ARPA file",
        "order": 2,
        "orders": [4, 1],
        "compression": compression,
        "size_bytes": len(pack(ARPA)),
    }


def test_a_long_comment_before_an_arpa_header(put):
    assert identify_file(put(b"# of the\n" * 5000 + ARPA))["orders"] == [4, 1]


def test_a_model_file_and_other_arrays(put, tmp_path):
    save_model(tmp_path / "model", open_model(put(ARPA)))
    found = identify_file(tmp_path / "model")
    assert found == describe_model(tmp_path / "model") | {"compression": None}
    assert (found["format"], found["orders"]) == ("mgpu_ngram model", [4, 1])
    save_arrays(tmp_path / "arrays", {"a": np.arange(3)}, {"b": 1})
    assert identify_file(tmp_path / "arrays")["format"] == "safetensors file"


@pytest.mark.parametrize("name", KENLM)
def test_kenlm_binary_models(put, kenlm_files, name):
    type, order, vocabulary = KENLM[name]
    content = kenlm_files[f"bin/{name}.bin"]
    text = kenlm_files[f"bin/{name.partition('.')[0]}.arpa"]
    assert identify_file(put(content)) == {
        "format": "KenLM binary model",
        "type": type,
        "order": order,
        "orders": identify_file(put(text, "arpa"))["orders"],
        "vocabulary": vocabulary,
        "compression": None,
        "size_bytes": len(content),
    }


def test_a_kenlm_header_by_hand(put):
    head = b"mmap lm http://kheafield.com/code format version 5\n\0".ljust(56, b"\0")
    head += struct.pack("<3f3IQ", 0, 1, -0.5, 1, 2**32 - 1, 0, 1)
    whole = head + struct.pack("<B3xfI?3xI2Q", 2, 1.5, 2, True, 1, 7, 2**40)
    found = identify_file(put(whole))
    assert (found["type"], found["order"], found["orders"], found["vocabulary"]) == ("trie", 2, [7, 2**40], True)
    for damaged in head, whole[:-1], whole[:96] + b"\x06" + whole[97:]:
        with pytest.raises(InputError, match="model.binary' is a KenLM binary model with a damaged header; build"):
            identify_file(put(damaged))


def test_files_that_hold_no_model(put, tmp_path):
    pq.write_table(pa.table({"text": ["of"], "n": [1]}), tmp_path / "t.parquet")
    found = identify_file(tmp_path / "t.parquet")
    assert (found["format"], found["rows"], found["columns"]) == ("Parquet file", 1, {"text": "string", "n": "int64"})
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t.parquet")
    assert identify_file(tmp_path / "t.parquet")["columns"] == {"n": "int64"}
    assert identify_file(put(b'{"id": 1, "text": "of"}\n'))["keys"] == ["id", "text"]
    for content, format in [
        (b"", "empty file"),
        (b"of the\n", "text"),
        (b"a" + "é".encode() * 5000, "text"),  # the head ends inside a character
        (b"of\xff the\n", "unknown"),
        (b"of\0the\n", "unknown"),
        ("of".encode("utf-16"), "UTF-16 text"),
        (b"%PDF-1.7\n", "PDF document"),
    ]:
        assert identify_file(put(content))["format"] == format, content[:9]


def test_unreadable_files(put, tmp_path):
    for path, message in [
        (tmp_path, "is not a regular file; give the path of a file"),
        (tmp_path / "none", "cannot read '.*none': No such file or directory"),
        (put(zstandard.compress(ARPA)[:-9], "cut"), "cut' is truncated zstd data"),
        (put(b"\\data\\\nngram 2=1\n", "arpa"), "is an ARPA file without 'ngram 1=COUNT' in its header"),
        (put(b"PAR1PAR1"), "damaged Parquet"),
    ]:
        with pytest.raises(InputError, match=message):
            identify_file(path)
