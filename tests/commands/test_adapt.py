"""`mgpu-ngram adapt`: the command, YAML files, and refusals."""

import json
import re

import pytest

OLD, NEW = "a b c\nb c a\na a b\n" * 20, "a c c\nd b\n" * 15


@pytest.fixture
def here(tmp_path, monkeypatch, mgpu_ngram):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.txt").write_text(OLD)
    (tmp_path / "new.txt").write_text(NEW)
    flags = ["--order", "3", "--sentence-markers"]
    assert mgpu_ngram("count", "old.txt", "-o", "counts", *flags, "--workers", "0")[0] == 0
    return tmp_path


def test_the_command(here, mgpu_ngram):
    flags = ["--discount-fallback", "--format", "arpa", "--workers", "0"]
    status, out, err = mgpu_ngram("adapt", "counts", "new.txt", "-o", "made", *flags)
    assert (status, err) == (0, "") and out.startswith("made: 75 tokens added to 180\n")
    assert re.search(r"^counted in [\d.]+ s$", out, re.MULTILINE)
    command = ["estimate", "old.txt", "new.txt", "-o", "both.arpa", "--order", "3", "--discount-fallback"]
    assert mgpu_ngram(*command, "--workers", "0")[0] == 0
    assert (here / "made" / "model.arpa").read_bytes() == (here / "both.arpa").read_bytes()
    status, _, err = mgpu_ngram("mix", "made", "both.arpa", "--weights", "0.5", "0.5", "-o", "mixed.arpa")
    assert status == 2 and "made: cannot be read (Is a directory); give the model in it, made/model.arpa\n" in err
    status, out, _ = mgpu_ngram("info", "made")
    assert status == 0 and "a Kneser-Ney model of order 3" in out and "the counts of its text: made/counts" in out
    assert mgpu_ngram("info", "made/counts")[0] == 0
    status, out, _ = mgpu_ngram("adapt", "made", "new.txt", "-o", "again", "--json", "--workers", "0")
    assert status == 0 and json.loads(out)["before"] == 255
    assert json.loads((here / "again" / "manifest.json").read_text())["options"]["discount_fallback"] == []


def test_yaml(here, mgpu_ngram):
    (here / "run.yaml").write_text(
        "output: runs\njobs:\n- count: {corpus: old.txt, order: 2, sentence_markers: true}\n"
        "- adapt: {earlier: count, corpus: new.txt, estimate: {discount_fallback: []}}\n"
        "- score: {model: adapt, text: new.txt}\n"
    )
    status, out, err = mgpu_ngram("plan", "run.yaml")
    assert (status, err) == (0, "") and "added to " in out  # counts that do not exist yet
    assert mgpu_ngram("run", "run.yaml")[0] == 0
    status, _, err = mgpu_ngram("run", "run.yaml", "--resume")
    assert status == 0 and err.count("finished before") == 3
    (here / "new.txt").write_text(NEW + NEW)
    status, _, err = mgpu_ngram("run", "run.yaml", "--resume")
    assert status == 2 and "inputs" in err and err.count("\n") == 1
    (here / "plan.yaml").write_text("output: other\njobs:\n- adapt: {earlier: counts, corpus: new.txt}\n")
    status, out, _ = mgpu_ngram("plan", "plan.yaml")
    assert status == 0 and "added to counts" in out and "memory of counting, without that of estimating:\n" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["counts"], "counts is given without a text; give the counts, then the new text"),
        (["new.txt", "new.txt"], "new.txt is not an output of count"),
        (["none", "new.txt"], "there is nothing at that path"),
        (["counts", "none.txt"], "none.txt"),
        (["counts", "new.txt", "--order", "4"], "order is 4 but"),
        (["counts", "new.txt", "--order", "0"], "order is 0 but must be from 1 to"),
        (["counts", "new.txt", "--prune", "1", "0"], "estimate: prune is [1, 0] but thresholds"),
        (["counts", "new.txt", "--unit", "id"], "unrecognized arguments: --unit"),
        (["counts", "new.txt", "--resume"], "made.checkpoint"),
        (["plain", "new.txt"], "was counted without sentence_markers, which a model needs"),
        (["rare", "new.txt"], "was counted with min_count 2, but a model needs all n-grams"),
    ],
)
def test_wrong_inputs(words, told, here, mgpu_ngram):
    for name, flags in ("plain", []), ("rare", ["--sentence-markers", "--min-count", "2"]):
        if name == words[0]:
            assert mgpu_ngram("count", "old.txt", "-o", name, *flags, "--workers", "0")[0] == 0
    status, out, err = mgpu_ngram("adapt", *words, "-o", "made", "--workers", "0")
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1
    assert not (here / "made").exists()


def test_no_discounts(here, mgpu_ngram):
    """The counts are kept; the resumed run may set discounts."""
    status, _, err = mgpu_ngram("adapt", "counts", "new.txt", "-o", "made", "--checkpoint-seconds", "0")
    assert status == 2 and "discount" in err and err.count("\n") == 1
    flags = ["-o", "made", "--resume", "--discount-fallback"]
    assert mgpu_ngram("adapt", "counts", "new.txt", *flags)[0] == 0
