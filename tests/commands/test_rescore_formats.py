"""`mgpu-ngram rescore` on JSON lines and on archives of Kaldi: by hand, beside Python's json, and refusals."""

import gzip
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mgpu_ngram import kenlm
from tests.support.slow_cases import first_fast

OBJECTS = [
    {"id": 0, "text": "c", "features": {"F0": -1, "TM": [0.5, -0.25]}, "total": -1.5, "more": {"x": ['"}', 1]}},
    {"total": -2.5, "id": 0, "features": {}, "text": "a b"},
    {"id": 's\u00e9 "1', "text": "a\tb \\ \u00e9\U0001f600\n", "features": {"TM": [1e1, 0]}, "total": 0},
    {"id": 's\u00e9 "1', "text": "", "features": {"F0": 2, "TM": [0, 0]}, "total": 7},
]
WEIGHTS = ["--weights", "F0=1", "TM=1,-1", "LM=0.5", "total=2"]
KALDI = "utt-a-1 a b\nutt-a-2 c\nutt-b-1\nutt-b-2  a b \n"
AC = "utt-a-1 10\nutt-a-2 7.5\nutt-b-1 -1\nutt-b-2 4\n"
LM = "utt-a-1 1\nutt-a-2 2\nutt-b-1 3\nutt-b-2 0.5\n"


@pytest.fixture
def rescore(arpa, tmp_path, monkeypatch, command):
    """Return rescore(*words), which runs in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"kaldi": KALDI, "ac": AC, "lm": LM}.items():
        Path(name).write_text(text)

    def run(*words):
        return command("rescore", *words, "--lm", "model.arpa", "--names", "LM", "--workers", "0")

    return run


def lm_of(text):
    return np.float32(np.float64(np.float32(kenlm.Model("model.arpa").score(text))) * math.log(10))


def shown(value):
    return np.format_float_positional(np.float32(value), trim="-")


def expected_objects():
    """Return the objects with their new features and totals, each list sorted."""
    lists = {}
    for found in json.loads(json.dumps(OBJECTS)):
        lm, tm = lm_of(found["text"]), found["features"].get("TM", [0, 0])
        total = 2 * found["total"] + found["features"].get("F0", 0) + tm[0] - tm[1] + 0.5 * float(lm)
        found["features"]["LM"], found["total"] = float(shown(lm)), float(shown(total))
        lists.setdefault(found["id"], []).append(found)
    return [line for lines in lists.values() for line in sorted(lines, key=lambda line: -line["total"])]


@pytest.mark.parametrize(
    "style", first_fast([{}, {"ensure_ascii": False, "separators": (" , ", " : ")}, {"separators": (",", ":")}])
)
def test_json_lines(style, rescore, monkeypatch):
    """All other keys stay, in their order; spaces, escapes and the order of keys do not matter."""
    text = "".join(f"{json.dumps(found, **style)}\n" for found in OBJECTS)
    Path("nbest").write_text(text)
    status, out, err = rescore("nbest", *WEIGHTS)
    assert (status, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert found == expected_objects()
    assert [list(line) for line in found] == [list(OBJECTS[i]) for i in (1, 0, 2, 3)]
    Path("nbest.gz").write_bytes(gzip.compress(text.encode()))
    assert rescore("nbest.gz", *WEIGHTS) == (0, out, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert rescore("-", *WEIGHTS) == (0, out, "")
    assert rescore("nbest", *WEIGHTS, "-o", "out.jsonl")[0] == 0 and Path("out.jsonl").read_text() == out


def test_the_best_texts_of_json_lines(rescore):
    """White space in a text is written as spaces."""
    Path("nbest").write_text("".join(f"{json.dumps(found)}\n" for found in OBJECTS))
    assert rescore("nbest", "--weights", "TM=1,0", "--best") == (0, "c\na b \\ \u00e9\U0001f600 \n", "")


def test_halves_of_surrogate_pairs(rescore):
    """UTF-8 has none, so the replacement character stands for each."""
    Path("nbest").write_text(GOOD.replace('"a"', r'"a \ud83d b \ude00 \ud83d\ude00"') + "\n")
    assert rescore("nbest", "--weights", "F0=1", "--best")[1] == "a \ufffd b \ufffd \U0001f600\n"


def test_columns_of_parquet(rescore):
    lines = {name: f"0 ||| {name} ||| F0= 1 ||| 2" for name in ("text", "other")}
    pq.write_table(pa.table({name: [line] for name, line in lines.items()}), "lists.parquet")
    assert rescore("lists.parquet", "--weights", "F0=1", "--best") == (0, "text\n", "")
    assert rescore("lists.parquet", "--weights", "F0=1", "--best", "--text-column", "other") == (0, "other\n", "")


def test_an_archive_of_kaldi(rescore):
    """The total is the negated sum of the costs; ids may hold hyphens."""
    flags = ["--kaldi", "--costs", "ac=ac", "lm=lm"]
    status, out, err = rescore("kaldi", *flags, "--weights", "LM=0.5")
    rows = [("utt-a", "a b", 10, 1), ("utt-a", "c", 7.5, 2), ("utt-b", "", -1, 3), ("utt-b", "a b", 4, 0.5)]
    lines = {}
    for i, text, ac, lm in rows:
        total = -ac - lm + 0.5 * float(lm_of(text))
        line = f"{i} ||| {text} ||| ac= {shown(-ac)} lm= {shown(-lm)} LM= {shown(lm_of(text))} ||| {shown(total)}"
        lines.setdefault(i, []).append((-total, line))
    assert (status, err) == (0, "")
    assert out.splitlines() == [line for several in lines.values() for _, line in sorted(several)]
    assert rescore("kaldi", *flags, "--weights", "ac=1", "LM=0", "--best") == (0, "utt-a c\nutt-b\n", "")
    assert rescore("kaldi", *flags, "--weights", "ac=-1", "--best") == (0, "utt-a a b\nutt-b a b\n", "")


def test_hypotheses_beyond_the_ninth(rescore):
    Path("kaldi").write_text("".join(f"u-2-{n} {'a' * n}\n" for n in range(1, 102)))
    out = rescore("kaldi", "--kaldi", "--weights", "LM=0")[1].splitlines()
    assert len(out) == 101 and all(line.startswith("u-2 ||| a") for line in out)


def test_costs_that_are_longer_than_they_were_written(rescore):
    """1e20 has 21 digits."""
    Path("kaldi").write_text("u-1\n")
    Path("ac").write_text("u-1 1e20\n")
    flags = ["--kaldi", "--costs", *(f"c{i}=ac" for i in range(9))]
    out = rescore("kaldi", *flags)[1]
    assert out.startswith("u |||") and out.count("= -100000000000000000000 ") == 9 and out.count("\n") == 1


def test_an_archive_without_costs(rescore):
    Path("kaldi.gz").write_bytes(gzip.compress(KALDI.encode()))
    out = rescore("kaldi.gz", "--kaldi", "--weights", "LM=1")[1].splitlines()
    assert out[0] == f"utt-a ||| a b |||  LM= {shown(lm_of('a b'))} ||| {shown(lm_of('a b'))}".replace("|||  ", "||| ")


GOOD = '{"id": 0, "text": "a", "features": {"F0": 1, "TM": [1, 2]}, "total": 1}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is not a JSON object; give an object a line"),
        ("[1]", "is not a JSON object"),
        ("0 ||| a ||| F0= 1 ||| 2", "is not a JSON object"),
        (GOOD[:-1], "is not a JSON object"),
        (GOOD + "}", "is not a JSON object"),
        (GOOD + " x", "is not a JSON object"),
        (GOOD.replace('"a"', '"a'), "is not a JSON object"),
        (GOOD.replace('"a"', '"\\x"'), "is not a JSON object"),
        (GOOD.replace('"a"', '"\\u12g4"'), "is not a JSON object"),
        (GOOD.replace("1}", "1, }"), "is not a JSON object"),
        (GOOD.replace('"total":', '"total"'), "is not a JSON object"),
        (GOOD.replace('"total"', '"score"'), "lacks a key, or has one of another type"),
        (GOOD.replace('"text"', '"txt"'), "lacks a key, or has one of another type"),
        (GOOD.replace('"a"', "1"), "lacks a key, or has one of another type"),
        (GOOD.replace('"id": 0', '"id": null'), "lacks a key, or has one of another type"),
        (GOOD.replace('{"F0": 1, "TM": [1, 2]}', "[1]"), "lacks a key, or has one of another type"),
        (GOOD.replace('"total": 1', '"total": "1"'), "a total that is not a number"),
        (GOOD.replace('"total": 1', '"total": NaN'), "a total that is not a number"),
        (GOOD.replace('"F0": 1', '"F0": null'), "a weighted feature or a total that is not a number"),
        (GOOD.replace('"F0": 1', '"F0": 1e400'), "a weighted feature or a total that is infinite"),
        (GOOD.replace('"F0": 1', '"F0": [1, 2]'), "more or fewer values of feature F0 than its weights, 1"),
        (GOOD.replace("[1, 2]", "1"), "more or fewer values of feature TM than its weights, 2"),
        (GOOD.replace("[1, 2]", "[1, 2"), "is not a JSON object"),
        (GOOD.replace('"F0"', '"LM"'), "already has a feature LM; give the model another name"),
    ],
)
def test_wrong_json_lines(line, message, rescore):
    Path("nbest").write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    status, out, err = rescore("nbest", *WEIGHTS)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
    assert err.startswith(f"mgpu-ngram: 'nbest' at byte {len(GOOD) + 1}: ")


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", '"1"'), ("1", "1.0"), ('"1"', "1e0"), ("-0", "0"), ('"\u00e9"', '"\\u00e9"'), ("0.5", "5e-1")],
)
def test_ids_that_are_written_in_two_ways(one, other, rescore):
    """Also as neighbours."""
    ids = [GOOD.replace('"id": 0', f'"id": {written}') + "\n" for written in (one, other, "7")]
    for lines in ids, [ids[0], ids[2], ids[1]]:
        Path("nbest").write_text("".join(lines))
        status, _, err = rescore("nbest", *WEIGHTS)
        assert status == 2 and f" has the ids {one} and {other}; write each id in one way\n" in err, err
    Path("nbest").write_text(ids[0] + ids[2] + ids[0])
    assert "occurs again after other lists" in rescore("nbest", *WEIGHTS)[2]


def test_ids_that_differ(rescore):
    ids = ["1", '"01"', "10", "-1", "1.5", '"a"', '"A"', '"1 "', "9007199254740993", "9007199254740992"]
    Path("nbest").write_text("".join(GOOD.replace('"id": 0', f'"id": {name}') + "\n" for name in ids))
    status, out, err = rescore("nbest", *WEIGHTS)
    assert (status, err) == (0, "")
    assert [line.partition(",")[0] for line in out.splitlines()] == [f'{{"id": {name}' for name in ids], "unchanged"


@pytest.mark.parametrize("line", ["{", " {", "{'id': 0}", GOOD[:-1], f"{GOOD} x", f"{GOOD[:-1]}, }}", f" {GOOD[:-1]}"])
def test_a_file_whose_first_line_is_no_json_object(line, rescore):
    """The message is about JSON; a list of Moses may have an id in braces."""
    Path("nbest").write_text(f"{line}\n{GOOD}\n")
    status, out, err = rescore("nbest", *WEIGHTS)
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: 'nbest' at byte 0: "), err
    assert err.endswith(" is not a JSON object; give an object a line\n")
    Path("nbest").write_text('{"0" ||| a ||| F0= 1 ||| 1\n')
    status, out, err = rescore("nbest", "--weights", "F0=2")
    assert (status, err) == (0, "") and out.startswith('{"0" ||| a ||| F0= 1 LM= ') and out.endswith(" ||| 2\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"kaldi": "utt-a-1 a\nutt b\n"}, "'kaldi', line 2: 'utt b' has no key ID-N"),
        ({"kaldi": "utt-a-1 a\n\n"}, "'kaldi', line 2: '' has no key ID-N"),
        ({"kaldi": "-1 a\n"}, "'kaldi', line 1: '-1 a' has no key ID-N"),
        ({"kaldi": "utt-1 a ||| b\n"}, "'kaldi', line 1: 'utt-1 a ||| b' has a word that begins or ends with |||"),
        ({"kaldi": "utt-1\n|||-1 a\n", "ac": "utt-1 1\n", "lm": "utt-1 1\n"}, "line 2: '|||-1 a' has a word"),
        ({"kaldi": "utt-1 a||| b\n"}, "'kaldi', line 1: 'utt-1 a||| b' has a word that begins or ends with |||"),
        ({"kaldi": "utt- a\n"}, "'kaldi', line 1: 'utt- a' has no key ID-N"),
        ({"ac": AC.replace("a-2", "a-3")}, "'ac', line 2: 'utt-a-3 7.5' has another key than this line of the hyp"),
        ({"lm": LM[:-12]}, "'lm', line 4: '' ends before the hypotheses"),
        ({"lm": f"{LM}utt-c-1 3\n"}, "'lm', line 5: 'utt-c-1 3' follows the last hypothesis"),
        ({"lm": LM.replace("3", "x")}, "'lm', line 3: 'utt-b-1 x' has no finite number after its key"),
        ({"lm": LM.replace("3", "")}, "'lm', line 3: 'utt-b-1 ' has no finite number after its key"),
        ({"lm": LM.replace("3", "inf")}, "'lm', line 3: 'utt-b-1 inf' has no finite number after its key"),
        ({"kaldi": "a-1 x\nb-1 x\na-2 x\n", "ac": "a-1 1\nb-1 1\na-2 1\n", "lm": "a-1 1\nb-1 1\na-2 1\n"},
         "list 'a' occurs again after other lists"),
    ],
)  # fmt: skip
def test_wrong_archives(files, message, rescore):
    for name, text in files.items():
        Path(name).write_text(text)
    status, out, err = rescore("kaldi", "--kaldi", "--costs", "ac=ac", "lm=lm", "-o", "out.txt")
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
    assert not Path("out.txt").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["kaldi", "--costs", "ac=ac"], "costs are for archives of Kaldi; give --kaldi"),
        (["kaldi", "--kaldi", "--costs", "ac"], "costs 'ac' are not NAME=ARCHIVE; write them as ac=ac.txt"),
        (["kaldi", "--kaldi", "--costs", "ac=none"], "'none' does not exist"),
        (["kaldi", "--kaldi", "--costs", "LM=lm"], "two features have the name LM; give the models other names"),
        (["kaldi", "--kaldi", "--costs", "a:b=lm"], "'a:b' cannot be the name of a feature; give another"),
        (["kaldi", "json"], "some n-best lists are JSON lines and some are not"),
        (
            ["json", "--text-column", "other"],
            "text_column is 'other' but 'json' is not Parquet; leave text_column out",
        ),
        (
            ["kaldi", "--lattices", "kaldi", "--text-column", "text"],
            "text_column is 'text' but 'kaldi' is not Parquet; leave text_column out",
        ),
        (["lists.parquet", "--text-column", "none"], "'lists.parquet' lacks the column 'none'; name one with"),
        (["model.safetensors"], "'model.safetensors' is a PDF document, not text"),
    ],
)
def test_wrong_files(words, message, rescore):
    Path("json").write_text(GOOD)
    Path("model.safetensors").write_bytes(b"%PDF-1")
    pq.write_table(pa.table({"text": ["0 ||| a ||| F0= 1 ||| 1"]}), "lists.parquet")
    status, out, err = rescore(*words)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
