"""Files that no job makes are looked for before the first job starts, also where an earlier job makes other files."""

import json
from pathlib import Path

import pytest

MODEL = {"convert": {"model": "model.arpa", "name": "lm"}}
COUNTS = {"count": {"corpus": "docs", "order": 3, "name": "counts"}}
CASES = {
    "filter": (MODEL, {"text": "docs", "model": "lm", "tokenizer": "nothing"}),
    "filter with a second model": (MODEL, {"text": "docs", "model": "lm", "contrast_model": "nothing"}),
    "rescore": (MODEL, {"text": "docs", "lm": ["lm", "nothing"], "weights": "weights.yaml"}),
    "tune": (MODEL, {"text": "docs", "references": "nothing", "metric": "wer", "lm": ["lm"]}),
    "mix": (MODEL, {"models": ["lm", "nothing"], "weights": [0.5, 0.5]}),
    "mix on a text": (MODEL, {"models": ["lm", "model.arpa"], "tune": "nothing"}),
    "compare": (MODEL, {"models": ["lm", "nothing"], "text": "docs"}),
    "prune": (MODEL, {"model": "lm", "min_count": 2, "counts": "nothing"}),
    "prune to words": (MODEL, {"model": "lm", "vocabulary": "nothing"}),
    "convert": (MODEL, {"model": "lm", "rest": ["nothing"], "format": "kenlm-probing"}),
    "count": (COUNTS, {"corpus": "docs", "order": 3, "add": ["counts", "nothing"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_no_job_makes(case, arpa, tmp_path, monkeypatch, mgpu_ngram):
    monkeypatch.chdir(tmp_path)
    Path("docs").write_text("a b\n")
    Path("weights.yaml").write_text("lm: 1\n")
    first, settings = CASES[case]
    jobs = [first, {case.split()[0]: settings | {"name": "second"}}]
    Path("jobs.yaml").write_text(json.dumps({"output": "runs", "jobs": jobs, "cluster": {"workers": 0}}))
    for command in ("plan", "run"):
        status, out, err = mgpu_ngram(command, "jobs.yaml")
        assert (status, out) == (2, "") and "nothing" in err and err.count("\n") == 1
    assert not Path("runs").exists()
