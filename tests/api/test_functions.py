"""The Python interface in the calls of a user."""

import gc
import gzip
import inspect
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram.core.counts import parquet
from mgpu_ngram.core.storage.claim import claimed

LINES = ["of the people", "by the people", "", "for the people of the people"]
BIGRAMS = {"of the": 2, "the people": 4, "by the": 1, "for the": 1, "people of": 1}


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES[:2]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(LINES[2:]) + "\n")
    return tmp_path


CORPORA = {
    "paths": lambda f: [f / "a.txt", str(f / "b.txt")],
    "glob": lambda f: f"{f}/*.txt",
    "folder": lambda f: f,
    "url": lambda f: [f"file://{f}/a.txt", f"file://{f}/b.txt"],
    "Lines of str": lambda f: ng.Lines(LINES),
    "Lines of bytes": lambda f: ng.Lines([line.encode() + b"\n" for line in LINES]),
    "generator of str": lambda f: (line for line in LINES),
    "generator of bytes": lambda f: (line.encode() for line in LINES),
    "list of bytes": lambda f: [line.encode() for line in LINES],
    "Arrow array": lambda f: pa.array(LINES),
    "Arrow chunked array": lambda f: pa.chunked_array([LINES[:1], LINES[1:]]),
    "Arrow large_string": lambda f: pa.array(LINES, pa.large_string()),
    "Arrow with null": lambda f: pa.array([LINES[0], LINES[1], None, LINES[3]]),
}


@pytest.mark.parametrize("kind", CORPORA)
def test_every_kind_of_corpus(kind, text):
    counts = ng.count(CORPORA[kind](text), order=3)
    assert dict(counts.order(2)) == BIGRAMS
    assert (counts.manifest["tokens"], counts.manifest["lines"], counts.max_order) == (12, 4, 3)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([7, 8, 0, 8, 7, 8], "uint16"),
        np.array([7, 8, 0, 8, 7, 8]),
        [7, 8, 0, 8, 7, 8],
        iter([7, 8, 0, 8, 7, 8]),
    ],
    ids=["uint16", "int64", "list", "iterator"],
)
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_ids(ids, dtype):
    if not isinstance(ids, np.ndarray | list):
        ids = iter([7, 8, 0, 8, 7, 8])
    counts = ng.count(ids, order=2, unit="id", dtype=dtype, separator_id=0)
    assert dict(counts.order(2)) == {(7, 8): 2, (8, 7): 1}
    assert counts[7, 8] == 2 and counts[[8, 7]] == 1 and counts[8, 8] == 0 and (7, 8) in counts


def test_look_up_and_top(text):
    counts = ng.count(text, order=3)
    assert counts["of the"] == 2 and counts[b"the people"] == 4 and counts["of", "the"] == 2
    assert counts["the"] == 4 and counts["of the people"] == 2 and counts["the of"] == 0 and counts["nowhere"] == 0
    assert "by the" in counts and "the by" not in counts
    with pytest.raises(KeyError, match="order 4"):
        counts["of the people by"]
    assert counts.order(2).top(2) == [("the people", 4), ("of the", 2)]
    assert counts.order(1).top(10) == [("people", 4), ("the", 4), ("of", 2), ("by", 1), ("for", 1)]
    assert len(counts.order(2)) == 5 and counts.order(2).total == 9 == counts.totals[2]
    with pytest.raises(ng.InputError, match="order 4 was not counted"):
        counts.order(4)


def test_arrow_and_parquet(text, tmp_path):
    counts = ng.count(text, order=2)
    table = counts.order(2).to_arrow()
    assert table.schema.names == ["ngram", "count"]
    assert dict(zip(*(c.to_pylist() for c in table.columns), strict=True)) == BIGRAMS
    kept = counts.to_parquet(tmp_path / "kept")
    read = ng.read_counts(kept)
    assert dict(read.order(2)) == BIGRAMS and read["of the"] == 2 and read.manifest == counts.manifest
    by_hand = pq.read_table(tmp_path / "kept" / "order=2" / "part-00000.parquet", partitioning=None)
    assert by_hand.equals(table)


@pytest.mark.parametrize("unit", ["word", "byte", "id"])
def test_columns_of_ids_hold_the_same_counts(unit, tmp_path, monkeypatch):
    """In row groups of 7 rows, with a word that is not UTF-8."""
    for name in "GROUP_ROWS", "IDS_GROUP_ROWS":
        monkeypatch.setattr(parquet, name, 7)
    if unit == "id":
        corpus = np.random.default_rng(0).integers(0, 9, 300).astype("uint16")
    else:
        corpus = ng.Lines([*LINES, b"caf\xe9 of the people", *("a b c d e f g " * 9, "c a f e")])
    text = ng.count(corpus, order=3, unit=unit)
    ids = ng.count(corpus, order=3, unit=unit, columns="ids", output=tmp_path / "ids")
    assert (text.columns, ids.columns) == ("text", "ids")
    for n in (1, 2, 3):
        assert ids.order(n).to_arrow().equals(text.order(n).to_arrow())
        assert list(ids.order(n)) == list(text.order(n)) and ids.order(n).top(4) == text.order(n).top(4)
        assert all(ids[ngram] == count for ngram, count in text.order(n))
    nowhere = (8, 8, 8) if unit == "id" else b"e e e" if unit == "word" else b"ppp"
    assert ids[nowhere] == text[nowhere] == 0
    part = pq.read_table(tmp_path / "ids" / "order=2" / "part-00000.parquet", partitioning=None)
    assert part.schema.names == ["id1", "id2", "count"]


def test_an_id_outside_the_vocabulary_is_damage(tmp_path):
    counts = ng.count(ng.Lines(LINES), order=2, columns="ids", output=tmp_path / "ids")
    part = tmp_path / "ids" / "order=2" / "part-00000.parquet"
    table = pq.read_table(part, partitioning=None)
    pq.write_table(table.set_column(0, "id1", pa.array([999] * len(table), pa.int32())), part)
    with pytest.raises(ng.InputError, match=r"is damaged: it has id 999 but its vocabulary has \d+; count again"):
        list(counts.order(2))


def test_bytes():
    counts = ng.count(ng.Lines(["ab", "ab"]), order=2, unit="byte")
    assert dict(counts.order(2)) == {b"ab": 2, b"b\n": 2, b"\na": 1}
    assert counts[b"ab"] == 2 and counts["b\n"] == 2


def test_a_temporary_folder_is_removed_with_the_result(text, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    counts = ng.count(text / "a.txt", order=2)
    (folder,) = (tmp_path / "temporary").iterdir()
    assert counts.path.is_relative_to(folder)
    order = counts.order(2)
    del counts
    gc.collect()
    assert order.top(1) == [("the people", 2)], "an order keeps the folder alive"
    del order
    gc.collect()
    assert not folder.exists()
    with pytest.raises(ng.InputError):
        ng.count(text / "missing", order=2)
    with pytest.raises(ng.InputError):
        ng.count(text / "a.txt", order=0)
    assert not list((tmp_path / "temporary").iterdir()), "a failed run leaves nothing"


def test_an_output_that_is_an_input(text, tmp_path, arpa):
    counts = ng.count(text / "a.txt", 2, output=tmp_path / "counts")
    with pytest.raises(ng.InputError, match=f"output {tmp_path}/counts is an input of this run; give another"):
        ng.count(text / "a.txt", 2, add=[str(counts.path)], output=str(counts.path), overwrite=True)
    pq.write_table(pa.table({"text": ["a b"]}), tmp_path / "text.parquet")
    (tmp_path / "link.parquet").symlink_to("text.parquet")
    with pytest.raises(ng.InputError, match="link.parquet is .*text.parquet, an input of this run"):
        ng.score(arpa, str(tmp_path / "text.parquet"), tmp_path / "link.parquet", overwrite=True)


def test_an_output_that_another_run_writes(text, tmp_path, arpa):
    (tmp_path / "docs.jsonl").write_text('{"text": "a b"}\n')
    out = tmp_path / "out.parquet"
    calls = [
        lambda: ng.count(text / "a.txt", 2, output=out),
        lambda: ng.score(arpa, text / "a.txt", out),
        lambda: ng.filter(tmp_path / "docs.jsonl", arpa, out),
    ]
    with claimed([out]):
        for call in calls:
            with pytest.raises(ng.InputError, match=f"another run writes {out}: process {os.getpid()} on .*; wait for"):
                call()
    assert not out.exists() and not list(tmp_path.glob(".out*"))
    assert ng.score(arpa, text / "a.txt", out).path == out
    assert not list(tmp_path.glob(".out*"))


def test_an_output_folder_is_kept(text, tmp_path):
    out = tmp_path / "out"
    counts = ng.count(text / "a.txt", order=2, output=out)
    assert counts.path == out
    del counts
    gc.collect()
    assert ng.read_counts(out)["of the"] == 1
    with pytest.raises(ng.InputError, match="exists; add --overwrite|exists"):
        ng.count(text / "b.txt", order=2, output=out)
    assert ng.count(text / "b.txt", order=2, output=out, overwrite=True)["for the"] == 1
    with pytest.raises(ng.InputError, match="'s3://bucket/out' is not a local path"):
        ng.count(text / "b.txt", output="s3://bucket/out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "order is 0 but must be from 1 to 1000"),
        ({"order": "five"}, "order is 'five' but must be of type int"),
        ({"oder": 3}, "unknown key 'oder'; did you mean 'order'"),
        ({"unit": "words"}, "unit is 'words'; did you mean 'word'"),
        ({"strategy": "fast"}, "strategy is 'fast'"),
        ({"device": "tpu"}, "device is 'tpu' but must be auto, cpu or gpu"),
        ({"chunk_bytes": "many"}, "chunk_bytes is 'many' but must be a size"),
        ({"lowercase": 1}, "lowercase is 1 but must be of type bool"),
        ({"unit": "id"}, "token ids|not an array of token ids"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ng.InputError, match=message):
        ng.count(ng.Lines(LINES), **options)


@pytest.mark.parametrize(
    "corpus",
    [[], 5, b"one text", [1, 2], None, ["a path", b"a line"], {"of": 1}, pa.table({"text": ["of"]})],
    ids=lambda corpus: type(corpus).__name__,
)
def test_invalid_corpora(corpus):
    with pytest.raises(ng.InputError):
        ng.count(corpus)


def test_a_number_is_no_path_and_no_word():
    """Each function names its argument, the value and the types that it takes."""
    for call, name in (
        (lambda: ng.read_counts(5), "path"),
        (lambda: ng.Model.load(5), "path"),
        (lambda: ng.open_distributions(5), "path"),
        (lambda: ng.score(5, ng.Lines(LINES)), "model"),
    ):
        with pytest.raises(ng.InputError, match=f"^{name} is 5 but must be a path, as str or pathlib.Path$"):
            call()
    with pytest.raises(ng.InputError, match="^word is 5 but must be str or bytes$"):
        ng.estimate(ng.Lines(LINES), order=1, discount_fallback=(0.5, 1.0, 1.5)).vocabulary.id(5)


def test_options_of_a_run():
    lines = ng.Lines(["The the", "THE"])
    assert ng.count(lines, 1, lowercase=True)["the"] == 3
    assert ng.count(lines, 2, sentence_markers=True)["<s> THE"] == 1
    assert dict(ng.count(ng.Lines(LINES), 2, min_count=2).order(2)) == {"the people": 4, "of the": 2}
    for strategy in ("global", "private", "sort", "hash"):
        assert dict(ng.count(ng.Lines(LINES), 2, strategy=strategy, chunk_bytes="8 B").order(2)) == BIGRAMS


def test_progress_is_reported():
    told = []

    class Listener:
        def start(self, phase, total, unit="", rate=""):
            told.append((phase, total))

        def advance(self, done, amount=0):
            told.append(done)

        def finish(self):
            told.append("end")

    ng.count(ng.Lines(LINES), 2, chunk_bytes=20, progress=Listener())
    phases = dict(t for t in told if isinstance(t, tuple))
    assert list(phases) == ["tokenise", "count", "reduce", "write"] and told[-1] == "end"
    assert sum(t for t in told if isinstance(t, int)) == sum(phases.values())


@pytest.fixture(scope="module")
def client():
    here = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**here) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.parametrize("kind", ["paths", "generator of str", "Arrow chunked array"])
def test_client(kind, text, client):
    counts = ng.count(CORPORA[kind](text), order=3, client=client, chunk_bytes=16)
    assert dict(counts.order(2)) == BIGRAMS
    assert client.status == "running"


def test_client_raises_the_error_of_a_worker(text, client):
    (text / "cut.gz").write_bytes(gzip.compress(b"of the people")[:-9])
    with pytest.raises(ng.InputError, match=r"cut.gz' is truncated gzip .* at byte"):
        ng.count(text / "cut.gz", client=client)


def test_client_without_workers(text):
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
        pytest.raises(ng.InputError, match="has no workers; start some"),
    ):
        ng.count(text, client=client)


def test_everything_public_is_documented():
    assert ng.__version__.count(".") == 2
    for name in ng.__all__:
        assert inspect.getdoc(getattr(ng, name)), name
