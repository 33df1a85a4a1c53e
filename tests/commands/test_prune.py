"""`mgpu-ngram prune` for a user: the command, YAML files, and refusals."""

import json

import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.models.model_file import load_model


@pytest.fixture
def here(arpa, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("a\n")
    return tmp_path


def lines(path):
    """Return the n-grams of an ARPA file."""
    found = [line.split("\t") for line in path.read_text().split("\n") if "\t" in line]
    return [fields[1] for fields in found]


ALL = ["<unk>", "<s>", "</s>", "a", "b", "<s> a", "a </s>", "a b", "b </s>", "<s> a b"]


def test_the_command(here, mgpu_ngram):
    status, out, err = mgpu_ngram("prune", "model.arpa", "-o", "made.arpa", "--entropy", "0", "--device", "cpu")
    assert (status, err) == (0, "") and out.startswith("made.arpa: order 3, 10 n-grams (5 + 4 + 1)\n")
    assert lines(here / "made.arpa") == ALL
    status, out, err = mgpu_ngram("prune", "made.arpa", "-o", "small.arpa", "--max-ngrams", "9", "--json")
    found = json.loads(out)
    assert (status, err, found["counts"], found["before"]) == (0, "", [5, 4, 0], [5, 4, 1])
    assert found["threshold"] > 0 and lines(here / "small.arpa") == ALL[:-1]
    assert ng.Model.load("small.arpa", device="cpu").score("a b") == pytest.approx(-0.5 - 0.375 - 0.625, abs=0.1)


def test_a_model_file_is_the_arpa_files(here, mgpu_ngram):
    for name in "made.arpa", "made.safetensors":
        assert mgpu_ngram("prune", "model.arpa", "-o", name, "--max-ngrams", "8")[0] == 0
    assert mgpu_ngram("convert", "made.arpa", "-o", "again.safetensors")[0] == 0
    assert (here / "again.safetensors").read_bytes() == (here / "made.safetensors").read_bytes()
    assert mgpu_ngram("convert", "model.arpa", "-o", "codes.safetensors", "--quantize", "8")[0] == 0
    assert mgpu_ngram("prune", "codes.safetensors", "-o", "more.safetensors", "--max-ngrams", "8")[0] == 0
    assert load_model("more.safetensors").trie.starts == load_model("made.safetensors").trie.starts


def test_a_vocabulary(here, mgpu_ngram):
    status, out, err = mgpu_ngram("prune", "model.arpa", "-o", "made.arpa", "--vocabulary", "words")
    assert (status, err) == (0, "") and lines(here / "made.arpa") == ["<unk>", "<s>", "</s>", "a", "<s> a", "a </s>"]
    assert "of 10 n-grams (5 + 4 + 1)\n" in out


@pytest.mark.parametrize(
    ("thresholds", "kept"),
    [
        ("2", ["<s> a", "a b", "b </s>", "<s> a b"]),
        ("3", ["<s> a"]),
        ("4 2", ["<s> a", "<s> a b"]),  # a context stays
        ("0 3", ["<s> a", "a </s>", "a b", "b </s>"]),
    ],
)
def test_counts(thresholds, kept, here, mgpu_ngram):
    """<s> a occurs 3 times, a b, b </s> and <s> a b 2 times, a </s> once."""
    (here / "text").write_text("a b\na b\na\nc d\n")
    assert mgpu_ngram("count", "text", "-o", "counts", "--order", "3", "--sentence-markers", "--workers", "0")[0] == 0
    flags = ["--min-count", *thresholds.split(), "--counts", "counts"]
    status, _, err = mgpu_ngram("prune", "model.arpa", "-o", "made.arpa", *flags)
    assert (status, err) == (0, "") and lines(here / "made.arpa") == ["<unk>", "<s>", "</s>", "a", "b", *kept]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--order", "3"], "counts must have counts of words with sentence markers; count again with"),
        (["--order", "2", "--sentence-markers"], "counts has orders up to 2 but min_count has a threshold for order 3"),
        (
            ["--order", "3", "--sentence-markers", "--min-count", "3"],
            "counts lacks counts below 3, so min_count cannot",
        ),
    ],
)
def test_counts_that_do_not_suffice(flags, message, here, mgpu_ngram):
    assert mgpu_ngram("count", "words", "-o", "counts", "--workers", "0", *flags)[0] == 0
    status, out, err = mgpu_ngram("prune", "model.arpa", "-o", "made.arpa", "--min-count", "2", "--counts", "counts")
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_models_of_lines(here, mgpu_ngram):
    (here / "words").write_text("a\n\nb a\n")
    flags = ["--vocabulary", "words", "--vocabulary-mode", "multiple", "-o", "made"]
    status, out, err = mgpu_ngram("prune", "model.arpa", *flags, "--device", "cpu")
    assert (status, err) == (0, "") and out.startswith("made: 3 models, 19 n-grams in all\n")
    assert sorted(p.name for p in (here / "made").iterdir()) == ["0.arpa", "1.arpa", "2.arpa", "manifest.json"]
    assert lines(here / "made" / "2.arpa") == ALL
    assert lines(here / "made" / "0.arpa") == ["<unk>", "<s>", "</s>", "a", "<s> a", "a </s>"]
    assert mgpu_ngram("info", "made")[1].startswith("made: models of 3 lines of words, 19 n-grams in all\n")
    more = ["--context", "--format", "safetensors", "--overwrite", "--json"]
    status, out, _ = mgpu_ngram("prune", "model.arpa", *flags, *more)
    assert status == 0 and json.loads(out)["models"] == 3
    assert "(5 + 1 + 0)" in mgpu_ngram("info", "made/1.safetensors")[1], "of the pairs only <s> a has a tag before"
    (here / "words").write_text("a b\tb\n")
    single = ["--vocabulary", "words", "--vocabulary-mode", "union", "--phrases", "-o", "cut.arpa"]
    assert mgpu_ngram("prune", "model.arpa", *single)[0] == 0
    assert lines(here / "cut.arpa") == ALL


def test_jobs_of_a_yaml_file(here, mgpu_ngram):
    (here / "jobs.yaml").write_text(
        "output: out\njobs:\n- prune: {model: model.arpa, entropy: 1e-8}\n"
        "- prune: {model: prune, vocabulary: words, vocabulary_mode: union, format: arpa, name: filtered}\n"
    )
    status, out, err = mgpu_ngram("plan", "jobs.yaml")
    assert (status, err) == (0, "") and "prune: model.arpa pruned by entropy 1e-08" in out
    status, out, err = mgpu_ngram("run", "jobs.yaml")
    assert (status, err) == (0, "") and len(lines(here / "out" / "filtered" / "model.arpa")) == 6
    assert mgpu_ngram("info", "out/prune")[1].startswith("out/prune/model.safetensors: a model of order 3, 9 n-grams")
    assert mgpu_ngram("run", "jobs.yaml", "--resume")[2].count("finished before") == 2
    (here / "words").write_text("a b\n")
    status, _, err = mgpu_ngram("run", "jobs.yaml", "--resume")
    assert status == 2 and "out/filtered is finished, but" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no way to prune is set; set one of entropy, max_ngrams, vocabulary, min_count"),
        (["--entropy", "1", "--max-ngrams", "9"], "entropy and max_ngrams are set; set one of"),
        (["--entropy", "-1"], "entropy is -1.0 but must be at least 0"),
        (["--entropy", "nan"], "entropy is nan but must be at least 0"),
        (["--max-ngrams", "4"], "max_ngrams is 4 but the model has 5 words, which are never pruned; raise max_ngrams"),
        (["--max-ngrams", "0"], "max_ngrams is 0 but must be at least 1"),
        (["--entropy", "1", "--vocabulary-mode", "union"], "vocabulary_mode is union but no vocabulary is given"),
        (["--vocabulary", "none"], "none"),
        (["--entropy", "1", "--context"], "context is set but no vocabulary is given; give a text"),
        (["--entropy", "1", "--phrases"], "phrases is set but no vocabulary is given; give a text"),
        (["--vocabulary", "words", "--phrases"], "phrases needs lines but vocabulary_mode is single"),
        (["--vocabulary", "words", "--format", "arpa"], "format arpa is for mode multiple"),
        (["--entropy", "1", "--vocabulary-mode", "multiple"], "vocabulary_mode is multiple but no vocabulary is given"),
        (["--vocabulary", "words", "--vocabulary-mode", "multiple", "-o", "-"], "-o - is standard output"),
        (
            ["--vocabulary", "words", "--vocabulary-mode", "multiple", "-o", "words.arpa"],
            "exists and is not ",
        ),
        (
            ["--min-count", "2"],
            "min_count and counts need each other: give both, counts as a folder that mgpu-ngram count",
        ),
        (["--entropy", "1", "--counts", "none"], "min_count and counts need each other: give both"),
        (["--min-count", "2", "--counts", "none"], "none"),
        (["--min-count", "-1", "--counts", "counts"], "min_count is [-1] but must be 0 or more"),
        (["--entropy", "1", "-o", "made.bin"], "output 'made.bin' must end with .arpa (ARPA file) or .safetensors"),
        (["--entropy", "1", "-o", "words.arpa"], "words.arpa"),
    ],
)
def test_wrong_flags(words, message, here, mgpu_ngram):
    (here / "words.arpa").write_text("no model")
    status, out, err = mgpu_ngram("prune", "model.arpa", "-o", "made.arpa", "--overwrite", "--device", "cpu", *words)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1
    assert not (here / "made.arpa").exists() and (here / "words.arpa").read_text() == "no model"


def test_a_model_without_backoffs(here, mgpu_ngram):
    assert mgpu_ngram("convert", "model.arpa", "-o", "bare.safetensors", "--no-backoff")[0] == 0
    status, out, err = mgpu_ngram("prune", "bare.safetensors", "-o", "made.arpa", "--entropy", "0")
    assert (status, out) == (2, "") and "bare.safetensors has no backoffs" in err
