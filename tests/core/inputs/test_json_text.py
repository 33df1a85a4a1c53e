"""JSON lines as text: the same lines as the texts alone, for every cut, block size and compression."""

import bz2
import gzip
import json
import lzma
import pickle
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs import json_column, streams
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.read_text import read_blocks, whole_text
from tests.support.slow_cases import first_fast

COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}
# A line of JSON, and the text that every parser of JSON finds in it
LINES = {
    b'{"id": 1, "text": "of the value"}': b"of the value",
    b'  {"text": "indented"}': b"indented",
    rb'{"text": "two\nlines and \"quotes\" \\ \/ \t"}': b'two\nlines and "quotes" \\ / \t',
    rb'{"text": "\u00e9\ud83d\ude00", "n": 1e9}\r'.replace(rb"\r", b"\r"): "é\U0001f600".encode(),
    b'{"text": null}': b"",
    b"": None,
    b" \t\r": None,
    b'{"text": ""}': b"",
    rb'{"te\u0078t": "escaped key", "x": [{"text": "inner"}]}': b"escaped key",
    rb'{"text": "a\ud83d b"}': b"a\xed\xa0\xbd b",  # half of a surrogate pair
    b'{"text": "caf\xe9"}': b"caf\xe9",  # Latin-1
    b'{"text": "caf\xe9 \xe9", "text": "the last one"}': b"the last one",
    b'\xef\xbb\xbf{"text": "after a byte order mark"}': b"after a byte order mark",
    b'{"text": "' + b"long " * 50 + b'"}': b"long " * 50,
    b'{"text": "the end", "x": NaN}': b"the end",
}
STORED = b"\n".join(LINES)  # without a last newline
TEXT = b"".join(text + b"\n" for text in LINES.values() if text is not None)


def read(corpus, chunk_bytes, block_bytes, **options):
    """Return (text, checksums of the sources); checks that offsets ascend."""
    found, checksums, last = b"", [], {}
    for chunk in pickle.loads(pickle.dumps(corpus.chunks(chunk_bytes))):
        for block in read_blocks(chunk, "word", block_bytes, checksums=checksums, **options):
            assert block.data.tobytes().endswith(b"\n")
            for source, offset, length in zip(block.sources_S, block.offsets_S, block.lengths_S, strict=True):
                assert offset >= last.get(source, 0)
                last[source] = offset + length
            found += block.data.tobytes()
    rows = sorted(checksums)
    assert all(a[:2] <= b[:2] for a, b in zip(rows, rows[1:], strict=False))
    return found, rows


@pytest.mark.parametrize("plain_crcs", [True, False])  # False: GPUs compute those of plain text
@pytest.mark.parametrize("end", first_fast([b"", b"\n"]))
def test_every_cut(tmp_path, end, plain_crcs, read_in_steps):
    (tmp_path / "a.jsonl").write_bytes(STORED + end)
    (tmp_path / "b").write_bytes(STORED)
    (tmp_path / "c").write_bytes(b"")
    corpus = open_corpus(tmp_path)
    for strip_bytes in 7, 4 << 20:
        read_in_steps(strip_bytes, 3)
        for chunk_bytes in 1, 50, 777, 1 << 20:
            for block_bytes in 1, 60, 1 << 20:
                found, rows = read(corpus, chunk_bytes, block_bytes, plain_crcs=plain_crcs)
                assert found == TEXT + TEXT
                for source, stored in (0, STORED + end), (1, STORED):
                    at = 0
                    for _, offset, length, crc in (row for row in rows if row[0] == source):
                        assert offset == at and crc == zlib.crc32(stored[at : at + length])
                        at += length
                    assert at == len(stored)


@pytest.mark.parametrize("format", COMPRESS)
def test_compressed(tmp_path, format, read_in_steps):
    packed = COMPRESS[format](STORED) + COMPRESS[format](b"\n" + STORED)
    (tmp_path / "docs").write_bytes(packed)
    for strip_bytes in 11, 4 << 20:
        read_in_steps(strip_bytes, 11)
        found, rows = read(open_corpus(tmp_path / "docs"), 1 << 20, 100)
        assert found == 2 * TEXT and rows == [(0, 0, len(packed), zlib.crc32(packed))]


def test_parquet_has_the_same_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(STORED)
    texts = [text if text else None for text in LINES.values() if text is not None]
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary())}), tmp_path / "a.parquet")
    assert whole_text(open_corpus(tmp_path / "a.jsonl")) == whole_text(open_corpus(tmp_path / "a.parquet")) == TEXT


def test_a_long_line_is_read_in_growing_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "STRIP_BYTES", 4)
    monkeypatch.setattr(streams, "MAX_STEP_BYTES", 16)
    (tmp_path / "a").write_bytes(json.dumps({"text": "x" * 1000}).encode())
    assert whole_text(open_corpus(tmp_path / "a")) == b"x" * 1000 + b"\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "at byte 26 is not a JSON object: Unterminated string starting at; correct the line, or"),
        (b'{"text": "a"},', "at byte 26 is not a JSON object: Extra data; correct the line, or leave it out"),
        (b'{"id": 3}', "at byte 26 lacks the key 'text'; give each line an object with this key, null for an empty"),
        (b'["a"]', "at byte 26 is list, not an object; give each line an object with this key"),
        (b'{"text": 3}', "at byte 26 has 3 in 'text'; give a text on every line"),
        (b'{"text": false}', "at byte 26 has False in 'text'; give a text on every line"),
        (b'{"text": ["a", "b"]}', "at byte 26 has ['a', 'b'] in 'text'; give a text on every line"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "at byte 26 is not a JSON object: nested too deep"),
    ],
)
def test_damaged_lines_are_named(tmp_path, line, message):
    good = b'{"text": "a"}\n' + b"\n" * 12
    (tmp_path / "a").write_bytes(good + line + b"\n")
    with pytest.raises(InputError) as error:
        whole_text(open_corpus(tmp_path / "a"))
    assert f"/a' {message}" in str(error.value)
    (tmp_path / "a").write_bytes(gzip.compress(good + line + b"\n"))
    with pytest.raises(InputError, match="/a' at byte 26 of its text "):
        whole_text(open_corpus(tmp_path / "a"))


def test_a_null_costs_no_line_but_its_own(monkeypatch):
    lines = [b'{"text": "a"}'] * 50 + [b'{"text": null}'] + [b'{"text": "b"}'] * 50
    loaded = []
    monkeypatch.setattr(json_column, "load_line", lambda line: loaded.append(line) or json.loads(line))
    found = json_column.json_column(b"".join(line + b"\n" for line in lines), "text", str)
    assert found.to_pylist() == ["a"] * 50 + [None] + ["b"] * 50
    assert loaded == [b'{"text": null}']


def test_a_line_longer_than_arrow_reads_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MAX_JSON_LINE_BYTES", 1000)
    monkeypatch.setattr(streams, "STRIP_BYTES", 300)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "' + b"b" * 990 + b'"}\n')
    with pytest.raises(InputError, match=r"at byte 14: the line is longer than 1,000 bytes; cut it into several"):
        whole_text(open_corpus(tmp_path / "a.jsonl"))


def test_keys(tmp_path):
    path = tmp_path / "docs"
    path.write_bytes(b'{"id": "x"}\n{"body": "a b", "id": "y"}\n')
    assert whole_text(open_corpus(path, text_column="id")) == b"x\ny\n"
    with pytest.raises(InputError, match="docs' lacks the key 'text'; name one with text_column: id, body"):
        open_corpus(path)
    assert whole_text(open_corpus(path, "byte")) == path.read_bytes()
    path.write_bytes(b"plain text\n")
    with pytest.raises(InputError, match="text_column is 'text' but '.*docs' is plain text, without columns; leave"):
        open_corpus(path, text_column="text")
