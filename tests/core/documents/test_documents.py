"""Documents from files: by hand, the same documents in every format, and what is refused."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_ngram.core.documents.documents import JoinedTexts, TokenLists, open_documents, read_documents
from mgpu_ngram.core.errors import InputError


def read(path, column=None, chunk_bytes=1 << 20, block_bytes=1 << 20, as_strings=False):
    """The documents of a file: bytes, or lists of bytes."""
    found = []
    for chunk in open_documents([(str(path), str(path))], column).chunks(chunk_bytes):
        for documents in read_documents(chunk, block_bytes, as_strings):
            if isinstance(documents, JoinedTexts):
                found += documents.data.tobytes().split(b"\n")[:-1]
            elif isinstance(documents, TokenLists):
                ends, starts = documents.offsets_T1.tolist(), documents.starts_D1.tolist()
                tokens = [documents.data[a:b].tobytes() for a, b in zip(ends[:-1], ends[1:], strict=True)]
                found += [tokens[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
            else:
                found += documents
    return found


TEXTS = ["of the", "", "two\nlines", "é \U0001d400", None, 'a "b" {c}']
AS_READ = [b"of the", b"", b"two lines", "é \U0001d400".encode(), b"", b'a "b" {c}']
LISTS = [["of", "the"], [], ["a b", "c\nd", "é"], None]
LISTS_AS_READ = [[b"of", b"the"], [], [b"a b", b"c\nd", "é".encode()], []]


def write_json(path, values, key="text"):
    path.write_bytes(b"".join(json.dumps({"id": i, key: v}).encode() + b"\n" for i, v in enumerate(values)))
    return path


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary", "binary"])
def test_parquet_texts(tmp_path, kind):
    column = pa.array(TEXTS, pa.string())
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(getattr(pa, kind)())
    pq.write_table(pa.table({"text": column, "n": range(6)}), tmp_path / "x.parquet", row_group_size=4)
    assert read(tmp_path / "x.parquet") == AS_READ
    assert read(tmp_path / "x.parquet", block_bytes=1, chunk_bytes=1) == AS_READ
    assert read(tmp_path / "x.parquet", as_strings=True) == [text or "" for text in TEXTS]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())])
def test_parquet_token_lists(tmp_path, kind):
    pq.write_table(pa.table({"words": pa.array(LISTS, kind)}), tmp_path / "x.parquet", row_group_size=2)
    assert read(tmp_path / "x.parquet", "words") == LISTS_AS_READ
    assert read(tmp_path / "x.parquet", chunk_bytes=1, as_strings=True) == LISTS_AS_READ


def test_parquet_lists_whose_levels_have_other_names(tmp_path):
    """Programs name the levels of a list in their own ways; pyarrow says `list` and `element`."""
    pq.write_table(pa.table({"words": LISTS}), tmp_path / "x.parquet", row_group_size=2, store_schema=False)
    content = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(content.replace(b"list", b"bags"))
    assert read(tmp_path / "x.parquet", "words") == LISTS_AS_READ


def test_json_lines(tmp_path):
    assert read(write_json(tmp_path / "a", TEXTS)) == AS_READ
    assert (
        read(write_json(tmp_path / "a", [t for t in TEXTS if t is not None]), block_bytes=40)
        == AS_READ[:4] + AS_READ[5:]
    )
    assert read(write_json(tmp_path / "b", LISTS, "words"), "words") == LISTS_AS_READ
    assert read(write_json(tmp_path / "b", LISTS[:3], "words"), "words") == LISTS_AS_READ[:3]
    assert read(tmp_path / "a", as_strings=True)[2] == "two\nlines"
    (tmp_path / "c").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    assert read(tmp_path / "c") == read(tmp_path / "a")
    (tmp_path / "d").write_bytes(b'{"text": "a"}\n\n{"text": "\\ud800"}\n{"text": "b"}')
    assert read(tmp_path / "d") == [b"a", b"\xed\xa0\x80", b"b"]


def test_plain_text(tmp_path):
    (tmp_path / "x").write_bytes(b"a b\n\nc\r\n\xff")
    assert read(tmp_path / "x") == [b"a b", b"", b"c\r", b"\xff"]
    assert read(tmp_path / "x", as_strings=True) == ["a b", "", "c\r", "\udcff"]
    (tmp_path / "y").write_bytes(gzip.compress(b"a b\nc"))
    assert read(tmp_path / "y", block_bytes=3) == [b"a b", b"c"]


@settings(max_examples=20)
@given(st.lists(st.text(max_size=12)), st.integers(1, 60), st.integers(1, 60))
def test_cuts_do_not_matter(tmp_path_factory, texts, chunk_bytes, block_bytes):
    path = write_json(tmp_path_factory.getbasetemp() / "cuts.jsonl", texts)
    if texts:
        expected = [text.replace("\n", " ").encode() for text in texts]
        assert read(path, chunk_bytes=chunk_bytes, block_bytes=block_bytes) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "a"', "at byte 14 is not a JSON object: Expecting ',' delimiter; correct"),
        (b'{"text": "a"} {"text": "b"}', "at byte 14 is not a JSON object: Extra data"),
        (b"[1]", "at byte 14 is list, not an object; give"),
        (b'{"txt": "a"}', "at byte 14 lacks the key 'text'; give each line an object with this key"),
        (b'{"text": 3}', "at byte 14 has 3 in 'text'; give a text"),
        (b'{"text": ["a", 3]}', r"at byte 14 has \['a', 3\] in 'text'"),
        (b'{"text": ["a"]}', r"at byte 14 has \['a'\] in 'text'"),
        (b'{"text": ' + b"[" * 5000, "at byte 14 is not a JSON object: nested too deep"),
    ],
)
def test_wrong_json(tmp_path, line, said):
    (tmp_path / "x").write_bytes(b'{"text": "x"}\n' + line + b"\n")
    with pytest.raises(InputError, match=said) as error:
        read(tmp_path / "x")
    assert "\n" not in str(error.value)


def test_other_refusals(tmp_path):
    with pytest.raises(InputError, match="x' lacks the key 'body'; name one with text_column: id, text"):
        read(write_json(tmp_path / "x", TEXTS), "body")
    pq.write_table(pa.table({"text": [["a", None]], "n": [[1]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="has a null in a list of tokens"):
        read(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="lacks text in the column 'n'; name one with text_column: text;"):
        read(tmp_path / "x.parquet", "n")
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InputError, match="is a NumPy array, not text"):
        read(tmp_path / "x.npy")
