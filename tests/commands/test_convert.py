"""`mgpu-ngram trie`, and YAML files with trie and score jobs, for a user, with refusals."""

import gzip
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import mgpu_ngram as ng
from mgpu_ngram.core.models.model_file import load_model
from mgpu_ngram.stages.run_file import load

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "score.yaml"
OVERRIDES = ["jobs.0.convert.model=model.arpa", "jobs.1.score.text=text", "cluster.workers=0"]


@pytest.fixture
def here(arpa, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a b\nc\n\n")
    return tmp_path


@pytest.mark.parametrize("flags", [[], ["--index", "edge"], ["--index", "both", "--fanout", "4"]])
def test_a_model_file(flags, here, mgpu_ngram):
    (here / "model.arpa.gz").write_bytes(gzip.compress((here / "model.arpa").read_bytes()))
    status, out, err = mgpu_ngram("trie", "model.arpa.gz", "-o", "made/model.safetensors", "--device", "cpu", *flags)
    assert (status, err) == (0, "")
    assert out.startswith("made/model.safetensors: order 3, 10 n-grams (5 + 4 + 1)\n")
    assert (load_model("made/model.safetensors").edges is not None) == ("--index" in flags)
    model = ng.Model.load("made/model.safetensors", device="cpu")
    assert model.score(["a b", "c", ""]).tolist() == [-1.40625, -3.5, -1.5]
    again = mgpu_ngram("trie", "made/model.safetensors", "-o", "again.safetensors", "--json", "--device", "cpu", *flags)
    found = json.loads(again[1])
    assert (found["order"], found["counts"], found["path"]) == (3, [5, 4, 1], "again.safetensors")
    assert found["fingerprint"] in out and found["size_bytes"] == (here / "again.safetensors").stat().st_size
    assert (here / "again.safetensors").read_bytes() == (here / "made" / "model.safetensors").read_bytes()


def test_info(here, mgpu_ngram):
    mgpu_ngram("trie", "model.arpa", "-o", "x.safetensors", "--index", "edge")
    status, out, err = mgpu_ngram("info", "x.safetensors")
    assert (status, err) == (0, "")
    assert out.startswith("x.safetensors: a model of order 3, 10 n-grams (5 + 4 + 1)\nfloat32 values, backoffs, fanout")
    found = json.loads(mgpu_ngram("info", "x.safetensors", "--json")[1])
    assert (found["orders"], found["edge_table"], found["quantized"]) == ([5, 4, 1], True, False)
    mgpu_ngram("trie", "model.arpa", "-o", "bare", "--no-backoff", "--quantize", "4")
    assert "quantised values, no backoffs: it scores no text" in mgpu_ngram("info", "bare")[1]
    assert mgpu_ngram("info", "text") == (0, "text: text\n7 bytes\n", "")
    status, out, err = mgpu_ngram("info", "nothing")
    assert (status, out) == (2, "") and "nothing" in err


def test_quantised_and_bare(here, mgpu_ngram):
    """Four values fit four codes, so they do not change; backoffs, which have two of these codes, may."""
    assert mgpu_ngram("trie", "model.arpa", "-o", "q.safetensors", "--quantize", "3")[0] == 0
    assert load_model("q.safetensors").trie.quantized
    assert ng.Model.load("q.safetensors").score(["a b", "c", ""]).tolist() == [-1.40625, -3.5, -1.5]
    assert mgpu_ngram("trie", "model.arpa", "-o", "bare.safetensors", "--no-backoff")[0] == 0
    status, out, err = mgpu_ngram("score", "bare.safetensors", "text", "--workers", "0")
    assert (status, out) == (2, "") and "has no backoffs, which scores need" in err
    with pytest.raises(ng.InputError, match="has no backoffs, which scores need"):
        ng.Model.load("bare.safetensors").score("a")


def test_properties_of_a_model_file_are_kept(here, mgpu_ngram):
    for words in ["model.arpa", "-o", "x", "--index", "edge", "--fanout", "4"], ["x", "-o", "y"]:
        assert mgpu_ngram("trie", *words)[0] == 0
    assert (here / "x").read_bytes() == (here / "y").read_bytes()
    assert "fanout 4, an edge table" in mgpu_ngram("info", "y")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.arpa", "-o", "/proc/x"], "cannot write in /proc: "),
        (["model.arpa", "-o", "x", "--fanout", "3"], "fanout is 3 but must be 4 to 128"),
        (["model.arpa", "-o", "x", "--quantize", "17"], "quantize is 17 bits but must be 2 to 16"),
        (
            ["model.arpa", "-o", "x", "--no-backoff", "--index", "edge"],
            "index edge holds backoffs but backoff is false",
        ),
        (["model.arpa", "-o", "text"], "text"),
        (["none.arpa", "-o", "x"], "none.arpa"),
        (["text", "-o", "x"], "text"),
        (["model.arpa"], "the following arguments are required: -o/--output"),
    ],
)
def test_invalid_arguments(words, message, here, mgpu_ngram):
    before = sorted(p.name for p in here.iterdir())
    status, out, err = mgpu_ngram("trie", *words, "--overwrite")
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert sorted(p.name for p in here.iterdir()) == before and (here / "text").read_text() == "a b\nc\n\n"


def test_an_output_that_exists(here, mgpu_ngram):
    assert mgpu_ngram("trie", "model.arpa", "-o", "x")[0] == 0
    status, _, err = mgpu_ngram("trie", "model.arpa", "-o", "x", "--quantize", "8")
    assert status == 2 and "x exists" in err and "--overwrite" in err
    assert mgpu_ngram("trie", "model.arpa", "-o", "x", "--quantize", "8", "--overwrite")[0] == 0
    assert load_model("x").trie.quantized


def test_a_yaml_file(here, mgpu_ngram):
    """The score job reads the output of the convert job."""
    status, out, err = mgpu_ngram("run", CONFIG, *OVERRIDES)
    assert (status, err) == (0, "")
    assert "runs/scores/convert/model.safetensors: order 3, 10 n-grams" in out
    assert "runs/scores/score: 3 sentences, 6 tokens" in out and f"OOVs:\t{10 ** (6.40625 / 6)!r}" in out
    scores = pq.read_table("runs/scores/score/scores.parquet").to_pydict()
    assert scores == {"prob_log10": [-1.40625, -3.5, -1.5], "words": [3, 2, 1], "oovs": [0, 1, 0]}
    status, _, err = mgpu_ngram("run", CONFIG, *OVERRIDES)
    assert status == 2 and "runs/scores/convert exists" in err
    status, out, _ = mgpu_ngram("run", CONFIG, *OVERRIDES, "--overwrite", "--json")
    trie, score = json.loads(out)
    assert status == 0 and trie["order"] == 3 and score["totals"]["tokens"] == 6
    status, out, err = mgpu_ngram("plan", CONFIG, *OVERRIDES)
    assert (
        (status, err) == (0, "") and "convert: model.arpa to a model file" in out and "score: 1 input of 7 bytes" in out
    )


def test_info_of_job_outputs(here, mgpu_ngram):
    assert mgpu_ngram("run", CONFIG, *OVERRIDES)[0] == 0
    status, out, err = mgpu_ngram("info", "runs/scores/convert")
    assert (status, err) == (0, "") and out == mgpu_ngram("info", "runs/scores/convert/model.safetensors")[1]
    assert json.loads(mgpu_ngram("info", "runs/scores/convert", "--json")[1])["orders"] == [5, 4, 1]
    status, out, err = mgpu_ngram("info", "runs/scores/score")
    assert (status, err) == (0, "")
    assert out.startswith(
        "runs/scores/score: scores of 3 sentences from 1 input of 7 bytes, by runs/scores/convert/model.safetensors\n"
        f"Perplexity including OOVs:\t{10 ** (6.40625 / 6)!r}\n"
        f"Perplexity excluding OOVs:\t{10 ** (3.90625 / 5)!r}\n"
        "OOVs:\t1\nTokens:\t6\noptions: level=sentence, sentence_markers=True\n"
    )
    found = json.loads(mgpu_ngram("info", "runs/scores/score", "--json")[1])
    assert found["totals"]["log10"] == -6.40625 and found["options"]["level"] == "sentence"


@pytest.mark.parametrize(("text", "unknown", "shown"), [("", "-2", "NaN"), ("c", "-inf", "inf"), ("c", "-2000", "inf")])
def test_figures_that_json_lacks(text, unknown, shown, here, mgpu_ngram):
    """NaN and infinity are null."""
    (here / "text").write_text(text)
    (here / "model.arpa").write_text((here / "model.arpa").read_text().replace("-2\t<unk>", f"{unknown}\t<unk>"))
    status, out, err = mgpu_ngram("run", CONFIG, *OVERRIDES, "--json")
    assert (status, err) == (0, "")
    found = json.loads(mgpu_ngram("info", "runs/scores/score", "--json")[1], parse_constant=pytest.fail)
    totals = json.loads(out, parse_constant=pytest.fail)[1]["totals"]
    assert found["totals"] == totals and totals["perplexity"] is None
    assert (totals["log10"] is None) == (unknown == "-inf")
    assert f"including OOVs:\t{shown}\n" in mgpu_ngram("info", "runs/scores/score")[1]


@pytest.mark.parametrize("flags", [[], ["--resume"]])
def test_a_model_that_a_later_job_makes(flags, here, mgpu_ngram):
    """The model does not exist yet: the error comes before any work."""
    score = {"score": {"model": "trie", "text": ["text"]}}
    jobs = [{"count": {"corpus": ["text"]}}, score, {"trie": {"model": "model.arpa"}}]
    run = {"output": "runs", "cluster": {"workers": 0}, "jobs": jobs}
    Path("run.yaml").write_text(yaml.safe_dump(run))
    status, out, err = mgpu_ngram("run", "run.yaml", *flags)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert "model of job 'score' is 'trie', which the job of that name makes later; put that job first" in err
    for path in "./trie", "runs/trie/model.safetensors":
        score["score"]["model"] = path
        Path("run.yaml").write_text(yaml.safe_dump(run))
        status, out, err = mgpu_ngram("run", "run.yaml", *flags)
        assert (status, out) == (2, "") and f"{path}: cannot be read" in err and not Path("runs").exists()


@pytest.mark.parametrize("wrong", ["jobs.1.score.text=none", "jobs.1.score.model=none", "jobs.0.convert.model=none"])
def test_inputs_are_checked_before_work(wrong, here, mgpu_ngram):
    status, out, err = mgpu_ngram("run", CONFIG, *OVERRIDES, wrong)
    assert (status, out) == (2, "") and "none" in err and err.count("\n") == 1 and not Path("runs").exists()


def test_resume_keeps_finished_jobs(here, mgpu_ngram):
    """Jobs that an earlier run finished are kept, if they would give the same output again."""
    assert mgpu_ngram("run", CONFIG, *OVERRIDES)[0] == 0
    shutil.rmtree("runs/scores/score")
    Path("other").write_text("a\n")
    made = Path("runs/scores/convert/model.safetensors").stat().st_ino
    status, out, err = mgpu_ngram("run", CONFIG, *OVERRIDES, "--resume")
    assert (status, err) == (0, "runs/scores/convert: finished before\n") and out.startswith(
        "runs/scores/score: 3 sent"
    )
    status, out, err = mgpu_ngram("run", CONFIG, *OVERRIDES, "--resume", "--json")
    assert status == 0 and err.count("finished before") == 2
    assert json.loads(out)[1] == {"path": "runs/scores/score", "finished_before": True}
    assert Path("runs/scores/convert/model.safetensors").stat().st_ino == made
    for change, told in [
        ("jobs.1.score.level=word", 'the options changed: options.level was "sentence", is "word";'),
        ("jobs.1.score.text=other", 'the inputs changed: inputs.0.name was "text", is "other";'),
    ]:
        status, _, err = mgpu_ngram("run", CONFIG, *OVERRIDES, change, "--resume")
        assert status == 2 and f"runs/scores/score is finished, but {told}" in err
    (here / "model.arpa").write_text((here / "model.arpa").read_text().replace("-1.25", "-1.5"))
    status, _, err = mgpu_ngram("run", CONFIG, *OVERRIDES, "--resume")
    assert status == 2 and "runs/scores/convert is finished, but the model changed: model.identity was" in err
    status, _, err = mgpu_ngram("run", CONFIG, *OVERRIDES, "--resume", "--overwrite")
    assert (status, err) == (0, "")


def test_names_of_jobs(here):
    def models(*jobs):
        Path("run.yaml").write_text(yaml.safe_dump({"output": "runs", "jobs": list(jobs)}))
        return [settings.model for _, settings in load("run.yaml").jobs]

    trie = {"trie": {"model": "a.arpa", "name": "small"}}
    score = {"score": {"model": "small", "text": ["t"]}}
    assert models(trie, score) == ["a.arpa", "runs/small/model.safetensors"]
    with pytest.raises(ng.InputError, match="model of job 'score' is 'small', which the job of that name makes later"):
        models(score, trie)
    itself = {"trie": {"model": "small", "name": "small"}}
    assert models(itself, score) == ["small", "runs/small/model.safetensors"]
    again = {"trie": {"model": "small", "name": "again", "index": "edge"}}
    assert models(trie, again) == ["a.arpa", "runs/small/model.safetensors"]


def test_help_has_examples(mgpu_ngram):
    for verb in ("convert", "score"):
        status, out, _ = mgpu_ngram(verb, "--help")
        assert status == 0 and f"mgpu-ngram {verb} model" in out
