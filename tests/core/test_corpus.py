"""What a corpus is: inputs, formats by content, in-memory lines, and how it is cut."""

import bz2
import gzip
import lzma
import pickle
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.corpus import LOOKAHEAD_BYTES, Corpus, Lines, Source, open_corpus
from mgpu_ngram.core.errors import InputError

TEXT = b"of the\nin the\n"


def names(corpus, root=""):
    return [source.name.removeprefix(f"{root}/") for source in corpus.sources]


@pytest.fixture
def tree(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden", "sub/.git/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TEXT)
    return tmp_path


def test_files_keep_their_order_and_expansions_are_sorted(tree):
    assert names(open_corpus(tree / "b.txt"), tree) == ["b.txt"]
    assert names(open_corpus([tree / "b.txt", str(tree / "a.txt"), tree / "b.txt"]), tree) == [
        "b.txt",
        "a.txt",
        "b.txt",
    ]
    assert names(open_corpus(str(tree)), tree) == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(open_corpus(f"{tree}/*"), tree) == ["a.txt", "b.txt"]
    assert names(open_corpus((f"{tree}/**/*.txt",)), tree) == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(open_corpus(f"file://{tree}/a.txt"), tree) == ["a.txt"]


def test_a_path_that_looks_like_a_glob_is_taken_literally(tmp_path):
    (tmp_path / "a[1].txt").write_bytes(TEXT)
    assert names(open_corpus(tmp_path / "a[1].txt"), tmp_path) == ["a[1].txt"]


def test_a_relative_path_is_reopened_from_anywhere(tree, monkeypatch):
    monkeypatch.chdir(tree)
    (source,) = open_corpus("a.txt").sources
    assert (source.name, source.location) == ("a.txt", str(tree / "a.txt"))


def test_urls():
    memory = fsspec.filesystem("memory")
    for name in ("/corpus/b.txt", "/corpus/a.txt", "/corpus/sub/.c.txt"):
        memory.pipe(name, TEXT)
    try:
        both = ["memory:///corpus/a.txt", "memory:///corpus/b.txt"]
        assert [
            s.location.replace("memory:///", "memory://") for s in open_corpus("memory://corpus/a.txt").sources
        ] == ["memory://corpus/a.txt"]
        for inputs in ("memory://corpus/*.txt", "memory://corpus"):
            corpus = open_corpus(inputs)
            assert [s.name.replace("memory://corpus", "memory:///corpus") for s in corpus.sources] == both
            assert corpus.size_bytes == 2 * len(TEXT)
        with pytest.raises(InputError, match="memory://corpus/none.txt"):
            open_corpus("memory://corpus/none.txt")
    finally:
        memory.rm("/corpus", recursive=True)
    with pytest.raises(InputError, match="nosuch"):
        open_corpus("nosuch://bucket/file")


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


def memory(corpus):
    (source,) = corpus.sources
    assert source.format == "memory" and source.size_bytes == len(source.data)
    return source.data


def test_lines_in_memory():
    assert memory(open_corpus(Lines(["of the", "in the\n", "", "\n", "a\n\n"]))) == b"of the\nin the\n\n\na\n\n"
    assert memory(open_corpus([b"of", b"\xff\0"])) == b"of\n\xff\0\n"
    assert memory(open_corpus(line for line in ["caf\xe9", "\udcff"])) == b"caf\xc3\xa9\n\xff\n"
    assert memory(open_corpus({"of"})) == b"of\n"
    assert memory(open_corpus(np.array(["of", "the"]))) == b"of\nthe\n"
    assert memory(open_corpus(Lines([]))) == b""
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()):
        array = pa.array(["skip", "of", None, "", "the"], kind)[1:]
        assert memory(open_corpus(array)) == b"of\n\n\nthe\n"
        assert memory(open_corpus(pa.chunked_array([array, array[:0], array[:1]]))) == b"of\n\n\nthe\nof\n"
        assert memory(open_corpus(array[:0])) == b""
    assert memory(open_corpus(pa.chunked_array([], pa.string()))) == b""


def test_a_file_object_is_lines(tree):
    with open(tree / "a.txt", "rb") as file:
        assert memory(open_corpus(file)) == TEXT


def test_ids_in_memory():
    little = np.array([1, 513], "<u2").tobytes()
    inputs = (
        [1, 513],
        (i for i in [1, 513]),
        np.array([1, 513]),
        np.array([1, 513], ">u4"),
        Lines([1, 513]),
        pa.array([1, 513]),
    )
    for ids in inputs:
        assert memory(open_corpus(ids, unit="id")) == little
    assert memory(open_corpus(np.array([70000]), unit="id", dtype="uint32")) == np.array([70000], "<u4").tobytes()
    assert memory(open_corpus(np.array([], np.int64), unit="id")) == b""


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("missing.txt", {}, "'missing.txt' does not exist"),
        ("missing/*.txt", {}, r"'missing/\*.txt' matches no file"),
        (["of the", "in the"], {}, r"'of the' does not exist.*ng\.Lines\(\[\.\.\.\]\)"),
        ([], {}, "names no input"),
        ([b"of", 3], {}, "line 1 of the corpus is a int"),
        ([None], {}, "line 0 of the corpus is a NoneType"),
        (7, {}, "corpus is a int"),
        (b"of the", {}, "one bytes object"),
        (Lines(["\ud800"]), {}, "line 0 .* UTF-8"),
        (pa.array([1, 2]), {}, "Arrow array of int64"),
        ("x", {"unit": "char"}, "unit is 'char'"),
        ("x", {"unit": "id", "dtype": "uint64"}, "dtype is 'uint64'"),
        ([1, 70000], {"unit": "id"}, "token 1 of the corpus is 70000.* 65535; give dtype uint32"),
        ([3, -1], {"unit": "id"}, "token 1 of the corpus is -1"),
        ([0.5], {"unit": "id"}, "float64"),
        ([[1, 2]], {"unit": "id"}, r"shape \(1, 2\)"),
        (7, {"unit": "id"}, "no array of token ids"),
    ],
)
def test_bad_inputs_say_so(inputs, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        open_corpus(inputs, **options)
    assert "\n" not in str(caught.value)


def test_one_text_is_no_iterable_of_lines():
    with pytest.raises(InputError, match="Lines"):
        Lines("of the")


def test_bad_files_say_so(tree, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="missing.txt' does not exist or holds no file; correct the path$"):
        open_corpus([tree / "a.txt", tree / "missing.txt"])  # no talk of Lines: others exist
    (tree / "empty").mkdir()
    with pytest.raises(InputError, match="empty' is a directory without files"):
        open_corpus(tree / "empty")
    with pytest.raises(InputError, match="no regular file"):
        open_corpus("/dev/null")
    (tree / "odd.bin").write_bytes(b"123")
    with pytest.raises(InputError, match="odd.bin' holds 3 bytes, no multiple of the 2"):
        open_corpus(tree / "odd.bin", unit="id")
    (tree / "bad.parquet").write_bytes(b"PAR1 and then nothing PAR1")
    with pytest.raises(InputError, match="bad.parquet' is damaged Parquet"):
        open_corpus(tree / "bad.parquet")
    monkeypatch.setattr("builtins.open", _deny)
    with pytest.raises(InputError, match="a.txt': Permission denied"):
        open_corpus(tree / "a.txt")


def _deny(path, *_):
    raise PermissionError(13, "Permission denied", str(path))


def test_zstandard_is_asked_for_only_when_met(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a").write_bytes(TEXT)
    open_corpus(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(InputError, match="pip install zstandard"):
        open_corpus(tmp_path / "a")


def ranges(chunks):
    return [[(piece.source_index, piece.start, piece.end) for piece in chunk.pieces] for chunk in chunks]


def plain(*sizes):
    return Corpus(tuple(Source(f"{i}.txt", "plain", size, f"/{i}.txt") for i, size in enumerate(sizes)), "byte")


def test_cutting_by_hand():
    assert ranges(plain(10).chunks(100)) == [[(0, 0, 10)]]
    assert ranges(plain(10).chunks(5)) == [[(0, 0, 5)], [(0, 5, 10)]]
    assert ranges(plain(10).chunks(4)) == [[(0, 0, 4)], [(0, 4, 7)], [(0, 7, 10)]]
    assert ranges(plain(1, 1, 1, 1).chunks(100)) == [[(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)]]
    assert ranges(plain(0, 8, 0).chunks(4)) == [[(0, 0, 0), (1, 0, 4)], [(1, 4, 8), (2, 0, 0)]]
    assert ranges(plain(0).chunks(4)) == [[(0, 0, 0)]]
    assert ranges(plain().chunks(4)) == []
    with pytest.raises(InputError, match="chunk_bytes is 0"):
        plain(1).chunks(0)


@given(st.lists(st.integers(0, 3000), max_size=20), st.integers(1, 5000), st.sampled_from([1, 2, 4]))
def test_pieces_tile_the_corpus_in_order_and_chunks_are_about_equal(sizes, chunk_bytes, itemsize):
    sources = tuple(Source(str(i), "plain", s * itemsize, f"/{i}", itemsize) for i, s in enumerate(sizes))
    chunks = Corpus(sources, "id").chunks(chunk_bytes)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    at = [0] * len(sizes)
    last = 0
    for piece in (piece for chunk in chunks for piece in chunk.pieces):
        assert last <= piece.source_index and at[piece.source_index] == piece.start
        assert piece.start % itemsize == piece.end % itemsize == 0
        assert piece.start < piece.end or sizes[piece.source_index] == 0
        at[piece.source_index], last = piece.end, piece.source_index
    assert at == [source.size_bytes for source in sources]
    assert all(chunk.size_bytes == sum(p.end - p.start for p in chunk.pieces) for chunk in chunks)
    total = sum(at)
    target = total / max(1, -(-total // chunk_bytes))
    assert all(chunk.size_bytes <= 1.25 * target + 2 * itemsize for chunk in chunks)


def test_many_small_files_share_chunks():
    chunks = plain(*[100] * 1000).chunks(10_000)
    assert len(chunks) == 10
    assert {chunk.size_bytes for chunk in chunks} == {10_000}
    assert {len(chunk.pieces) for chunk in chunks} == {100}


def test_compressed_sources_stay_whole_and_row_groups_do_not(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(np.random.default_rng(0).bytes(10_000)))
    pq.write_table(
        pa.table({"text": [f"line {i} of the text" for i in range(1000)]}), tmp_path / "b", row_group_size=100
    )
    corpus = open_corpus([tmp_path / "a.gz", tmp_path / "b"])
    chunks = corpus.chunks(3000)
    pieces = [(piece.source_index, piece.start, piece.end) for chunk in chunks for piece in chunk.pieces]
    assert pieces[0] == (0, 0, corpus.sources[0].size_bytes)
    assert len(chunks) > 3 and len(chunks[0].pieces) == 1
    assert [start for _, start, _ in pieces[1:]] == [0, *(end for *_, end in pieces[1:-1])]  # row groups, in order
    assert pieces[-1] == (1, pieces[-1][1], 10)
    assert ranges(open_corpus(tmp_path / "b", unit="byte").chunks(1)) == [[(0, 0, 10)]]


def test_in_memory_chunks_are_cut_at_lines_and_carry_only_their_bytes():
    data = b"".join(b"%d of the\n" % i for i in range(1_500_000))
    corpus = open_corpus([data])
    chunks = corpus.chunks(1 << 40)
    assert len(chunks) == -(-len(data) // (7 << 20))
    assert all(len(pickle.dumps(chunk)) < 8 << 20 for chunk in chunks)
    assert all(data[: piece.end].endswith(b"\n") for chunk in chunks for piece in chunk.pieces)
    (piece,) = chunks[1].pieces
    assert piece.source.data == data[piece.start - 1 : piece.end]
    (piece,) = open_corpus(np.arange(9_000_000, dtype=np.uint32), unit="id", dtype="uint32").chunks(1 << 40)[1].pieces
    assert len(piece.source.data) == 1 + piece.end - piece.start + LOOKAHEAD_BYTES


def test_chunks_survive_pickling(tree):
    for corpus in (open_corpus(tree), open_corpus(Lines(["of the"] * 100))):
        chunks = corpus.chunks(20)
        assert pickle.loads(pickle.dumps(chunks)) == chunks and len(chunks) > 1
