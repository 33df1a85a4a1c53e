"""In-memory corpora: lines, Arrow arrays and token ids."""

import numpy as np
import pyarrow as pa
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.inputs.in_memory import Lines

TEXT = b"of the\nin the\n"


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


def test_one_text_is_no_iterable_of_lines():
    with pytest.raises(InputError, match="Lines"):
        Lines("of the")
