"""`mgpu-ngram rescore`: by hand, beside KenLM's scores, beside plain Python, and refusals."""

import gzip
import io
import json
import lzma
import math
import sys
from pathlib import Path

import numpy as np
import pytest

LN_10 = math.log(10)
NBEST = (
    "0 ||| c ||| F0= -1 TM= -0.5 -0.25 ||| -1.5\n"
    "0 ||| a b ||| F0= -2 TM= 0 -1 ||| -2.5\n"
    "0 |||  ||| F0= -3 TM= 0 0 ||| -1.5\n"
    "7 ||| a b ||| 0-0 1-1 ||| F0= 1e1 TM= 1 1 ||| 3.25\n"
    "7 |||   c  |||  ||| .5 ||| 0-0 ||| tree\r\n"
)
LOG10 = {"a b": -1.40625, "c": -3.5, "": -1.5}  # of the fixture arpa, with <s> and </s>


def shown(value):
    """Return the shortest text of a float32."""
    return np.format_float_positional(np.float32(value), trim="-")


@pytest.fixture
def rescore(arpa, tmp_path, monkeypatch, command):
    """Return rescore(*words), which runs in this process on the file nbest: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("nbest").write_text(NBEST)

    def run(*words, inputs=("nbest",), verb="rescore"):
        more = ["--workers", "0", "--device", "cpu"] if verb == "rescore" else []
        return command(verb, *inputs, *words, *more)

    return run


def lm(text):
    return np.float32(LOG10[text] * LN_10)


def test_totals_by_hand(rescore):
    """The old total and half of the model's feature; both empty features and what follows the total stay."""
    status, out, err = rescore("--lm", "model.arpa", "--weights", "model=0.5")
    ab, c, empty = (shown(lm(text)) for text in ("a b", "c", ""))
    assert (status, err) == (0, "") and rescore("--lm", "model.arpa", "--weights", "model=0.5", "-o", "-")[1] == out
    assert out.splitlines() == [
        f"0 |||  ||| F0= -3 TM= 0 0 model= {empty} ||| {shown(-1.5 + 0.5 * float(lm('')))}",
        f"0 ||| a b ||| F0= -2 TM= 0 -1 model= {ab} ||| {shown(-2.5 + 0.5 * float(lm('a b')))}",
        f"0 ||| c ||| F0= -1 TM= -0.5 -0.25 model= {c} ||| {shown(-1.5 + 0.5 * float(lm('c')))}",
        f"7 ||| a b ||| 0-0 1-1 ||| F0= 1e1 TM= 1 1 model= {ab} ||| {shown(3.25 + 0.5 * float(lm('a b')))}",
        f"7 |||   c  ||| model= {c}  ||| {shown(0.5 + 0.5 * float(lm('c')))} ||| 0-0 ||| tree",
    ]


def test_without_weights_totals_stay_and_ties_keep_their_order(rescore):
    out = rescore("--lm", "model.arpa")[1].splitlines()
    assert [line.split("|||")[1].strip() for line in out] == ["c", "", "a b", "a b", "c"]
    assert [line.split("|||")[-1] for line in out[:3]] == [" -1.5", " -1.5", " -2.5"]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["F0=1"], ["c", "a b"]),  # the old total no longer counts
        (["F0=-1"], ["", "c"]),
        (["TM=1,0"], ["a b", "a b"]),  # a tie of 0 and 0
        (["TM=0,-1"], ["a b", "c"]),
        (["TM=1,-1", "total=1"], ["a b", "a b"]),  # a tie of -1.5 and -1.5
        (["total=-1"], ["a b", "c"]),
    ],
)
def test_the_best_by_weights_alone(weights, expected, rescore):
    assert rescore("--weights", *weights, "--best") == (0, "".join(f"{text}\n" for text in expected), "")


def test_values_beside_their_names(rescore):
    """As cdec and Joshua write them; a name without a weight may have any value."""
    Path("nbest").write_text("0 ||| a b ||| F0=-2 G=x=y H=1 ||| 1\n0 ||| c ||| H= 2 F0=1.5 ||||= |||| x|||y ||| 1\n")
    status, out, err = rescore("--weights", "F0=1", "H=10")
    assert (status, err) == (0, "") and out.splitlines() == [
        "0 ||| c ||| H= 2 F0=1.5 ||||= |||| x|||y ||| 21.5",
        "0 ||| a b ||| F0=-2 G=x=y H=1 ||| 8",
    ]


def test_names_with_colons(rescore):
    """As older releases of Moses write them."""
    Path("old").write_text(
        "0 ||| a b ||| d: -1 lm: -2 tm: 1 2 w: -3 ||| -9\n0 ||| c ||| d: 0 lm: -3 tm: 1 4 w: -3 ||| -9\n"
    )
    flags = ["--weights", "d=1", "tm=0.5,0.25", "--lm", "model.arpa"]
    status, out, err = rescore(*flags, inputs=["old"])
    assert (status, err) == (0, "")
    assert [line.split(" ||| ")[-1] for line in out.splitlines()] == ["1.5", "0"] and out.startswith(
        "0 ||| c ||| d: 0 lm:"
    )


def test_two_models(rescore):
    """One model twice: its weights add up."""
    Path("other.arpa").write_bytes(Path("model.arpa").read_bytes())
    flags = ["--lm", "model.arpa", "--lm", "other.arpa", "--names", "A", "B"]
    out = rescore(*flags, "--weights", "A=2", "B=-1")[1].splitlines()
    assert (
        out[0] == f"0 |||  ||| F0= -3 TM= 0 0 A= {shown(lm(''))} B= {shown(lm(''))} ||| {shown(-1.5 + float(lm('')))}"
    )
    assert rescore(*flags, "--weights", "A=2", "B=-2")[1] == rescore(*flags)[1]


def contents(path):
    packed = path.with_name(path.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


@pytest.mark.parametrize(
    ("model", "text"), [("small.o5.prune00112", "small_heldout_oov"), ("tiny.o5.fallback", "tiny_heldout")]
)
def test_scores_are_those_of_kenlms_query(model, text, shared_data, rescore):
    """Each line of a text is a hypothesis; lists have 1, 2, 3 ... of them."""
    golden = shared_data / "golden"
    Path("golden.arpa").write_bytes(contents(golden / "models" / f"{model}.arpa"))
    lines = contents(golden / "inputs" / f"{text}.txt").decode().splitlines()
    query = contents(golden / "queries" / f"{model}__{text}.txt").decode().splitlines()
    log10 = [float(line.partition("Total: ")[2].partition(" OOV")[0]) for line in query if "Total: " in line]
    assert len(log10) == len(lines) > 10
    ids = [math.isqrt(n) for n in range(len(lines))]
    nbest = [f"{i} ||| {line.strip()} ||| N= {n} ||| 0" for n, (i, line) in enumerate(zip(ids, lines, strict=True))]
    Path("nbest").write_text("\n".join(nbest) + "\n")
    scores = [np.float32(np.float64(np.float32(value)) * LN_10) for value in log10]
    order = sorted(range(len(lines)), key=lambda n: (ids[n], -scores[n]))
    status, out, err = rescore("--lm", "golden.arpa", "--names", "LM", "--weights", "LM=1", "total=0")
    assert (status, err) == (0, "")
    found = [line.split(" ||| ") for line in out.splitlines()]
    assert [fields[-2] for fields in found] == [f"N= {n} LM= {shown(scores[n])}" for n in order]
    assert [fields[-1] for fields in found] == [shown(scores[n]) for n in order]


@pytest.mark.filterwarnings("error")
def test_scores_beyond_float32_are_refused(rescore):
    """Also of a model without a weight."""
    Path("steep.arpa").write_text(Path("model.arpa").read_text().replace("-2\t<unk>", "-3e38\t<unk>"))
    status, out, err = rescore("--lm", "steep.arpa")
    assert (status, out) == (2, "") and "'0 ||| c ||| F0= -1 TM= -0.5 -0.25 ||| -1.5' gets a total or" in err, err


def test_standard_input_and_compressed_files(rescore, monkeypatch):
    wanted = rescore("--lm", "model.arpa")[1]
    Path("nbest.gz").write_bytes(gzip.compress(NBEST.encode()))
    assert rescore("--lm", "model.arpa", inputs=["nbest.gz"]) == (0, wanted, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NBEST.encode())))
    assert rescore("--lm", "model.arpa", inputs=["-"]) == (0, wanted, "")


def test_a_file_and_its_summary(rescore):
    wanted = rescore("--lm", "model.arpa")[1]
    status, out, _ = rescore("--lm", "model.arpa", "-o", "out.txt")
    assert status == 0 and Path("out.txt").read_text() == wanted
    assert out.startswith("out.txt: 2 lists, 5 hypotheses, 11 words, 2 unknown to model\n")
    status, out, _ = rescore("--lm", "model.arpa", "-o", "out.txt", "--overwrite", "--json")
    totals = json.loads(out)["totals"]
    assert status == 0 and totals == {"lists": 2, "hypotheses": 5, "words": 11, "oovs": {"model": 2}, "rejects": 0}


def test_an_empty_file(rescore):
    Path("nbest").write_bytes(b"")
    assert rescore("--lm", "model.arpa", "--weights", "F0=1") == (0, "", "")


def test_jobs_of_a_yaml_file(rescore):
    """Two models, one of an earlier job; the plan, the manifest and a second run."""
    wanted = rescore("--lm", "model.arpa", "--names", "A", "--weights", "A=1")[1]
    jobs = [
        {"trie": {"model": "model.arpa"}},
        {"rescore": {"text": "nbest", "lm": ["trie", "model.arpa"], "names": ["A", "B"], "weights": {"A": 1}}},
        {"rescore": {"text": "nbest", "lm": ["trie"], "weights": {"F0": -1}, "best": True, "name": "best"}},
    ]
    Path("jobs.yaml").write_text(
        json.dumps({"output": "runs", "jobs": jobs, "cluster": {"workers": 0, "device": "cpu"}})
    )
    status, out, _ = rescore(inputs=["jobs.yaml"], verb="plan")
    assert status == 0 and "models runs/trie/model.safetensors, model.arpa; weights total 1.0, A 1, B 0.0" in out
    status, out, err = rescore(inputs=["jobs.yaml"], verb="run")
    assert status == 0, err
    found = Path("runs/rescore/nbest.txt").read_text().splitlines()
    assert [line.split(" ||| ")[-1] for line in found] == [line.split(" ||| ")[-1] for line in wanted.splitlines()]
    assert Path("runs/best/best.txt").read_text() == "\nc\n"
    status, out, _ = rescore(inputs=["runs/rescore"], verb="info")
    assert status == 0 and out.startswith("runs/rescore: 2 lists, 5 hypotheses, 11 words, 2 unknown to A, 2 unknown")
    assert rescore("--resume", inputs=["jobs.yaml"], verb="run")[2].endswith("runs/best: finished before\n")
    Path("nbest").write_text(NBEST + NBEST)
    status, _, err = rescore("--resume", inputs=["jobs.yaml"], verb="run")
    assert status == 2 and "runs/rescore is finished, but" in err and err.count("\n") == 1


LINE = "0 ||| a ||| F0= 1 ||| 2"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a b c", "is not a line of an n-best list; give id ||| text ||| features ||| total"),
        ("", "is not a line of an n-best list"),
        ("0 ||| a", "is not a line of an n-best list"),
        ("0 ||| a ||| F0= 1", "is not a line of an n-best list"),
        ("0|||a|||F0= 1|||2", "is not a line of an n-best list"),
        (
            "0 ||| a |||0-0 ||| F0= 1 ||| 2",
            "has a word that begins or ends with |||; write spaces around it: id ||| text ||| features ||| total",
        ),
        ("0 ||| a ||| 0-0 |||F0= 1 ||| 2", "has a word that begins or ends with |||; write spaces around"),
        ("0 | a ||| 0-0 ||| F0= 1 ||| 2", "has white space in its id; give id ||| text ||| features ||| total"),
        (" ||| a ||| F0= 1 ||| 2", "has no id before its text"),
        ("||| a ||| F0= 1 ||| 2", "has no id before its text"),
        ("0 ||| a ||| F0= 1 ||| ", "a total that is not a number"),
        ("0 ||| a ||| F0= 1 ||| x", "a total that is not a number"),
        ("0 ||| a ||| F0= 1 ||| 2 3", "a total that is not a number"),
        ("0 ||| a ||| F0= 1 ||| nan", "a total that is not a number"),
        ("0 ||| a ||| F0= 1 ||| x ||| y", "a total that is not a number"),
        ("0 ||| a ||| F0= 1 ||| -inf", "a total that is infinite"),
        ("0 ||| a ||| F0= 1 ||| 1e39", "a total that is infinite"),
        ("0 ||| a ||| F0= x ||| 2", "has a weighted feature or a total that is not a number"),
        ("0 ||| a ||| F0= 1x ||| 2", "has a weighted feature or a total that is not a number"),
        ("0 ||| a ||| F0= NaN ||| 2", "has a weighted feature or a total that is not a number"),
        ("0 ||| a ||| F0= inf ||| 2", "has a weighted feature or a total that is infinite"),
        ("0 ||| a ||| F0=1x ||| 2", "has a weighted feature or a total that is not a number"),
        ("0 ||| a ||| F0=1 2 ||| 2", "has more or fewer values of feature F0 than its weights, 1"),
        ("0 ||| a ||| F0=1 F0=1 ||| 2", "has more or fewer values of feature F0 than its weights, 1"),
        ("0 ||| a ||| F0=1 model=3 ||| 2", "already has a feature model; give the model another name with --names"),
        ("0 ||| a ||| F0= 1 2 ||| 2", "has more or fewer values of feature F0 than its weights, 1; give one for each"),
        ("0 ||| a ||| F0= ||| 2", "has more or fewer values of feature F0 than its weights, 1"),
        ("0 ||| a ||| F0= F1= 2 ||| 2", "has more or fewer values of feature F0 than its weights, 1"),
        ("0 ||| a ||| F0= 1 F1= 2 F0= 1 ||| 2", "has more or fewer values of feature F0 than its weights, 1"),
        ("0 ||| a ||| F0= 1 model= 3 ||| 2", "already has a feature model; give the model another name with --names"),
        ("0 ||| a ||| F0= 3e38 ||| 3e38", "gets a total or a score that is not finite"),
        ("1 ||| a ||| F0= 1 ||| 2\n" + LINE, "list '0' occurs again after other lists; put the lines of each id"),
    ],
)
def test_wrong_lines(lines, message, rescore):
    """One line that names the place; nothing is written."""
    Path("nbest").write_text(f"{LINE}\n{lines}\n{LINE}\n")
    status, out, err = rescore("--lm", "model.arpa", "--weights", "F0=1", "total=1", "-o", "out.txt")
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: ") and message in err and err.count("\n") == 1, err
    assert sorted(path.name for path in Path().iterdir()) == ["model.arpa", "nbest"]
    if "occurs again" not in message:
        assert f"'nbest' at byte {len(LINE) + 1}: " in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "neither models nor weights are given, so nothing would change; give --lm FILE"),
        (["--lm", "none.arpa"], "none.arpa: cannot be read"),
        (["--lm", "model.arpa", "--weights", "G=1"], "no line has the feature G, which has a weight"),
        (["--lm", "model.arpa", "--weights", "TM=1"], "has more or fewer values of feature TM than its weights, 1"),
        (["--lm", "model.arpa", "--weights", "a=1", "b"], "weight 'b' is not NAME=NUMBER; write it as F0=1"),
        (["--lm", "model.arpa", "--weights", "none.yaml"], "none.yaml: cannot be read"),
        (["--lm", "model.arpa", "--weights", "nbest"], "nbest: is of type str but must be a mapping"),
        (["--lm", "model.arpa", "--weights", "model=x"], "weight 'model=x' is not NAME=NUMBER"),
        (["--lm", "model.arpa", "--weights", "=1"], "weight '=1' is not NAME=NUMBER"),
        (["--lm", "model.arpa", "--weights", "model=nan"], "the weight of model is nan but must be a finite number"),
        (
            ["--lm", "model.arpa", "--weights", "model=1", "model=2"],
            "--weights names model twice; leave one out",
        ),
        (["--lm", "model.arpa", "--kaldi", "--costs", "a=x", "a=y"], "--costs names a twice; leave one out"),
        (["--lm", "model.arpa", "--weights", "model=1,2"], "model has 2 weights but one value; give one"),
        (
            ["--lm", "model.arpa", "--lm", "model.arpa"],
            "two features have the name model; give the models other names: --names A B",
        ),
        (["--lm", "model.arpa", "--names", "A", "B"], "there are 1 models but 2 names; give one for each model"),
        (["--lm", "model.arpa", "--names", "A B"], "'A B' cannot be the name of a feature; give another"),
        (["--lm", "model.arpa", "--names", "total"], "'total' cannot be the name of a feature"),
        (["--lm", "model.arpa", "--names", "F0"], "already has a feature F0; give the model another name"),
        (["--lm", "model.arpa", "--chunk-bytes", "0"], "chunk_bytes is 0 but must be at least 1"),
        (["--lm", "model.arpa", "--json"], "--json prints a summary in place of the lists; give -o FILE"),
        (["--lm", "model.arpa", "-o", "nbest"], "output nbest is an input of this run"),
        (["--lm", "model.arpa", "-o", "model.arpa", "--overwrite"], "output model.arpa is an input of this run"),
        (["--lm", "model.arpa", "-o", "out.json"], "output out.json would be a text file"),
        (["--lm", "model.arpa", "-o", "no/out.txt"], "output no/out.txt is not a file in an existing folder"),
    ],
)
def test_wrong_flags(words, message, rescore):
    status, out, err = rescore(*words)
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: "), err
    assert message in err and err.count("\n") == 1, err
    assert sorted(path.name for path in Path().iterdir()) == ["model.arpa", "nbest"]


def test_lines_are_printed_when_each_weight_has_its_feature(rescore):
    """Tasks of one list each: only the last list has the feature G."""
    lines = ["0 ||| c ||| F0= -1 ||| 0", "1 ||| c ||| F0= -2 ||| 0", "2 ||| a b ||| F0= 1 G= 2 ||| 0"]
    Path("nbest").write_text("".join(f"{line}\n" for line in lines))
    status, out, err = rescore("--weights", "F0=1", "G=1", "--chunk-bytes", "1")
    assert status == 0, err
    assert [line.rpartition(" ||| ")[2] for line in out.splitlines()] == ["-1", "-2", "3"]
    status, out, err = rescore("--weights", "F0=1", "H=1", "--chunk-bytes", "1")
    assert (status, out) == (2, "") and "no line has the feature H" in err
