"""`mgpu-ngram tune`: weights that make the right hypotheses the best, in files that rescore takes; and refusals."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import yaml

from mgpu_ngram.core.errors import InputWarning

# Of list 0 the second line is right, which needs F1 over F0; of list 1 the first; of list 2 the model's choice.
NBEST = (
    "0 ||| a b b ||| F0= 2 F1= 0 ||| 0\n"
    "0 ||| a b ||| F0= 0 F1= 3 ||| 0\n"
    "1 ||| b a ||| F0= 1 F1= 0 ||| 0\n"
    "1 ||| b b b ||| F0= 0 F1= 0.5 ||| 0\n"
    "2 ||| c c c ||| F0= 0 F1= 0 ||| 1\n"
    "2 ||| a b ||| F0= 0 F1= 0 ||| 0\n"
)
RIGHT = "a b\nb a\na b\n"
WEIGHTS = ["--weights", "F0=1", "F1=0", "model=0"]


@pytest.fixture
def tune(arpa, tmp_path, monkeypatch, command):
    """Return tune(*words), which runs in this process on the file nbest: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("nbest").write_text(NBEST)
    Path("right").write_text(RIGHT)

    def run(*words, verb="tune", inputs=("nbest",)):
        more = ["--workers", "0", "--device", "cpu"] if verb in ("tune", "rescore") else []
        return command(verb, *inputs, *words, *more)

    return run


@pytest.mark.parametrize("metric", ["wer", "cer"])
def test_the_right_hypotheses_become_the_best(metric, tune):
    pytest.importorskip("rapidfuzz")
    flags = ["--lm", "model.arpa", "--references", "right", "--metric", metric, *WEIGHTS]
    status, out, err = tune(*flags, "-o", "weights.yaml")
    assert status == 0 and " 0.00 % after; 3 lists, 6 hypotheses" in out and " 0.00 % before" not in out, err
    weights = yaml.safe_load(Path("weights.yaml").read_text())
    assert list(weights) == ["total", "F0", "F1", "model"] and weights["total"] == 0
    assert tune("--lm", "model.arpa", "--weights", "weights.yaml", "--best", verb="rescore") == (0, RIGHT, "")
    for more in [], ["-o", "-"], ["--chunk-bytes", 30]:  # lists that continue in the next chunk are the same
        assert tune(*flags, *more)[1] == Path("weights.yaml").read_text()


def test_references_follow_the_numbers_of_lists(tune):
    """Numbers may have gaps."""
    pytest.importorskip("rapidfuzz")
    flags = ["--lm", "model.arpa", "--references", "right", "--metric", "wer", *WEIGHTS, "--restarts", 0, "--json"]
    wanted = json.loads(tune(*flags)[1])
    Path("nbest").write_text(NBEST.replace("0 ||| a", "7 ||| a").replace("\n2 |||", "\n4 |||"))
    Path("right").write_text("x\nb a\nx\nx\na b\nx\nx\na b\n")
    found = json.loads(tune(*flags)[1])
    assert [found[name] for name in ("before", "after", "weights")] == [
        wanted[n] for n in ("before", "after", "weights")
    ]


@pytest.mark.parametrize("written", ["{}", '"{}"', "{}.0", "0{}"])
def test_ids_of_json_lists(written, tune):
    """A table with a missing value writes its ids as 1.0; 01 is no number in JSON, and is read as it is written."""
    pytest.importorskip("rapidfuzz")
    flags = ["--lm", "model.arpa", "--references", "right", "--metric", "wer", *WEIGHTS, "--restarts", 0, "--json"]
    wanted = json.loads(tune(*flags)[1])["after"]
    lines = []
    for line in NBEST.splitlines():
        name, text, features, total = line.split(" ||| ")
        values = dict(zip(["F0", "F1"], map(float, features.split()[1::2]), strict=True))
        rest = json.dumps({"text": text, "features": values, "total": float(total)})
        lines.append(f'{{"id": {written.format(name)}, {rest[1:]}\n')
    Path("nbest").write_text("".join(lines))
    status, out, err = tune(*flags)
    assert status == 0 and json.loads(out)["after"] == wanted, err


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(99), "is a KenLM binary model, not text"),
        (gzip.compress(b"\x7fELF" + bytes(99)), "is a program, not text"),
        (RIGHT.encode("UTF-16"), "is UTF-16 text, but text must be UTF-8; convert it: iconv"),
        (b"\x01\x02\n\x93\0\xfe\n", "line 2, has NUL bytes, so it is not text; give lines of text"),
    ],
)
def test_references_that_are_not_text(data, why, tune, monkeypatch):
    """Before the lists are scored."""
    pytest.importorskip("rapidfuzz")
    monkeypatch.setattr("mgpu_ngram.jobs.tune.run.prepare", lambda *_: pytest.fail("too late"))
    Path("wrong").write_bytes(data)
    flags = ["--lm", "model.arpa", "--references", "right", "wrong", "--metric", "wer", *WEIGHTS]
    status, out, err = tune(*flags)
    assert (status, out) == (2, "") and "'wrong'" in err and why in err and err.count("\n") == 1, err


def test_compressed_references_have_any_name(tune):
    pytest.importorskip("rapidfuzz")
    Path("packed").write_bytes(gzip.compress(RIGHT.encode()))
    flags = ["--lm", "model.arpa", "--metric", "wer", *WEIGHTS, "--references"]
    assert tune(*flags, "packed") == tune(*flags, "right")


def test_bleu_and_several_references(tune):
    """With a reference of four words for each list, as BLEU needs; the second file is right for list 1."""
    pytest.importorskip("sacrebleu")
    Path("nbest").write_text("".join(line.replace("||| ", "||| a b a b ", 1) for line in NBEST.splitlines(True)))
    right = "".join(f"a b a b {line}\n" for line in RIGHT.splitlines())
    Path("first").write_text(right.replace("b a\n", "c c c\n"))
    Path("second").write_text(right)
    flags = ["--lm", "model.arpa", *WEIGHTS]
    status, out, _ = tune(*flags, "--references", "first", "second", "--json")
    found = json.loads(out)
    assert status == 0 and found["after"] == pytest.approx(100) and 0 < found["before"] < 90


def test_a_grid(tune):
    """The first of equal points is taken: with the model, F1 is not needed."""
    pytest.importorskip("rapidfuzz")
    flags = ["--lm", "model.arpa", "--references", "right", "--metric", "wer", *WEIGHTS]
    status, out, _ = tune(*flags, "--grid", "F1=0,0.5,1,1.5", "model=0,1,2", "--json")
    found = json.loads(out)
    assert status == 0 and found["weights"] == {"total": 0.0, "F0": 1.0, "F1": 0.0, "model": 1.0}
    assert (found["before"], found["after"]) == (pytest.approx(100 * (1 + 0 + 3) / 6), 0)


def test_jobs_of_a_yaml_file(tune):
    """Tuned weights go to a later job."""
    pytest.importorskip("rapidfuzz")
    lists = {"text": "nbest", "lm": "trie"}
    jobs = [
        {"trie": {"model": "model.arpa"}},
        {"tune": {**lists, "references": "right", "metric": "wer", "weights": {"F0": 1, "F1": 0}, "restarts": 3}},
        {"rescore": {**lists, "weights": "tune", "best": True}},
    ]
    Path("jobs.yaml").write_text(
        json.dumps({"output": "runs", "jobs": jobs, "cluster": {"workers": 0, "device": "cpu"}})
    )
    status, out, err = tune(inputs=["jobs.yaml"], verb="plan")
    assert status == 0 and "weights total 0.0, F0 1, F1 0, trie 0.0; 4 line searches for wer" in out, err
    assert "weights runs/tune/weights.yaml" in out
    status, out, err = tune(inputs=["jobs.yaml"], verb="run")
    assert status == 0 and Path("runs/rescore/best.txt").read_text() == RIGHT, err
    status, out, _ = tune(inputs=["runs/tune"], verb="info")
    assert status == 0 and out.startswith("runs/tune: WER 66.67 % before, WER 0.00 % after; 3 lists")
    assert tune("--resume", inputs=["jobs.yaml"], verb="run")[2].count("finished before") == 3
    Path("right").write_text(RIGHT + "c\n")
    status, _, err = tune("--resume", inputs=["jobs.yaml"], verb="run")
    assert status == 2 and "runs/tune is finished, but" in err and err.count("\n") == 1


def test_archives_of_kaldi(tune):
    pytest.importorskip("rapidfuzz")
    Path("nbest").write_text("u-1 c\nu-2 a b\nv-1 a\nv-2 b\n")
    Path("ac").write_text("u-1 1\nu-2 2\nv-1 1\nv-2 2\n")
    Path("right").write_text("v\ta\nu  a b\nv a\n")
    flags = ["--kaldi", "--costs", "ac=ac", "--lm", "model.arpa"]
    more = ["--references", "right", "--metric", "wer", "-o", "w.yaml", "--weights", "ac=1"]
    status, out, err = tune(*flags, *more)
    assert status == 0 and "WER 66.67 % before, WER 0.00 % after" in out, err
    assert tune(*flags, "--weights", "w.yaml", "--best", verb="rescore")[1] == "u a b\nv a\n"
    Path("right").write_text("u a b\nv a\nv b\n")
    status, _, err = tune(*flags, *more, "--overwrite")
    assert status == 2 and "references 'right' have two texts for list 'v'; remove one of them" in err


def test_spaces_of_unicode_are_parts_of_words(tune):
    """Of ids, of hypotheses and of references, as in texts that models score."""
    pytest.importorskip("rapidfuzz")
    Path("nbest").write_text("u\u00a0v-1 a b\nu\u00a0v-2 a\u00a0b\n")
    Path("ac").write_text("u\u00a0v-1 1\nu\u00a0v-2 2\n")
    Path("right").write_text("u\u00a0v a\u00a0b\n")
    flags = ["--kaldi", "--costs", "ac=ac", "--references", "right", "--metric", "wer", "--weights", "ac=1"]
    status, out, err = tune(*flags, "--json")
    found = json.loads(out)
    assert (status, found["before"], found["after"]) == (0, 200, 0), err


def test_lattices(tune):
    """The best texts are tuned on; the weights then find the right text in the lattice itself."""
    pytest.importorskip("rapidfuzz")
    Path("nbest").write_text("u\n0 1 c 0,0\n0 1 a 0,2\n1 2 b 0,0\n2\n\nv\n0 1 b\n1\n")
    Path("right").write_text("u a b\nv b\n")
    flags = ["--lattices", "kaldi", "--lm", "model.arpa"]
    more = ["--references", "right", "--metric", "wer", "--n-best", 2, "--weights", "ac=1", "-o", "w.yaml"]
    status, out, err = tune(*flags, *more)
    assert status == 0 and "WER 33.33 % before, WER 0.00 % after" in out, err
    assert tune(*flags, "--weights", "w.yaml", "--best", verb="rescore")[1] == "u a b\nv b\n"


def test_a_file_of_lattices_that_is_left_out(tune):
    """No lattice is compared with the reference of another one."""
    pytest.importorskip("rapidfuzz")
    Path("nbest").write_bytes(b"0 1 a\0\n1\n")
    Path("more").write_text("0 1 b\n1\n\n1\n0 1 c\n0 1 a 1,0\n1\n")
    Path("right").write_text("0 a\n1 a\n")
    flags = ["--lattices", "kaldi", "--n-best", 2, "--references", "right", "--metric", "wer", "--weights", "graph=1"]
    with pytest.warns(InputWarning, match="2 of 3 lattices or files are left out"):
        found = json.loads(tune("more", *flags, "--json")[1])
    assert found["totals"] == {"lists": 1, "hypotheses": 2, "words": 4, "oovs": {}, "rejects": 2}
    assert (found["before"], found["after"]) == (100, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there are no references; give --references FILE"),
        (["--references", "none"], "'none' does not exist"),
        (
            ["--references", "short"],
            "references 'short' have 2 lines but the lists go up to 2; lists are numbered from 0",
        ),
        (["--references", "empty"], "the references are empty, so no error rate is defined"),
        (["--references", "right", "--restarts", "-1"], "restarts is -1 but must be at least 0"),
        (["--references", "right", "--grid", "F0"], "weight 'F0' is not NAME=NUMBER"),
        (["--references", "right", "--grid", "F0=nan"], "the grid of F0 is [nan] but must be a list of finite numbers"),
        (["--references", "right", "--grid", "G=1"], "the grid has 'G', which is not a weight of a single value"),
        (["--references", "right", "-o", "right"], "output right is an input of this run"),
        (["--references", "right", "-o", "w.json"], "output w.json would be a text file"),
        (["--references", "right", "--lm", "model.arpa", "--weights", "G=1"], "no line has the feature G"),
    ],
)
def test_wrong_flags(words, message, tune):
    pytest.importorskip("rapidfuzz")
    Path("short").write_text("a\nb\n")
    Path("empty").write_text("\n\n\n")
    status, out, err = tune("--metric", "wer", *WEIGHTS, *words, *(["--lm", "model.arpa"] * ("--lm" not in words)))
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("nbest", "message"),
    [
        ("", "the n-best lists are empty; give lists to tune on"),
        (NBEST.replace("2 |||", "x |||"), "list 'x' has no number, so its reference is unknown; number lists from 0"),
        (NBEST + NBEST, "list '0' occurs again after other lists"),
        (NBEST.replace("F1= 3", "F1= inf"), "a weighted feature or a total that is infinite"),
    ],
)
def test_wrong_lists(nbest, message, tune):
    pytest.importorskip("rapidfuzz")
    Path("nbest").write_text(nbest)
    status, out, err = tune("--metric", "wer", *WEIGHTS, "--lm", "model.arpa", "--references", "right")
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err


@pytest.mark.filterwarnings("error")
def test_scores_beyond_float32(tune):
    pytest.importorskip("rapidfuzz")
    Path("steep.arpa").write_text(Path("model.arpa").read_text().replace("-2\t<unk>", "-3e38\t<unk>"))
    flags = ["--metric", "wer", *WEIGHTS, "--names", "model", "--lm", "steep.arpa", "--references", "right"]
    status, out, err = tune(*flags)
    assert (status, out) == (2, "") and "c c c ||| F0= 0 F1= 0 ||| 1' gets a total or a score that is no" in err, err


def test_a_package_that_is_missing(tune, monkeypatch):
    """It is told before any work."""
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    status, out, err = tune("--lm", "none.arpa", "--references", "right")
    assert (status, out) == (2, "") and "metric bleu needs sacrebleu" in err and err.count("\n") == 1
