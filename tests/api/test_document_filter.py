"""`ng.filter` over pandas and Dask: the figures of the command, lazily, partition by partition."""

import json
import pickle

import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import mgpu_ngram as ng
from mgpu_ngram.api.document_filter import DocumentFilter
from tests.support.slow_cases import first_fast

TEXTS = ["a b", "c", "a b\nc", "", None, "a  b"]
BY_HAND = [2.9, 56.2, 9.6, None, None, 2.9]
FIELDS = ["perplexity", "log10", "words", "oovs"]


@pytest.fixture(scope="module")
def client():
    here = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**here) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def frame():
    return pd.DataFrame({"text": TEXTS, "n": range(6)}, index=list("uvwxyz"))


def test_pandas_by_hand(arpa, frame):
    found = ng.filter(frame, arpa)
    assert list(found.columns) == ["text", "n", *FIELDS] and list(found.index) == list("uvwxyz")
    assert [None if p != p else p for p in found["perplexity"]] == BY_HAND
    assert found["words"].tolist() == [3, 2, 5, 0, 0, 3] and found["oovs"].tolist() == [0, 1, 1, 0, 0, 0]
    assert np.isnan(found["log10"]["x"]) and found["log10"]["w"] == -4.90625
    assert "perplexity" not in frame.columns, "the frame of the caller stays"
    few = ng.filter(frame, arpa, max_perplexity=10, keep=["perplexity", "lines"])
    assert few.index.tolist() == ["u", "w", "z"] and few["lines"].tolist() == [[2.9], [2.9, 56.2], [2.9]]


def test_pandas_without_rows(arpa, frame):
    found = ng.filter(frame.iloc[:0], arpa, fixed_buckets="head:9")
    assert len(found) == 0 and found.dtypes.to_dict() == ng.filter(frame, arpa, fixed_buckets="head:9").dtypes.to_dict()


def test_missing_texts_of_pandas(arpa):
    for missing in None, float("nan"), pd.NA:
        found = ng.filter(pd.DataFrame({"text": ["a b", missing]}), arpa)
        assert found["words"].tolist() == [3, 0]


def with_client(client, given):
    return {"client": client} if given else {}


@pytest.mark.parametrize("given", first_fast([True, False]))
def test_a_dask_dataframe(given, arpa, frame, client):
    """Types of columns are known before anything is computed; the rows are those of pandas."""
    settings = {"fixed_buckets": ["head:9.6"], "only": ["head"], "max_perplexity": 50}
    lazy = ng.filter(
        dask.dataframe.from_pandas(frame, npartitions=3, sort=False), arpa, **settings, **with_client(client, given)
    )
    wanted = ng.filter(frame, arpa, **settings)
    assert list(lazy.columns) == list(wanted.columns) and lazy.dtypes["words"] == "int64"
    found = lazy.compute()
    assert found.index.tolist() == ["u", "z"] and found["bucket"].tolist() == ["head"] * 2
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_index_type=False)
    assert lazy["words"].sum().compute() == 6


@pytest.mark.parametrize("given", [True, False])
def test_a_bag(given, arpa, client):
    bag = dask.bag.from_sequence([{"id": i, "text": text} for i, text in enumerate(TEXTS)], npartitions=4)
    found = ng.filter(bag, arpa, keep="perplexity", **with_client(client, given)).compute()
    assert [d.pop("perplexity", None) for d in found] == BY_HAND
    assert found == [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    texts = dask.bag.from_sequence(["a b", "c"], npartitions=2)
    found = ng.filter(texts, arpa, keep="words", text_column="body", max_perplexity=9).compute()
    assert found == [{"body": "a b", "words": 3}]


def test_nothing_is_scored_before_compute(arpa, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("scored")

    monkeypatch.setattr(DocumentFilter, "__call__", refuse)
    lazy = ng.filter(dask.bag.from_sequence(["a b"]), arpa)
    with pytest.raises(AssertionError, match="scored"):
        lazy.compute(scheduler="synchronous")


@pytest.mark.slow
def test_languages_and_a_contrast_model(arpa_text, arpa, tmp_path, client):
    """All settings of the command have its figures."""
    (tmp_path / "en.arpa").write_text(arpa_text)
    (tmp_path / "de.arpa").write_text(arpa_text.replace("-0.25", "-0.75"))
    documents = [{"text": t, "lang": name} for t in ("a b", "b a b", "c a") for name in ("en", "de", "fr")]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    settings = {"language_column": "lang", "contrast_model": str(arpa), "bucket_by": "difference"}
    settings |= {"fixed_buckets": ["near:0.1"], "normalize": "nfc", "only": ["near,all"]}
    model = str(tmp_path / "{language}.arpa")
    result = ng.filter(tmp_path / "docs.jsonl", model, tmp_path / "out", **settings)
    wanted = [json.loads(line) for line in (tmp_path / "out/documents/docs.jsonl").open()]
    assert 0 < result.stats.kept == len(wanted) < 9
    bag = dask.bag.from_sequence(documents, npartitions=3)
    assert ng.filter(bag, model, client=client, **settings).compute() == wanted


def test_files_on_a_cluster(arpa, tmp_path, client):
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    ng.filter([tmp_path / "docs.jsonl"], arpa, tmp_path / "here", report=False)
    ng.filter(str(tmp_path / "docs.jsonl"), arpa, tmp_path / "there", report=False, client=client)
    assert (tmp_path / "here/documents/docs.jsonl").read_bytes() == (
        tmp_path / "there/documents/docs.jsonl"
    ).read_bytes()
    with pytest.raises(ng.InputError, match="overwrite"):
        ng.filter(tmp_path / "docs.jsonl", arpa, tmp_path / "here")
    ng.filter(tmp_path / "docs.jsonl", arpa, tmp_path / "here", overwrite=True, max_perplexity=10)
    assert len((tmp_path / "here/documents/docs.jsonl").read_text().splitlines()) == 3


def test_a_filter_is_picklable_and_small(arpa):
    documents = DocumentFilter(arpa, max_perplexity=10)
    assert len(pickle.dumps(documents)) < 4000
    assert pickle.loads(pickle.dumps(documents))(["a b", "c"]).kept_D == [True, False]


def test_a_worker_with_another_model(arpa):
    documents = DocumentFilter(arpa)
    documents.check_files()
    arpa.write_text(arpa.read_text() + "\n")
    with pytest.raises(ng.InputError, match="model.arpa is another file on a worker; give all workers the same file"):
        documents.check_files()


def test_any_blocks_have_the_same_figures(arpa, monkeypatch):
    from mgpu_ngram.api import document_filter

    wanted = DocumentFilter(arpa, keep="perplexity,lines")([t or "" for t in TEXTS])
    monkeypatch.setattr(document_filter, "BLOCK_BYTES", {"cpu": 3})
    assert DocumentFilter(arpa, keep="perplexity,lines")([t or "" for t in TEXTS]) == wanted


@pytest.mark.gpu
def test_on_a_gpu(arpa, frame):
    settings = {"fixed_buckets": "head:9.6", "keep": "perplexity,log10,words,oovs,bucket,lines"}
    wanted = ng.filter(frame, arpa, device="cpu", **settings)
    pd.testing.assert_frame_equal(ng.filter(frame, arpa, device="gpu", **settings), wanted)
    bag = dask.bag.from_sequence([text or "" for text in TEXTS], npartitions=3)
    lazy = [ng.filter(bag, arpa, device=device, **settings) for device in ("cpu", "gpu")]
    assert lazy[0].compute(scheduler="threads") == lazy[1].compute(scheduler="threads")


@pytest.mark.parametrize(
    ("documents", "options", "wanted"),
    [
        (3, {}, "documents is of type int but must be paths, a DataFrame of pandas or Dask, or a Dask bag"),
        ([], {}, "documents is of type list but must be paths"),
        (["docs.jsonl"], {}, "documents are files but output is not given; give output=FOLDER"),
        (["docs.jsonl"], {"output": "out", "name": "x"}, "name is for jobs of a YAML file"),
        ("frame", {"output": "out"}, "output is for files; leave it out"),
        ("frame", {"resume": True}, "resume is for files"),
        ("frame", {"sample": 9}, "sample is for files"),
        ("frame", {"text_column": "body"}, "the DataFrame lacks the column 'body'; name one with text_column: text, n"),
        ("twice", {}, "the DataFrame has two columns 'text'; rename one of them or leave it out"),
        ("frame", {"text_column": "n"}, "row 0 has the int 0 as 'n', not text; convert the column"),
        ("frame", {"buckets": ["head:30"]}, "buckets at percentiles need the scores of all documents"),
        ("frame", {"client": object()}, "client is given but the documents are not Dask's"),
        ("frame", {"device": "tpu"}, "device is 'tpu' but must be auto, cpu or gpu"),
        ("frame", {"max_perplexty": 3}, "unknown key 'max_perplexty'; did you mean 'max_perplexity'?"),
        ("bag", {"client": "tcp://x"}, "client is 'tcp://x' but must be a distributed.Client"),
    ],
)
def test_errors_of_one_line(documents, options, wanted, arpa, frame):
    named = {"frame": frame, "twice": frame.set_axis(["text", "text"], axis=1), "bag": dask.bag.from_sequence(["a"])}
    with pytest.raises(ng.InputError) as caught:
        ng.filter(named.get(documents, documents) if isinstance(documents, str) else documents, arpa, **options)
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


def test_errors_of_dask(arpa, frame, client):
    lazy = dask.dataframe.from_pandas(frame, npartitions=1)
    with pytest.raises(ng.InputError, match="documents is a Dask Series; give a bag, or a DataFrame"):
        ng.filter(lazy["text"], arpa)
    with pytest.raises(ng.InputError, match="none.arpa: cannot be read"):
        ng.filter(lazy, "none.arpa", client=client)
    for element, wanted in ({"body": "a"}, "no key 'text'"), (3, "the type int"):
        with pytest.raises(ng.InputError, match=f"element 0 of a partition has {wanted}"):
            ng.filter(dask.bag.from_sequence([element]), arpa, client=client).compute()
