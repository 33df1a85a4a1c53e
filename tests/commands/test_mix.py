"""`mgpu-ngram mix` for a user: the command, weights that are tuned, YAML files, and refusals."""

import json
import math
from pathlib import Path

import pytest

import mgpu_ngram as ng
from mgpu_ngram.core.models.model_file import load_model

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "mix.yaml"


@pytest.fixture
def here(arpa, other_arpa_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.arpa").write_text(other_arpa_text)
    (tmp_path / "text").write_text("a b\na\n\nz q\n")
    return tmp_path


def test_the_command(here, mgpu_ngram):
    status, out, err = mgpu_ngram("mix", "model.arpa", "other.arpa", "--weights", "0.25", "0.75", "-o", "made.arpa")
    assert (status, err) == (0, "")
    assert out.startswith("made.arpa: order 3, 12 n-grams (6 + 5 + 1)\n")
    assert "0.750000 of other.arpa: 6 n-grams (5 + 1)\n" in out
    # a z: the first model lacks z; b </s>: the second model has neither, nor b
    found = dict(
        reversed(line.split("\t")[:2]) for line in (here / "made.arpa").read_text().split("\n") if "\t" in line
    )
    assert 10 ** float(found["a z"]) == pytest.approx(0.75 * 10**-0.2)
    assert 10 ** float(found["b </s>"]) == pytest.approx(0.25 * 10**-0.625 + 0.75 * 10**-0.30103)
    assert found["<s>"] == "0"
    flags = ["-o", "made.safetensors", "--json", "--weights", "0.25", "0.75"]
    status, out, _ = mgpu_ngram("mix", *flags, "--device", "cpu", "--", "model.arpa", "other.arpa")
    assert (status, json.loads(out)["counts"]) == (0, [6, 5, 1])
    assert mgpu_ngram("convert", "made.arpa", "-o", "again.safetensors")[0] == 0
    assert load_model("again.safetensors").fingerprint == load_model("made.safetensors").fingerprint


def test_log_linear(here, mgpu_ngram):
    """Squares of one model's probabilities: after a, z has 10^-0.4, and z is the only word that does not back off."""
    flags = ["--weights", "2", "0", "--log-linear", "-o", "made.arpa"]
    status, out, err = mgpu_ngram("mix", "other.arpa", "model.arpa", *flags)
    assert (status, err) == (0, "") and out.startswith("made.arpa: order 3, 12 n-grams (6 + 5 + 1)\n")
    made, end, word = ng.Model.load("made.arpa", device="cpu"), 10**-0.60206, 10**-1.20412
    whole = 10**-0.4 + 10**-0.2 * (end + word)
    assert made.score("a z", eos=False) == pytest.approx(
        math.log10(word / (end + 2 * word)) - 0.4 - math.log10(whole), abs=1e-5
    )


def test_weights_for_a_text(here, mgpu_ngram):
    """7 tokens and q, which no model has: <s> a b </s>, <s> a </s>, <s> </s>, <s> z."""
    status, out, _ = mgpu_ngram("mix", "model.arpa", "other.arpa", "--tune", "text", "-o", "made.arpa", "--json")
    found = json.loads(out)
    tuned = found["tuned"]
    assert status == 0 and (tuned["tokens"], tuned["skipped"]) == (8, 1)
    assert found["weights"] == tuned["weights"][-1] and sum(found["weights"]) == pytest.approx(1)
    perplexity = {}
    for weight in (found["weights"][0], found["weights"][0] + 0.01, found["weights"][0] - 0.01):
        product = 1.0
        for first, second in FACTORS:
            product *= weight * first + (1 - weight) * second
        perplexity[weight] = product ** (-1 / 8)
    assert min(perplexity, key=perplexity.get) == found["weights"][0]
    assert tuned["perplexities"][-1] == pytest.approx(perplexity[found["weights"][0]], rel=1e-5)
    status, out, _ = mgpu_ngram("mix", "model.arpa", "other.arpa", "--tune", "text", "-o", "made.arpa", "--overwrite")
    assert status == 0 and "iteration" in out and f"{tuned['perplexities'][-1]:.4f}" in out
    assert ng.Model.load("made.arpa", device="cpu").score("a z") > -2


def test_weights_of_products_for_a_text(here, mgpu_ngram):
    flags = ["--log-linear", "--tune", "text", "-o", "made.arpa"]
    status, out, err = mgpu_ngram("mix", "model.arpa", "other.arpa", *flags)
    assert (status, err) == (0, "") and "9 tokens; unknown words count as <unk>" in out
    weights = [
        line.split(" of ")[0] for line in out.split("\n") if " of model.arpa" in line or " of other.arpa" in line
    ]
    again = ["--log-linear", "--weights", *weights, "-o", "again.arpa"]
    assert mgpu_ngram("mix", "model.arpa", "other.arpa", *again)[0] == 0
    text = (here / "made.arpa").read_text().split("\n")
    values = [line.split("\t") for line in text if "\t" in line]
    others = [line.split("\t") for line in (here / "again.arpa").read_text().split("\n") if "\t" in line]
    for one, other in zip(values, others, strict=True):
        assert one[1] == other[1] and float(one[0]) == pytest.approx(float(other[0]), abs=1e-4)


def test_bayes(here, mgpu_ngram):
    """After a, whose probabilities are 10^-0.75 and 10^-0.60206, the second model weighs more."""
    flags = ["--weights", "0.5", "0.5", "--bayes", "1", "--bayes-scale", "2", "-o", "made.arpa"]
    status, _, err = mgpu_ngram("mix", "model.arpa", "other.arpa", *flags)
    assert (status, err) == (0, "")
    probs = [line.split("\t")[:2] for line in (here / "made.arpa").read_text().split("\n") if "\t" in line]
    found = {ngram: float(log10) for log10, ngram in probs}
    weights = [10 ** (2 * float(x)) for x in (-0.75, -0.60206)]
    expected = weights[1] / sum(weights) * 10**-0.2
    assert 10 ** found["a z"] == pytest.approx(expected, rel=1e-5)


HALF, QUARTER = 10**-0.30103, 10**-0.60206
FACTORS = [  # of the tokens, in both models
    (10**-0.5, QUARTER), (10**-0.25, 0), (10**-0.65625, HALF),  # <s> a b </s>: b </s> after the backoff of a b
    (10**-0.5, QUARTER), (10 ** (-0.0625 - 0.875), HALF * 10**-0.1),
    (10**-1.5, HALF),
    (0, QUARTER), (10**-1, HALF),
]  # fmt: skip


def test_jobs_of_a_yaml_file(here, mgpu_ngram):
    (here / "jobs.yaml").write_text(
        "output: out\njobs:\n- prune: {model: model.arpa, entropy: 0, format: arpa}\n"
        "- mix: {models: [prune, other.arpa], tune: text}\n"
        "- mix: {models: [mix, prune], weights: [0.5, 0.5], name: more}\n"
    )
    status, out, err = mgpu_ngram("plan", "jobs.yaml")
    assert (
        (status, err) == (0, "")
        and "mixed with weights for text, on the" in out
        and "mixed with weights 0.5, 0.5" in out
    )
    assert mgpu_ngram("run", "jobs.yaml")[0] == 0
    assert mgpu_ngram("info", "out/more")[1].startswith("out/more/model.safetensors: a model of order 3, 12 n-grams")
    assert mgpu_ngram("run", "jobs.yaml", "--resume")[2].count("finished before") == 3
    overrides = ["jobs.0.mix.models=[model.arpa, other.arpa]", "jobs.0.mix.tune=text"]
    status, out, err = mgpu_ngram("plan", CONFIG, *overrides)
    assert (status, err) == (0, "") and "prune: runs/mixed/mix/model.safetensors pruned by entropy 1e-08" in out
    (here / "text").write_text("a\n")
    status, _, err = mgpu_ngram("run", "jobs.yaml", "--resume")
    assert status == 2 and "out/mix is finished, but" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.arpa", "--weights", "1"], "a mixture needs two or more; add a model"),
        (["model.arpa", "other.arpa"], "neither weights nor tune is given; give one of them"),
        (["model.arpa", "other.arpa", "--weights", "1", "0", "--tune", "text"], "both weights and tune are given"),
        (["model.arpa", "other.arpa", "--weights", "1"], "there are 1 weights for 2 models; give one for each"),
        (
            ["model.arpa", "other.arpa", "--weights", "0.5", "0.6"],
            "weights are [0.5, 0.6] but must be at least 0 and sum",
        ),
        (
            ["model.arpa", "other.arpa", "--weights", "1.5", "-0.5"],
            "weights are [1.5, -0.5] but must be at least 0 and",
        ),
        (["model.arpa", "other.arpa", "--tune", "none"], "none"),
        (["model.arpa", "other.arpa", "--weights", "1", "-1", "--log-linear"], "[1.0, -1.0] but must be at least 0"),
        (["model.arpa", "other.arpa", "--weights", "1", "nan", "--log-linear"], "[1.0, nan] but must be at least 0"),
        (["model.arpa", "none.arpa", "--weights", "1", "0"], "none.arpa"),
        (["model.arpa", "other.arpa", "--weights", "1", "0", "--bayes", "-1"], "bayes is -1 but must be at least 0"),
        (
            ["model.arpa", "other.arpa", "--weights", "1", "0", "--bayes", "1", "--log-linear"],
            "bayes is for linear mixtures but log_linear is set; leave one of them out",
        ),
        (["model.arpa", "other.arpa", "--weights", "1", "0", "--bayes-scale", "2"], "is 2.0 but bayes is 0"),
        (
            ["model.arpa", "other.arpa", "--weights", "1", "0", "--bayes", "1", "--bayes-scale", "0"],
            "bayes_scale is 0.0 but must be above 0",
        ),
    ],
)
def test_wrong_flags(words, message, here, mgpu_ngram):
    status, out, err = mgpu_ngram("mix", *words, "-o", "made.arpa", "--device", "cpu")
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1
    assert not (here / "made.arpa").exists()


def test_a_text_of_strange_words(here, mgpu_ngram):
    (here / "text").write_text("")
    flags = ["--tune", "text", "-o", "made.arpa"]
    status, out, err = mgpu_ngram("mix", "model.arpa", "other.arpa", *flags, "--log-linear")
    assert (status, out) == (2, "") and "the text to tune on is empty; give a text" in err
    status, out, err = mgpu_ngram("mix", "model.arpa", "other.arpa", *flags)
    assert (status, out) == (2, "") and "no word of the text is in a model; give another text to tune on" in err
