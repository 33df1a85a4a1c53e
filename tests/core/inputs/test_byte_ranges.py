"""Stored bytes: files that change, and URLs read in ranges."""

import gzip

import fsspec
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus


def test_changed_files_are_found(tmp_path, owned_text):
    path = tmp_path / "a.txt"
    path.write_bytes(b"of the\n" * 100)
    corpus = open_corpus(path)
    path.write_bytes(b"of the\n")
    with pytest.raises(InputError, match="a.txt' ends at byte 7 but had 700"):
        owned_text(corpus, 1000, 1000)
    path.unlink()
    with pytest.raises(InputError, match="a.txt': No such file"):
        owned_text(corpus, 1000, 1000)


def test_urls_are_read_in_ranges(owned_text):
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/a", b"of the\nin the\nlast")
    memory.pipe("/corpus/b", gzip.compress(b"zipped"))
    try:
        corpus = open_corpus("memory://corpus/*")
        assert owned_text(corpus, 5, 7, threads=2)[0] == {0: b"of the\nin the\nlast", 1: b"zipped"}
        memory.rm("/corpus/a")
        with pytest.raises(InputError, match="memory://.*corpus/a"):
            owned_text(corpus, 5, 7)
    finally:
        memory.rm("/corpus", recursive=True)
