"""The format of a file by its first bytes, and the error for a file without text that is given as text."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.file_sources import file_source
from mgpu_ngram.core.inputs.read_text import read_blocks
from mgpu_ngram.core.storage.file_heads import HEAD_BYTES, compression, what_begins

LINE = json.dumps({"id": 1, "text": "of the"}).encode() + b"\n"
LONG_LINE = json.dumps({"title": 'a "b"', "text": "of the " * HEAD_BYTES}).encode() + b"\n"


def npy():
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "b")
    return file.getvalue()


def arrow():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema({"text": pa.string()})):
        pass
    return sink.getvalue().to_pybytes()


BINARY = {
    "a KenLM binary model": b"mmap lm http://kheafield.com/code format version 5\n\0",
    "an ARPA file": b"\r\n# made by hand\n\\data\\\nngram 1=3\n",
    "an iARPA file of IRSTLM": b"iARPA\n\n\\data\\\n",
    "a PNG image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a NumPy array": npy(),
    "a ZIP archive": zipped(),
    "an Arrow file": arrow(),
    "a tar archive": b"name".ljust(257, b"\0") + b"ustar\x0000",
    "a RIFF file (sound, image or video)": b"RIFF\x10\0\0\0WEBPVP8 ",
    "a model file of mgpu-ngram": (60).to_bytes(8, "little") + b'{"__metadata__": {"metadata": "mgpu_ngram model"}}',
    "a safetensors file": (9).to_bytes(8, "little") + b'{"a": {}}',
}
TEXT = [
    b"",
    b"of the\n",
    b"\n\n{}\n",
    b"{of the}\n",
    b'{"of the"}\n',
    b"[1, 2]\n",
    b"{" + b"x" * HEAD_BYTES,
    b"\\data\\ is a word here\n",
    b"RIFF raff\n",
    b"BZhurst\n",
    b"\xef\xbb\xbfof the\n",
    "\u00ff\u00fe in Latin\n".encode(),
    b"of\0the\n",  # a NUL ends a word
    b"of\0the\0value\0of\0this\n\n",
    "καὶ\0ὁ λόγος\n".encode(),
    b"a\0b",
    b"a\0b\0",
    b"\0\xff",
    "caf\u00e9\0the value of it\n".encode("latin-1"),
    "caf\u00e9\0the values of this\n".encode("latin-1"),
    "\u201ccaf\u00e9\u201d\0the values\0of it\n".encode("cp1252"),
]


@pytest.mark.parametrize(("what", "head"), BINARY.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_other_formats_are_refused_as_text(tmp_path, what, head):
    assert what_begins(head) == what
    (tmp_path / "a.txt").write_bytes(b"of the\n")
    (tmp_path / "b c.txt").write_bytes(head)
    for inputs in tmp_path, [tmp_path / "b c.txt"]:  # a folder that holds the file, and the file
        with pytest.raises(InputError) as error:
            open_corpus(inputs)
        assert str(error.value) == f"{str(tmp_path / 'b c.txt')!r} is {what}, not text; give only text files"
    assert open_corpus(tmp_path / "b c.txt", unit="byte").size_bytes == len(head)


@pytest.mark.parametrize("head", TEXT)
def test_text_is_accepted(tmp_path, head):
    assert what_begins(head[:HEAD_BYTES]) == "" == compression(head)
    (tmp_path / "text").write_bytes(head)
    assert open_corpus(tmp_path / "text").size_bytes == len(head)


JSON = {  # by the first bytes alone
    "an object": LINE,
    "a long object": LONG_LINE,
    "a mark": b"\xef\xbb\xbf" + LINE,
    "a mark and a blank line": b"\xef\xbb\xbf\r\n" + LINE,
    "blank lines": b"\n \t\r\n" + LINE,
    "indented": b"  " + LINE,
    "an empty object": b"{}\n" + LINE,
    "cut at its end": b'{"text": "of the\n' + LINE,
    "cut at its start": b'the value"}\n' + LINE,
    "cut alone": b'{"text": "of the',
    "commas": b'{"text": "of the"},\n{"text": "in the"},\n',
    "two on a line": LINE.strip() + LINE,
    "a comment": b"# made by hand\n" + LINE + LINE,
}
NO_LINES = {
    "array": (b'[{"text": "a"}, {"text": "b"}]', "holds a JSON array, .*: jq -c '.\\[\\]' /"),
    "array on lines": (b'[\n  {\n    "text": "a"\n  }\n]\n', "holds a JSON array"),
    "array of texts": (b'["of the", "in the"]\n', "holds a JSON array"),
    "table": (b'[["id", "text"], ["1", "of the"]]', "holds a JSON array"),
    "pretty": (b'{\n  "text": "a"\n}\n', "holds one JSON object on several lines, .*: jq -c . /"),
    "pretty with a mark": (b'\xef\xbb\xbf{\n\t"text": "a"}', "holds one JSON object on several lines"),
    "pretty from its first line": (b'{"id": 1,\n "text": "a"}\n', "holds one JSON object on several lines"),
    "nested": (b'{"docs": [\n{"text": "a"},\n{"text": "b"}]}', "holds one JSON object on several lines"),
    "Matrix Market": (b"%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 3\n", "is a Matrix Market file"),
    "matrix market": (b"%%matrixmarket matrix array real general\n1 1\n3\n", "is a Matrix Market file"),
    "crawl": (b"WARC/1.0\r\nWARC-Type: warcinfo\r\n", "is a WARC file, not text; mgpu-ngram filter reads"),
}
PROSE = {
    "verse": b'[Verse 1]\n"La la"\n[Chorus]\n',
    "speech": b'["Hello," she said.]\n',
    "a set": b'{"a", "b"} is a set\n',
    "an example": b'An example:\n{"text": "a"}\nis a line of JSON.\nThe end.\n',
    "code": b'{"a": b},\nx = 1\ny = 2\n',
    "commas": b"id, name, text\nof, the, value\n",
    "tabs": b"id\ttext\n1\tof the\n",
    "quotes": b'"of the"\n"in the"\n',
    "percent": b"%% MatrixMarket is a format\n",
}


@pytest.mark.parametrize("head", JSON.values(), ids=JSON)
def test_json_lines_are_found(tmp_path, head):
    for name, stored in {"docs": head, "docs.json": head, "docs.gz": gzip.compress(head)}.items():
        (tmp_path / name).write_bytes(stored)
        assert open_corpus(tmp_path / name).sources[0].json_key == "text"
        assert open_corpus(tmp_path / name, "byte").sources[0].json_key == ""


@pytest.mark.parametrize(("head", "message"), NO_LINES.values(), ids=NO_LINES)
def test_other_files_of_text_are_refused(tmp_path, head, message):
    for name, stored in {"docs": head, "docs.json.gz": gzip.compress(head)}.items():
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(InputError, match=message if name == "docs" else message.partition(":")[0]):
            open_corpus(tmp_path / name)


@pytest.mark.parametrize("head", PROSE.values(), ids=PROSE)
def test_prose_is_text(tmp_path, head):
    (tmp_path / "prose").write_bytes(head)
    assert open_corpus(tmp_path / "prose").sources[0].json_key == ""
    for name, said in {"a.json": "JSON", "a.NDJSON": "JSON", "a.jsonl": "JSON", "a.csv": "CSV", "a.tsv": "TSV"}.items():
        (tmp_path / name).write_bytes(head)
        with pytest.raises(InputError, match=f"{said}.*(rename|jq)"):
            open_corpus(tmp_path / name)
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress(head))
        with pytest.raises(InputError, match=said):
            open_corpus(tmp_path / f"{name}.xz")


def test_ways_out_of_compressed_files(tmp_path):
    ways = {
        "a.json.zst": (zstandard.compress(b"[{}]"), "zstd -dc a.json.zst | jq -c '.[]' > documents.jsonl"),
        "a b.gz": (gzip.compress(b'{\n"a": 1}'), "gzip -dc 'a b.gz' | jq -c . > documents.jsonl"),
        "a.bz2": (bz2.compress("a\nb".encode("utf-16")), "bzip2 -dc a.bz2 | iconv -f UTF-16 -t UTF-8 -"),
        "a.gz": (
            gzip.compress(gzip.compress(b"a b\n")),
            "gzip data inside gzip data; unpack it once: gzip -dc a",
        ),
        "a.xz": (lzma.compress(zstandard.compress(b"a b\n")), "zstd data inside xz data; unpack it once: xz -dc"),
    }
    for name, (stored, way_out) in ways.items():
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(InputError) as error:
            file_source(name, str(tmp_path / name), "word", 1, None)
        assert way_out in str(error.value)


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("order", ["", "-LE", "-BE"])
def test_wide_text_is_refused(tmp_path, encoding, order):
    path = tmp_path / "wide"
    path.write_bytes(("\ufeff" * bool(order) + "of the\n").encode(encoding + order))
    with pytest.raises(InputError, match=f"is {encoding} text, .* UTF-8; convert it: iconv -f {encoding} -t UTF-8 /"):
        open_corpus(path)


SENTENCES = {
    "English": "the value of the \u201cexpression\u201d\n",
    "German": "über größere Wörter fällt es schwer\n",
    "Greek": "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν\n",
    "Chinese": "太初有道,道与神同在\n",
    "emoji": "\U0001f600 \U0001f600 of the value\n",
    "JSON": json.dumps({"text": "of the"}) + "\n",
}


@pytest.mark.parametrize("text", SENTENCES.values(), ids=SENTENCES)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_wide_text_without_a_mark_is_refused(tmp_path, text, encoding):
    path = tmp_path / "wide"
    for copies in 1, 500:  # a short file, and one that is longer than a head
        path.write_text(text * copies, encoding)
        name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
        with pytest.raises(InputError) as error:
            open_corpus(path)
        assert str(error.value) == (
            f"{str(path)!r} is {name} text, but text must be UTF-8; convert it: iconv -f {name} -t UTF-8 {path}"
        )
    assert what_begins(text.encode()) in ("", "JSON lines")


def test_wide_text_of_letters_at_random_is_refused_when_compressed(tmp_path):
    """Compressed files give more than a head at once, and an odd number of bytes."""
    letters = np.random.default_rng(0).integers(97, 123, 200_000).astype("<u2").tobytes()
    for level in range(1, 5):
        (tmp_path / "wide.gz").write_bytes(gzip.compress(letters, level))
        with pytest.raises(InputError, match="is UTF-16LE text"):
            open_corpus(tmp_path / "wide.gz")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b'{ }\n{"text": "b"}\n', "JSON lines"),
        (b'null\n{"text": "b"}\n', "JSON lines"),
        (b'\x1e{"text": "a"}\n\x1e{"text": "b"}\n', "JSON lines"),  # RFC 7464
        (b'["a b", "c"]\n["d", "e"]\n', "lines of JSON arrays"),
        (b'["a b", "c"]\nand prose\n', ""),
        (b"[1]\n[2]\n", ""),  # notes of a text
    ],
)
def test_lines_of_json_by_hand(head, what):
    assert what_begins(head) == what


@pytest.mark.parametrize("head", [b"{" + b"\n" * HEAD_BYTES + b'"', b"[" + b" " * HEAD_BYTES + b'"x'])
def test_patterns_read_a_head_once(head):
    """Each took 20 s when every white space was tried as the end of the one before."""
    assert what_begins(head[:HEAD_BYTES]) == ""


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "float32"])
def test_numbers_are_no_wide_text(dtype):
    for numbers in np.arange(2000), np.arange(65, 2065) % 256, np.r_[0, 50000:52000]:
        assert what_begins(numbers.astype(dtype).tobytes()) == ""


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (BINARY["an ARPA file"], "is an ARPA file, not text"),
        (gzip.compress(b"a\n"), "holds gzip data inside gzip data"),
    ],
)
def test_compressed_files_are_refused(tmp_path, head, message):
    path = tmp_path / "packed.gz"
    path.write_bytes(gzip.compress(head))
    with pytest.raises(InputError, match=f"packed.gz' {message}"):
        open_corpus(path)
    [chunk] = open_corpus(path, unit="byte").chunks(1 << 20)
    assert b"".join(block.data.tobytes() for block in read_blocks(chunk, "byte", 1 << 20)) == head
