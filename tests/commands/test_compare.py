"""`mgpu-ngram compare`: by hand, beside the score command, on clusters, and refusals."""

import io
import json
import lzma
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from mgpu_ngram.engine.score.comparison_figure import draw_comparison

PERPLEXITY_1 = 10 ** (6.40625 / 6)  # of all words in the first model


@pytest.fixture
def here(arpa, other_arpa_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.arpa").write_text(other_arpa_text)
    (tmp_path / "text").write_bytes(b"a b\n\vc\f\r\n\n")
    return tmp_path


def test_by_hand(here, mgpu_ngram):
    """Known to both: a and </s> of line 1, </s> of lines 2 and 3."""
    status, out, err = mgpu_ngram("compare", "model.arpa", "other.arpa", "text", "--json", "--device", "cpu")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["known"] == 4 and found["path"] is None
    first, second = found["models"]
    assert first["totals"]["perplexity"] == PERPLEXITY_1
    assert (first["totals"]["oovs"], second["totals"]["oovs"]) == (1, 2)
    assert (first["orders"], second["orders"]) == ([5, 4, 1], [5, 1])
    assert first["known_perplexity"] == pytest.approx(10 ** ((0.5 + 0.65625 + 1 + 1.5) / 4))
    assert second["known_perplexity"] == pytest.approx(10 ** ((0.60206 + 3 * 0.30103) / 4))
    assert first["lengths"] == [1, 2, 2, 1] and second["lengths"] == [2, 4]
    [pair] = found["paired"]
    assert (pair["better"], pair["worse"], pair["equal"], pair["sign_p"]) == (3, 0, 0, 0.25)
    assert pair["gain"] == pytest.approx((0.25316 + 0.69897 + 1.19897) / 4)
    assert pair["perplexity_ratio"] == pytest.approx(second["known_perplexity"] / first["known_perplexity"])
    [shown] = found["shown"]
    assert [(s["line"], s["text"]) for s in shown] == [(3, ""), (2, "\vc\f\r"), (1, "a b")]
    assert shown[2]["log10"] == pytest.approx([-1.15625, -0.90309])


def test_the_output(here, mgpu_ngram):
    (here / "text").write_bytes(b"a b\n\vc\f\r\n\na z\n")
    assert mgpu_ngram("convert", "other.arpa", "-o", "other.safetensors")[0] == 0
    assert mgpu_ngram("convert", "model.arpa", "--format", "kenlm-trie", "-o", "model.binary")[0] == 0
    models = ["other.safetensors", "model.binary", "model.arpa"]
    flags = ["-o", "made", "--shown", "1"]
    status, out, err = mgpu_ngram("compare", *models, "--text", "text", "text", *flags, "--workers", "0")
    assert (status, err) == (0, "")
    assert "model 2: model.binary, " in out and "8 sentences" in out
    assert "model 3 beside model 1, on words known to all: perplexity x " in out
    table = pq.read_table("made/sentences.parquet").to_pydict()
    assert table["words"] == [3, 2, 1, 3] * 2 and table["known_words"] == [2, 1, 1, 2] * 2
    assert table["prob_log10_2"] == table["prob_log10_3"] == [-1.40625, -3.5, -1.5, table["prob_log10_2"][3]] * 2
    assert table["oovs_1"] == [1, 1, 0, 0] * 2 and table["oovs_2"] == [0, 1, 0, 1] * 2
    assert table["known_log10_1"][0] == pytest.approx(-0.60206 - 0.30103)
    manifest = json.loads((here / "made" / "manifest.json").read_text())
    assert manifest["comparison"]["paired"][0] == manifest["comparison"]["paired"][1]
    status, shown, _ = mgpu_ngram("info", "made")
    assert status == 0 and "perplexity x" in shown and "sentence_markers=True" in shown
    status, _, err = mgpu_ngram("compare", *models, "text", "-o", "made")
    assert status == 2 and "exists; add --overwrite" in err


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("text", ["a b\nb\na z\n", "z\n", "b\nz\n"])
def test_words_of_probability_0(text, here, mgpu_ngram):
    """Figures that are not finite are missing: JSON has neither infinity nor NaN."""
    for name, word in ("model.arpa", "z"), ("other.arpa", "b"), ("third.arpa", "z"):
        words = [f"-inf\t{word}" if w == word else f"-0.5\t{w}" for w in ("<unk>", "<s>", "</s>", "a", "b", "z")]
        (here / name).write_text("\n".join(["\\data\\", "ngram 1=6", "", "\\1-grams:", *words, "", "\\end\\", ""]))
    (here / "text").write_text(text)
    models = ["model.arpa", "other.arpa", "third.arpa"]
    status, out, err = mgpu_ngram("compare", *models, "text", "--json", "--device", "cpu")
    assert (status, err) == (0, "")
    found = json.loads(out, parse_constant=refuse_constant)
    other, third = found["paired"]
    assert (other["better"], other["worse"]) == (text.count("z"), text.count("b"))
    assert other["gain"] is other["low"] is other["high"] is None
    ratio = 0 if "b" not in text else None  # of 0 to infinity; of infinities there is none
    assert other["perplexity_ratio"] == ratio
    assert (third["equal"], third["gain"], third["perplexity_ratio"]) == (text.count("\n"), 0, 1)
    assert [(s["text"], s["log10"].index(None)) for s in found["shown"][0]] == [
        (line, int("b" in line)) for line in sorted(text.split("\n")[:-1], key=lambda line: "b" in line)
    ]
    status, out, err = mgpu_ngram("compare", *models, "text", "-o", "made", "--workers", "0")
    assert (status, err) == (0, "") and " -inf " in out and "nan" not in out
    json.loads((here / "made" / "manifest.json").read_text(), parse_constant=refuse_constant)
    assert mgpu_ngram("info", "made")[1].count("beside model 1") == 2


def test_a_picture(tmp_path, monkeypatch):
    image = pytest.importorskip("matplotlib.image")
    drawn = [(np.array([-1.0, 2, 0]), tmp_path / "a.png"), (np.zeros(0), tmp_path / "b.png")]
    for difference_S, path in drawn:
        draw_comparison(["a", "b"], [difference_S], [[1, 2], [0, 2, 1]], path)
        assert image.imread(io.BytesIO(path.read_bytes())).std() > 0.05


def test_without_matplotlib(here, mgpu_ngram, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("mgpu_ngram.jobs.compare.run.find_spec", lambda name: None)
    assert mgpu_ngram("compare", "model.arpa", "other.arpa", "text", "-o", "made")[0] == 0
    assert sorted(p.name for p in (here / "made").iterdir()) == ["manifest.json", "sentences.parquet"]


def test_yaml(here, mgpu_ngram):
    (here / "run.yaml").write_text(
        "output: runs\njobs:\n- prune: {model: model.arpa, max_ngrams: 7}\n"
        "- compare: {models: [model.arpa, prune], text: text, chunk_bytes: 3}\n"
    )
    status, out, _ = mgpu_ngram("plan", "run.yaml")
    assert status == 0 and "runs/prune/model.safetensors" in out
    status, out, err = mgpu_ngram("run", "run.yaml")
    assert (status, err) == (0, "") and "model 2: runs/prune/model.safetensors" in out
    status, _, err = mgpu_ngram("run", "run.yaml", "--resume")
    assert status == 0 and err.count("finished before") == 2


def test_the_perplexities_of_score(here, mgpu_ngram, shared_data):
    folder = shared_data / "golden" / "tools" / "mix"
    for name in "a.arpa", "b.arpa", "test.txt":
        (here / name).write_bytes(lzma.decompress((folder / f"{name}.xz").read_bytes()))
    assert mgpu_ngram("compare", "a.arpa", "b.arpa", "test.txt", "-o", "made", "--workers", "0")[0] == 0
    found = json.loads((here / "made" / "manifest.json").read_text())["comparison"]
    oov = []
    for m, model in enumerate("ab"):
        scored = json.loads(mgpu_ngram("score", f"{model}.arpa", "test.txt", "--json", "--workers", "0")[1])
        assert found["models"][m]["totals"] == scored
        assert mgpu_ngram("score", f"{model}.arpa", "test.txt", "-o", f"{model}.parquet", "-v", "word")[0] == 0
        words = pq.read_table(f"{model}.parquet").to_pandas()
        assert found["models"][m]["lengths"][1:] == [
            int(((words["ngram_length"] == n) & (words["id"] > 0)).sum()) for n in (1, 2, 3)
        ]
        oov.append(words["id"] == 0)
    table = pq.read_table("made/sentences.parquet").to_pandas()
    assert found["known"] == int((~(oov[0] | oov[1])).sum()) == int(table["known_words"].sum())
    known = words[~(oov[0] | oov[1])].astype({"prob_log10": float}).groupby("sentence")["prob_log10"].sum()
    np.testing.assert_allclose(table["known_log10_2"], known, rtol=0, atol=1e-12)
    difference = table["known_log10_2"] - table["known_log10_1"]
    shown = [s["line"] - 1 for s in found["shown"][0]]
    assert shown == [*difference.nlargest(10).index, *difference.nsmallest(10).index]
    assert [s["text"] for s in found["shown"][0]] == [(here / "test.txt").read_text().split("\n")[s] for s in shown]
    pair = found["paired"][0]
    rng, rows = np.random.default_rng(0), len(table)
    ratios = []
    for _ in range(4000):  # the paired bootstrap
        drawn = rng.integers(0, rows, rows)
        ratios.append(difference.to_numpy()[drawn].sum() / table["known_words"].to_numpy()[drawn].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert [pair["low"], pair["high"]] == pytest.approx([low, high], abs=0.15 * (high - low))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.arpa", "text"], "1 model and 1 text are given, but a comparison has two models or more, then a text"),
        (["text"], "0 models and 1 text are given"),
        (["model.arpa", "other.arpa", "missing"], "missing"),
        (["model.arpa", "missing.arpa", "text"], "missing.arpa: cannot be read (No such file or directory)"),
        (["model.arpa", "text", "text"], "text"),
        (["model.arpa", "other.arpa", "text", "--shown", "-1"], "shown is -1 but must be at least 0"),
        (["model.arpa", "other.arpa", "text", "--chunk-bytes", "0"], "chunk_bytes is 0 but must be at least 1"),
        (["model.arpa", "other.arpa", "text", "-o", "s3://a/b"], "is not a local path"),
        (["model.arpa", "model.arpa", "text", "-o", "other.arpa"], "output other.arpa exists; add --overwrite"),
        (["model.arpa", "model.arpa", "text", "-o", "other.arpa", "--overwrite"], "is not an output of mgpu_ngram"),
        (["model.arpa", "other.arpa", "text", "-o", "text"], "output text is an input of this run"),
        (["model.arpa", "other.arpa", "text", "--resume"], "unrecognized arguments: --resume"),
    ],
)
def test_wrong_inputs(words, told, here, mgpu_ngram):
    status, out, err = mgpu_ngram("compare", *words)
    assert (status, out) == (2, "") and told in err and err.count("\n") == 1


def test_empty_text(here, mgpu_ngram):
    (here / "text").write_bytes(b"")
    status, out, err = mgpu_ngram("compare", "model.arpa", "other.arpa", "text", "-o", "made")
    assert (status, err) == (0, "") and "0 sentences, 0 words" in out
    assert pq.read_table("made/sentences.parquet").num_rows == 0
