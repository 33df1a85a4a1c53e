"""`mgpu-ngram distribution` for a user: results worked by hand, and refusals."""

import io
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import mgpu_ngram as ng
from mgpu_ngram.jobs.distribution import passes as distribution_passes
from mgpu_ngram.stages.run_file import load

HERE = ["--workers", "0"]
MOST = ["--orders", "max", "--scale", "log10"]
AFTER_START = [-2.5, -0.5, -1.5, -0.5, -1.75]  # <s> has backoff -0.5, but "<s> a" is stored
AFTER_A = [-2.3125, -0.3125, -0.9375, -1.0625, -0.25]  # "<s> a" has backoff -0.0625, and "a" -0.25


@pytest.fixture
def folder(arpa, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a\n")
    return tmp_path


@pytest.fixture
def distribution(folder, mgpu_ngram):
    """Return distribution(*flags) of the text in this process: (status, stdout, stderr)."""
    return lambda *flags, text=("text",): mgpu_ngram("distribution", "model.arpa", *text, "-o", "out", *HERE, *flags)


def rows(path="out"):
    return np.asarray(ng.open_distributions(path)).tolist()


def test_it_writes_zarr(distribution, mgpu_ngram):
    status, out, err = distribution(*MOST)
    assert (status, err) == (0, "") and "out: 2 histories, orders 3, 5 words: " in out and " histories/s, 0." in out
    assert "GB/s" in out and "time went to " in out
    assert rows() == [[AFTER_START], [AFTER_A]]
    status, out, err = mgpu_ngram("info", "out")
    assert (status, err) == (0, "") and "rows.zarr: 2 x 1 x 5, float32\n" in out
    assert "from 1 input of 2 bytes, by model.arpa of order 3\noptions: " in out and "scale=log10" in out
    assert max(map(len, out.splitlines())) <= 100
    assert json.loads(mgpu_ngram("info", "out", "--json")[1])["histories"] == 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-n"], [[-2, 0, -1, -0.75, -1.25]]),
        (["--positions", "last"], [AFTER_A]),
        (["-n", "--positions", "last"], [[-2.25, -0.25, -0.875, -1, -0.375]]),
        (["--mode", "stored"], [[-np.inf] * 5, [-np.inf] * 4 + [-0.25]]),
        (["--format", "npy", "--dtype", "float16", "--no-verify"], [AFTER_START, AFTER_A]),
    ],
)
def test_flags(flags, expected, distribution):
    assert distribution(*MOST, *flags)[0] == 0
    assert rows() == [[row] for row in expected]


def test_every_order(distribution):
    assert distribution("--positions", "last")[0] == 0
    pairs = [-2.25, -0.25, -0.875, -1, -0.375]
    np.testing.assert_allclose(np.log10(rows()[0]), [[-2, 0, -1, -0.75, -1.25], pairs, AFTER_A], rtol=1e-6)
    assert distribution("--orders", "1,3", "--overwrite")[0] == 0
    assert np.shape(rows()) == (2, 2, 5)


def test_top_k_by_hand(distribution, mgpu_ngram):
    """Ties by id; <s> never follows a word."""
    status, out, _ = distribution(*MOST, "--top-k", "2", "--json")
    [result] = json.loads(out)
    assert status == 0 and result["manifest"]["histories"] == 2 and result["bytes_per_second"] > 0
    ids, values = (np.asarray(array).tolist() for array in ng.open_distributions("out"))
    assert (ids, values) == ([[[3, 2]], [[4, 2]]], [[[-0.5, -1.5]], [[-0.25, -0.9375]]])
    assert "2 words of 5" in mgpu_ngram("info", "out")[1]


def test_parquet(distribution, mgpu_ngram):
    assert distribution("--format", "parquet", "--mode", "stored", "--orders", "2,3", "--scale", "log10")[0] == 0
    table = pq.read_table("out/part-000000.parquet").to_pylist()
    assert [list(row.values()) for row in table] == [
        [0, 2, 3, "a", -0.5], [1, 2, 2, "</s>", -0.875], [1, 2, 4, "b", -0.375], [1, 3, 4, "b", -0.25],
    ]  # fmt: skip
    assert "a file for every 1,024 histories" in mgpu_ngram("info", "out")[1]


def test_compact(distribution, mgpu_ngram):
    assert distribution("--format", "compact")[0] == 0
    [block] = ng.open_distributions("out")
    assert ng.compact.densify(block, "cpu", "max", scale="log10").tolist() == [[AFTER_START], [AFTER_A]]
    status, out, err = mgpu_ngram("info", "out")
    assert (status, err) == (0, "") and "a file for every 65,536 histories" in out


def test_a_model_with_a_missing_ngram(folder, distribution, mgpu_ngram):
    """The model lacks "b </s>", which "a b </s>" needs: it is filled but not stored, in ARPA and model files."""
    text = (folder / "model.arpa").read_text()
    (folder / "model.arpa").write_text(text.replace("-0.625\tb </s>", "-0.625\tb a").replace(
        "\\end\\", "-0.125\ta b </s>\n\n\\end\\").replace("ngram 3=1", "ngram 3=2"))  # fmt: skip
    (folder / "text").write_text("a b\n")
    stored = [[[-np.inf] * 3 + [-0.625, -np.inf], [-np.inf, -np.inf, -0.125, -np.inf, -np.inf]]]
    flags = ["--positions", "last", "--orders", "2,3", "--scale", "log10", "--overwrite"]
    for model in "model.arpa", "m.safetensors":
        assert model == "model.arpa" or mgpu_ngram("trie", "model.arpa", "-o", model)[0] == 0
        there = ["distribution", model, "text", "-o", "out", *HERE, *flags]
        for format in "zarr", "npy":
            assert mgpu_ngram(*there, "--mode", "stored", "--format", format)[0] == 0 and rows() == stored
        assert mgpu_ngram(*there, "--mode", "stored", "--top-k", "2")[0] == 0
        ids, values = (np.asarray(array).tolist() for array in ng.open_distributions("out"))
        assert (ids, values) == ([[[3, -1], [2, -1]]], [[[-0.625, -np.inf], [-0.125, -np.inf]]])
        assert mgpu_ngram(*there, "--mode", "stored", "--format", "parquet")[0] == 0
        table = pq.read_table("out/part-000000.parquet").to_pylist()
        assert [list(row.values()) for row in table] == [[0, 2, 3, "a", -0.625], [0, 3, 2, "</s>", -0.125]]
        assert mgpu_ngram(*there[:5], *HERE, "--format", "compact", "--overwrite")[0] == 0
        [block] = ng.open_distributions("out")
        assert ng.compact.densify(block, "cpu", (2, 3), "stored", "log10")[-1:].tolist() == stored
        assert block.filled_F.tolist() == [3]  # of a after <s>, </s> and b after a, </s> and a after b, ...
        assert "a file for every 65,536 histories" in mgpu_ngram("info", "out")[1]
    assert "order 3" in mgpu_ngram("info", "m.safetensors")[1]


def test_stdin_and_several_texts(distribution, folder, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"a\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert distribution(*MOST, text=("text", "-"))[0] == 0
    assert rows() == [[AFTER_START], [AFTER_A]] * 2
    names = [i["name"] for i in json.loads((folder / "out" / "manifest.json").read_text())["inputs"]]
    assert names == ["text", "-"] and sorted(p.name for p in folder.iterdir()) == ["model.arpa", "out", "text"]


def test_a_finished_output_is_not_made_again(distribution):
    assert distribution(*MOST)[0] == 0
    assert distribution(*MOST, "--resume") == (0, "", "out: finished before\n")
    status, _, err = distribution("--resume")
    assert status == 2 and 'out is finished, but the options changed: options.orders was "max", is "all"' in err
    status, _, err = distribution()
    assert status == 2 and "output out exists; add --overwrite" in err and distribution("--overwrite")[0] == 0


def test_a_yaml_file(folder, mgpu_ngram):
    jobs = [
        {"trie": {"model": "model.arpa"}},
        {"distribution": {"model": "trie", "text": ["text"], "orders": "max", "scale": "log10", "format": "npy"}},
    ]
    document = {"output": "runs", "cluster": {"workers": 0}, "jobs": jobs}
    (folder / "run.yaml").write_text(json.dumps(document))
    status, out, err = mgpu_ngram("plan", "run.yaml")
    assert (status, err) == (0, "") and "distribution: 1 input of 2 bytes\nabout 0 histories, by runs/trie/model" in out
    assert mgpu_ngram("run", "run.yaml")[0] == 0 and rows("runs/distribution") == [[AFTER_START], [AFTER_A]]
    (folder / "text").write_bytes(b"a\n" * 11_000)
    found = json.loads(mgpu_ngram("plan", "run.yaml", "--json")[1])[1]
    assert found["histories_about"] == 4000 and found["output_bytes_about"] == 4000 * 5 * 4
    assert (found["inputs"], found["chunks"] > 1, found["format"]) == (1, True, "npy")
    status, out, err = mgpu_ngram("plan", "run.yaml")
    assert (status, err) == (0, "") and "about 80,000 bytes, in " in out


def test_the_example_config(folder, mgpu_ngram, request):
    path = request.config.rootpath / "configs" / "distribution.yaml"
    assert [stage for stage, _ in load(path).jobs] == ["convert", "distribution"]
    overrides = ["jobs.0.convert.model=model.arpa", "jobs.1.distribution.text=text", "cluster.workers=0"]
    status, out, err = mgpu_ngram("run", path, *overrides)
    assert (status, err) == (0, "") and "runs/distributions/distribution: 2 histories, orders 3" in out
    assert rows("runs/distributions/distribution") == [[AFTER_START], [AFTER_A]], "exact in 16 bits"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("missing text -o out", "missing: cannot be read"),
        ("model.arpa missing -o out", "missing"),
        ("model.arpa text", "-o/--output"),
        ("model.arpa -o out", "TEXT"),
        ("model.arpa text -o empty", "output empty exists; add --overwrite"),
        ("model.arpa text -o empty --overwrite", "empty exists and is not an output of mgpu_ngram"),
        ("model.arpa text -o text --overwrite", "output text is an input of this run"),
        ("model.arpa text -o s3://bucket/out", "is not a local path"),
        ("model.arpa text -o out --orders 4", "orders is '4' but the model has orders 1 to 3; give some of these"),
        ("model.arpa text -o out --orders some", "orders is 'some' but must be all, max or numbers such as 1,2,3"),
        ("model.arpa text -o out --top-k 0", "distribution: top_k is 0 but must be 1 to 1,024; leave it out"),
        ("model.arpa text -o out --top-k 2 --dtype float16", "the values of top_k are float32; leave dtype out"),
        ("model.arpa text -o out --format compact --top-k 2", "top_k is 2 but format compact is exact"),
        ("model.arpa text -o out --format parquet", "give top_k, mode stored, or format zarr"),
        ("model.arpa text -o out --format hdf5", "invalid choice: 'hdf5'"),
        ("model.arpa text -o out --checkpoint-seconds -1", "checkpoint_seconds is -1.0 but must be 0"),
        ("model.arpa text -o out --chunk-bytes 0", "chunk_bytes is 0 but must be at least 1"),
        ("model.arpa text -o out --resume", "nothing to resume: "),
        (
            "model.arpa empty -o out -n --positions last",
            "'empty': the line that ends at byte 2 is empty, and an empty history",
        ),
    ],
)
def test_refused(words, message, folder, mgpu_ngram):
    (folder / "empty").write_text("a\n\n")
    status, out, err = mgpu_ngram("distribution", *words.split(), *HERE)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert sorted(p.name for p in folder.iterdir()) == ["empty", "model.arpa", "text"]


def test_properties_of_a_model_file_are_checked_first(folder, mgpu_ngram, monkeypatch):
    """A request that the model cannot serve starts no cluster."""
    assert mgpu_ngram("trie", "model.arpa", "-o", "m.safetensors", "--no-backoff")[0] == 0
    monkeypatch.setattr("mgpu_ngram.commands.run.open_executor", None)
    for flags, message in (["--mode", "stored", "--orders", "4"], "has orders 1 to 3"), ([], "has no backoffs"):
        status, out, err = mgpu_ngram("distribution", "m.safetensors", "text", "-o", "out", *flags)
        assert (status, out) == (2, "") and message in err


def test_a_disk_that_is_too_small(distribution, folder, monkeypatch):
    usage = type(distribution_passes.shutil.disk_usage(folder))(1 << 40, 0, 79)
    monkeypatch.setattr(distribution_passes.shutil, "disk_usage", lambda path: usage)
    assert distribution("--dtype", "float16")[0] == 0, "60 bytes"
    status, out, err = distribution("--overwrite")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(
        f"mgpu-ngram: the output needs 120 bytes but 79 are free in {folder}; give top_k, fewer orders"
    )
