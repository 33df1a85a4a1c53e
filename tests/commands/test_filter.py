"""`mgpu-ngram filter` for a user: what it prints and writes, and one clear line for each error."""

import json

import pytest

from mgpu_ngram.core.storage.output import find_manifest

HERE = ["--workers", "0"]


@pytest.fixture
def folder(arpa, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"body": text} for text in ("a b", "c", "a b", "")]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_run(folder, mgpu_ngram):
    """The perplexities are 2.9, 56.2 and 2.9; the percentile 60 lies a fifth above the middle one."""
    flags = ["--text-column", "body", "--buckets", "head:60", "--keep", "perplexity,bucket", "--only", "head"]
    status, out, err = mgpu_ngram("filter", "docs.jsonl", "-o", "out", "-m", "model.arpa", *flags, *HERE)
    assert (status, err) == (0, "")
    assert out.splitlines()[:3] == ["out: 4 documents, 2 kept", "cut-offs: 13.6", "buckets: all 1, head 2, tail 1"]
    found = [json.loads(line) for line in (folder / "out/documents/docs.jsonl").open()]
    assert found == [{"body": "a b", "perplexity": 2.9, "bucket": "head"}] * 2
    assert sorted(p.name for p in (folder / "out").iterdir()) == [
        "documents", "manifest.json", "rejects.jsonl", "report.html",
    ]  # fmt: skip
    assert mgpu_ngram("info", "out")[1].splitlines()[:3] == [
        "out: 4 documents of 1 shard, 2 kept, 0 rejects; by model.arpa", *out.splitlines()[1:3],
    ]  # fmt: skip
    assert find_manifest(folder / "out")["totals"]["buckets"]["tail"] == {"documents": 1, "kept": 0, "words": 2}


def test_no_documents(folder, mgpu_ngram):
    (folder / "empty.jsonl").touch()
    flags = ["-m", "model.arpa", "--fixed-buckets", "head:9", *HERE]
    status, out, err = mgpu_ngram("filter", "empty.jsonl", "-o", "out", *flags)
    assert (status, err) == (0, "")
    assert out.splitlines()[:3] == [
        "out: 0 documents, 0 kept", "cut-offs: 9.0", "buckets: none, there are no documents",
    ]  # fmt: skip


def test_a_summary_for_machines(folder, mgpu_ngram):
    flags = ["--text", "body", "--max-perplexity", "10", "--no-report", "--json"]
    status, out, _ = mgpu_ngram("filter", "docs.jsonl", "-o", "out", "-m", "model.arpa", *flags, *HERE)
    found = json.loads(out)
    assert status == 0 and (found["documents"], found["kept"], found["words"], found["oovs"]) == (4, 2, 8, 1)
    assert not (folder / "out/report.html").exists()


def test_a_plan_and_a_job(folder, mgpu_ngram):
    """The job of the YAML file takes the model of an earlier job."""
    (folder / "jobs.yaml").write_text(
        "output: runs\ncluster: {workers: 0}\njobs:\n- trie: {model: model.arpa}\n"
        "- filter: {text: docs.jsonl, model: trie, text_column: body, buckets: [head:30]}\n"
    )
    status, out, _ = mgpu_ngram("plan", "jobs.yaml")
    assert status == 0 and "filter: 1 shard of 59 bytes in 2 passes" in out and "head below percentile 30" in out
    assert mgpu_ngram("run", "jobs.yaml")[0] == 0
    assert len((folder / "runs/filter/documents/docs.jsonl").read_text().splitlines()) == 4


def test_a_job_with_two_models(folder, mgpu_ngram):
    """Both models are those of earlier jobs; they are the same, so all differences are 0."""
    (folder / "jobs.yaml").write_text(
        "output: runs\ncluster: {workers: 0}\njobs:\n- trie: {model: model.arpa, name: good}\n"
        "- trie: {model: model.arpa, name: web}\n- filter: {text: docs.jsonl, model: good, contrast_model: web, "
        "text_column: body, buckets: [near:50], bucket_by: difference, sample: 3}\n"
    )
    out = mgpu_ngram("plan", "jobs.yaml")[1]
    assert "in contrast to runs/web" in out and "near below percentile 50 of 3 documents" in out
    assert mgpu_ngram("run", "jobs.yaml")[0] == 0
    found = [json.loads(line) for line in (folder / "runs/filter/documents/docs.jsonl").open()]
    assert [d.get("cross_entropy_difference") for d in found] == [0.0, 0.0, 0.0, None]
    assert [d["bucket"] for d in found] == ["tail"] * 3 + ["all"]
    assert "cut-offs: 0.0000" in mgpu_ngram("info", "runs/filter")[1]


def test_an_output_that_would_replace_its_input(folder, mgpu_ngram):
    flags = ["-m", "model.arpa", "--text", "body", *HERE]
    assert mgpu_ngram("filter", "docs.jsonl", "-o", "out", *flags)[0] == 0
    whole = (folder / "out/documents/docs.jsonl").read_bytes()
    status, _, err = mgpu_ngram("filter", "out/documents", "-o", "out", "--overwrite", *flags)
    assert status == 2 and err.count("\n") == 1 and err.rstrip().endswith(
        "output out would replace out/documents/docs.jsonl, which this run reads; give another output path"
    ), err  # fmt: skip
    assert (folder / "out/documents/docs.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["-m", "none.arpa"], "none.arpa: cannot be read (No such file or directory)"),
        (["-m", "none.{language}.arpa"], "the model 'none.{language}.arpa' matches no file"),
        (["-m", "model.arpa", "--tokenizer", "none.model"], "none.model: cannot be read"),
        (["-m", "model.arpa", "--text", "body", "--tokenizer", "empty"], "empty: cannot be read (it is no"),
        (["-m", "model.arpa"], "lacks the key 'text'; name one with text_column: body"),
        (["-m", "model.arpa", "--text", "body", "--only", "head"], "only has 'head' but there are no buckets"),
        (["-m", "model.arpa", "--text", "body", "--buckets", "a:30", "--cutoffs", "none.csv"], "none.csv: cannot be"),
    ],
)
def test_errors_of_one_line(flags, wanted, folder, mgpu_ngram):
    (folder / "empty").touch()
    status, _, err = mgpu_ngram("filter", "docs.jsonl", "-o", "out", *flags, *HERE)
    assert status == 2 and wanted in err and err.count("\n") == 1 and not (folder / "out").exists(), err
