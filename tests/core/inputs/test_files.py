"""The files of paths, globs, directories and URLs, and the errors if there are none."""

import sys

import fsspec
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_corpus
from mgpu_ngram.core.storage.output import write_manifest

TEXT = b"of the\nin the\n"


def names(corpus, root=""):
    return [source.name.removeprefix(f"{root}/") for source in corpus.sources]


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


def test_an_existing_path_with_glob_characters_is_literal(tmp_path):
    (tmp_path / "a[1].txt").write_bytes(TEXT)
    assert names(open_corpus(tmp_path / "a[1].txt"), tmp_path) == ["a[1].txt"]


def test_a_relative_path_is_reopened_from_any_folder(tree, monkeypatch):
    monkeypatch.chdir(tree)
    (source,) = open_corpus("a.txt").sources
    assert (source.name, source.location) == ("a.txt", str(tree / "a.txt"))


def test_an_output_folder_is_no_folder_of_text(tree):
    """Its manifest would be read as text; that of another program is read, and so is a named file."""
    write_manifest(tree / "sub", {}, "mgpu_ngram counts")
    for folder in tree, tree / "sub", f"file://{tree}":
        with pytest.raises(
            InputError, match=r"sub' is an output folder \(mgpu_ngram counts\), .*; name the files to read$"
        ):
            open_corpus(folder)
    assert names(open_corpus(f"{tree}/sub/*.txt"), tree) == ["sub/c.txt"]
    (tree / "sub" / "manifest.json").write_text('{"text": "of others"}\n')
    assert "sub/manifest.json" in names(open_corpus(tree), tree)
    (tree / ".made").mkdir(exist_ok=True)
    write_manifest(tree / ".made", {}, "mgpu_ngram counts")
    assert names(open_corpus(tree), tree)[:2] == ["a.txt", "b.txt"]


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


@pytest.mark.parametrize(
    ("url", "driver"), [("https://host/a.txt", "aiohttp"), ("http://host/*.txt", "aiohttp"), ("s3://bucket/a", "s3fs")]
)
def test_a_missing_driver_is_named(url, driver, monkeypatch):
    for module in list(sys.modules):
        if module.startswith("fsspec.implementations.http"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, driver, None)
    for implementation in "http", "https", "s3":
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, implementation, raising=False)
    with pytest.raises(InputError, match=r"cannot read '.*': a package is missing \(.*\); pip install ") as error:
        open_corpus(url)
    assert str(error.value).endswith("; pip install 'mgpu-ngram[remote]'") and "\n" not in str(error.value)


def test_bad_files_are_named(tree, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="missing.txt' does not exist or holds no file; correct the path$"):
        open_corpus([tree / "a.txt", tree / "missing.txt"])  # no hint about Lines, because other files exist
    (tree / "empty").mkdir()
    with pytest.raises(InputError, match="empty' is a directory without files"):
        open_corpus(tree / "empty")
    with pytest.raises(InputError, match="not a regular file"):
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
