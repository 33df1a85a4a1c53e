"""A corpus: which inputs are refused, and how it is cut into chunks."""

import gzip
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import LOOKAHEAD_BYTES, Corpus, open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines
from mgpu_ngram.core.inputs.sources import Source


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("missing.txt", {}, "'missing.txt' does not exist"),
        ("missing/*.txt", {}, r"'missing/\*.txt' matches no file"),
        (["of the", "in the"], {}, r"'of the' does not exist.*ng\.Lines\(\[\.\.\.\]\)"),
        ([], {}, "names no input"),
        ([b"of", 3], {}, "line 1 of the corpus is of type int"),
        ([None], {}, "line 0 of the corpus is None, not text; leave missing texts out"),
        (7, {}, "the corpus is 7; give paths"),
        (b"of the", {}, "one bytes object"),
        (Lines(["\ud800"]), {}, "line 0 .* UTF-8"),
        (pa.array([1, 2]), {}, "Arrow array of int64"),
        ("x", {"unit": "char"}, "unit is 'char'"),
        ("x", {"unit": "id", "dtype": "uint64"}, "dtype is 'uint64'"),
        ([1, 70000], {"unit": "id"}, "token 1 of the corpus is 70000.* 65535; give dtype uint32"),
        ([3, -1], {"unit": "id"}, "token 1 of the corpus is -1"),
        ([0.5], {"unit": "id"}, "float64"),
        ([[1, 2]], {"unit": "id"}, r"shape \(1, 2\)"),
        (7, {"unit": "id"}, "not an array of token ids"),
    ],
)
def test_bad_inputs_are_named(inputs, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        open_corpus(inputs, **options)
    assert "\n" not in str(caught.value)


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
