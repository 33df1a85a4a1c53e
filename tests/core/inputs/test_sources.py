"""Formats found from the content, Parquet's text column, and the zstandard module."""

import bz2
import gzip
import lzma
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.sources import stored_head

TEXT = b"of the\nin the\n"


def test_formats_are_told_by_content(tmp_path):
    pq.write_table(pa.table({"text": ["of the"]}), tmp_path / "table")
    written = {
        "plain.gz": (TEXT, "plain"),
        "text.parquet": (gzip.compress(TEXT), "gzip"),
        "text.gz": (bz2.compress(TEXT), "bz2"),
        "empty.txt": (bz2.compress(b""), "bz2"),
        "text.zst": (lzma.compress(TEXT), "xz"),
        "text.txt": (zstandard.compress(TEXT), "zstd"),
        "pzstd.txt": (b"\x50\x2a\x4d\x18\x01\0\0\0x" + zstandard.compress(TEXT), "zstd"),
        "table.bz2": ((tmp_path / "table").read_bytes(), "parquet"),
        "BZhurst.txt": (b"BZhurst wrote\n", "plain"),
        "nothing.gz": (b"", "plain"),
    }
    for name, (content, format) in written.items():
        (tmp_path / name).write_bytes(content)
        (source,) = open_corpus(tmp_path / name).sources
        assert (source.format, source.size_bytes) == (format, len(content)), name


def test_parquet_columns(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": [1], "body": ["of"]}), path)
    assert open_corpus(path).sources[0].column == "body"
    with pytest.raises(InputError, match="lacks the column 'bdy'; name one with text_column: body"):
        open_corpus(path, text_column="bdy")
    pq.write_table(pa.table({"title": ["of"], "text": pa.array(["the"]).dictionary_encode()}), path)
    assert open_corpus(path).sources[0].column == "text"
    assert open_corpus(path, text_column="title").sources[0].column == "title"
    with pytest.raises(InputError, match=r"t.parquet' lacks the column 'body'.* title \(string\), text \(dict"):
        open_corpus(path, text_column="body")
    pq.write_table(pa.table({"text": [1], "body": ["of"]}), path)
    with pytest.raises(InputError, match=r"lacks text in the column 'text'.* text \(int64\)"):
        open_corpus(path)
    with pytest.raises(InputError, match="Parquet"):
        open_corpus(path, unit="id")


def test_a_column_s_name_that_is_no_utf8(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "name": ["b"]}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"name", b"na\xffe"))
    with pytest.raises(InputError, match="a.parquet' is damaged Parquet: .*; write it again or leave it out"):
        open_corpus([str(tmp_path / "a.parquet")], "word")


def test_zstandard_is_required_only_for_zstd_files(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a").write_bytes(TEXT)
    open_corpus(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(InputError, match="pip install zstandard"):
        open_corpus(tmp_path / "a")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs Linux")
def test_a_failing_read_names_the_file():
    with pytest.raises(InputError, match="cannot read '/proc/self/mem': Input/output error"):
        stored_head("memory", "/proc/self/mem")
