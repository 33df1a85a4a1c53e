"""`mgpu-ngram score`: by hand, compared with KenLM's query, and refusals."""

import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile

import pyarrow.parquet as pq
import pytest

from mgpu_ngram import cli, kenlm
from mgpu_ngram.commands import run as run_command
from mgpu_ngram.engine.score import replica

MODELS = {
    "small.o2": "small_heldout_inv small_heldout_oov edge_query",
    "small.o5.prune00112": "small_heldout_inv small_heldout_oov edge_query",
    "small.o3.iu0": "small_heldout_oov edge_query",
    "small.o3.limitvocab": "small_heldout_oov",
    "small_unk.o3.skip": "edge_query",
    "tiny.o5.fallback": "tiny_heldout",
}
LINES = (
    "a=3 2 -0.5\tb=4 3 -0.25\t</s>=2 2 -0.65625\tTotal: -1.40625 OOV: 0\n"
    "c=0 1 -2.5\t</s>=2 1 -1\tTotal: -3.5 OOV: 1\n"
    "</s>=2 1 -1.5\tTotal: -1.5 OOV: 0\n"
)
SUMMARY = (
    f"Perplexity including OOVs:\t{10 ** (6.40625 / 6)!r}\n"
    f"Perplexity excluding OOVs:\t{10 ** (3.90625 / 5)!r}\n"
    "OOVs:\t1\nTokens:\t6\n"
)


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(b"a b\n\vc\f\r\n\n")
    return "text"


@pytest.fixture
def score(arpa, text, command):
    """Return score(*words), which scores in this process: (status, stdout, stderr)."""

    def run(*words, model=arpa, inputs=(text,)):
        return command("score", model, *inputs, "--workers", "0", *words)

    return run


def contents(path):
    packed = path.with_name(path.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


@pytest.mark.parametrize("model", MODELS)
def test_the_output_is_that_of_query(model, shared_data, score, tmp_path):
    golden = shared_data / "golden"
    (tmp_path / "golden.arpa").write_bytes(contents(golden / "models" / f"{model}.arpa"))
    for text, flags in itertools.product(MODELS[model].split(), ([], ["-n"])):
        (tmp_path / "golden.txt").write_bytes(contents(golden / "inputs" / f"{text}.txt"))
        expected = contents(golden / "queries" / f"{model}__{text}{'__n' if flags else ''}.txt")
        status, out, err = score(*flags, model="golden.arpa", inputs=["golden.txt"])
        assert (status, err) == (0, "") and len(out) > 500
        assert out == expected.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], LINES + SUMMARY),
        (["--index", "btree", "--device", "cpu"], LINES + SUMMARY),
        (["-v", "summary"], SUMMARY),
        (["-v", "summary", "-v", "sentence"], re.sub(".*\tTotal", "Total", LINES) + SUMMARY),
        (["-v", "word"], re.sub("Total.*", "", LINES)),
    ],
)
def test_levels(flags, expected, score):
    assert score(*flags) == (0, expected, "")


def test_without_markers(score):
    """Only words, without a history: an empty line has no score."""
    expected = "a=3 1 -0.75\tb=4 2 -0.375\tTotal: -1.125 OOV: 0\nc=0 1 -2\tTotal: -2 OOV: 1\nTotal: 0 OOV: 0\n"
    assert score("-n", "-v", "word", "-v", "sentence") == (0, expected, "")


def test_a_last_line_without_newline_counts(score, tmp_path):
    """KenLM leaves its total out."""
    (tmp_path / "text").write_bytes(b"a b\n\nc")
    status, out, _ = score("-v", "summary")
    assert (status, out) == (0, SUMMARY)


def test_empty_text(score, tmp_path):
    (tmp_path / "text").write_bytes(b"")
    expected = "Perplexity including OOVs:\tNaN\nPerplexity excluding OOVs:\tNaN\nOOVs:\t0\nTokens:\t0\n"
    assert score() == (0, expected, "")


def test_json(score):
    status, out, _ = score("--json")
    found = json.loads(out)
    assert status == 0 and (found["sentences"], found["tokens"], found["oovs"]) == (3, 6, 1)
    assert (found["log10"], found["oov_log10"]) == (-6.40625, -2.5)
    assert found["perplexity"] == 10 ** (6.40625 / 6)


def test_json_of_empty_text(score, tmp_path):
    """JSON has no NaN."""
    (tmp_path / "text").write_bytes(b"")
    found = json.loads(score("--json")[1], parse_constant=pytest.fail)
    assert (found["tokens"], found["perplexity"], found["perplexity_without_oovs"]) == (0, None, None)


@pytest.mark.parametrize("index", ["edge", "btree"])
def test_an_order_that_is_too_high(index, score, tmp_path):
    """The model has one n-gram of each order from 2 on; the kenlm drop-in scores it."""
    for order in 96, 97:
        lines = ["\\data\\", "ngram 1=4", *(f"ngram {n}=1" for n in range(2, order + 1))]
        lines += ["", "\\1-grams:", "-2\t<unk>", "-0.5\t<s>", "-1\t</s>", "-0.75\ta"]
        for n in range(2, order + 1):
            lines += ["", f"\\{n}-grams:", "-0.5\t" + " ".join(["a"] * n)]
        (tmp_path / f"{order}.arpa").write_text("\n".join([*lines, "", "\\end\\", ""]))
    status, out, err = score("--index", index, "-n", "-v", "sentence", model="96.arpa")
    assert (status, err) == (0, "") and out.startswith("Total: -2.75 OOV: 1\n")
    status, out, err = score("--index", index, model="97.arpa")
    assert (status, out) == (2, "")
    limit = "the model has order 97 but text is scored up to order 96; make a model of a lower order"
    assert err == f"mgpu-ngram: {limit}, or use mgpu_ngram.kenlm, which scores any order\n"
    assert kenlm.Model(str(tmp_path / "97.arpa")).score("a b", bos=False, eos=False) == -2.75


def test_out_of_memory(run_out_of_memory, score, monkeypatch):
    """The message does not propose a lower order."""
    monkeypatch.setattr(replica.Replica, "score_text", run_out_of_memory)
    status, _, err = score()
    assert status == 1 and "out of host memory while scoring (" in err and "order" not in err
    assert "; use smaller chunks (chunk_bytes), or use the index btree, a quantised model" in err


def test_outputs_that_are_closed(arpa, text):
    command = f"{sys.executable} -m mgpu_ngram score {arpa} {text} --workers 0 -v summary"
    done = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "mgpu-ngram: standard output is closed; send it to a file, or to /dev/null\n"
    done = subprocess.run(["bash", "-c", f"{command} 2>&-"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, SUMMARY)


def test_stdin_and_several_texts(arpa, text, tmp_path):
    """Texts are scored in the given order; no file remains."""
    command = [sys.executable, "-m", "mgpu_ngram", "score", arpa, "-", text, "--workers", "0", "-v", "sentence"]
    done = subprocess.run(command, input=b"b\n", capture_output=True)
    assert done.stdout.decode().splitlines() == [
        "Total: -2.375 OOV: 0", "Total: -1.40625 OOV: 0", "Total: -3.5 OOV: 1", "Total: -1.5 OOV: 0"
    ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.arpa", "text"]


def test_tables(score, tmp_path):
    status, out, _ = score("-o", "sentences.parquet")
    assert (status, out) == (0, SUMMARY)
    assert pq.read_table("sentences.parquet").to_pydict() == {
        "prob_log10": [-1.40625, -3.5, -1.5], "words": [3, 2, 1], "oovs": [0, 1, 0]
    }  # fmt: skip
    status, out, _ = score("-o", "words.parquet", "-v", "word", "--chunk-bytes", "4")
    assert (status, out) == (0, SUMMARY)
    assert pq.read_table("words.parquet").to_pydict() == {
        "sentence": [0, 0, 0, 1, 1, 2],
        "word": ["a", "b", "</s>", "c", "</s>", "</s>"],
        "id": [3, 4, 2, 0, 2, 2],
        "ngram_length": [2, 3, 2, 1, 1, 1],
        "prob_log10": [-0.5, -0.25, -0.65625, -2.5, -1.0, -1.5],
    }
    status, _, _ = score("-o", "words.parquet", "-v", "word", "-n", "--overwrite")
    assert status == 0 and pq.read_table("words.parquet")["word"].to_pylist() == ["a", "b", "c"]


def test_words_that_are_not_utf8(score, tmp_path):
    (tmp_path / "text").write_bytes(b"a \xff\n")
    assert score("-v", "word")[1].startswith("a=3 2 -0.5\t\udcff=0 1 -")
    assert score("-o", "words.parquet", "-v", "word")[0] == 0
    assert pq.read_table("words.parquet")["word"].to_pylist() == ["a", "\ufffd", "</s>"]


def test_a_pipe_that_closes(arpa, tmp_path):
    """As with `| head`: no error."""
    (tmp_path / "long").write_bytes(b"a b a b\n" * 200_000)
    command = f"{sys.executable} -m mgpu_ngram score {arpa} {tmp_path}/long --workers 0 | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"a=3 2 -0.5\tb=4 3 -0.25")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x.parquet", "-v", "summary"], "rows of -o cannot be summary; give -v word or -v sentence"),
        (["-o", "x.parquet", "-v", "word", "-v", "sentence"], "rows of -o cannot be word and sentence"),
        (["-o", "."], "output . would replace "),
        (["-o", "nowhere/x.parquet"], "output nowhere/x.parquet is not a file in an existing folder"),
        (["--json", "-v", "word"], "--json prints the summary alone; leave -v out"),
        (["-v", "line"], "argument -v: invalid choice: 'line'"),
        (["--chunk-bytes", "0"], "chunk_bytes is 0 but must be at least 1"),
    ],
)
def test_invalid_flags(words, message, score, tmp_path):
    status, out, err = score(*words)
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: ") and message in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.arpa", "text"]


def test_invalid_inputs(score, tmp_path):
    (tmp_path / "bad.arpa").write_text("\\data\\\nngram 1=x\n")
    for flags, message in (
        ({"model": "none.arpa"}, "none.arpa: cannot be read (No such file or directory)"),
        ({"model": "bad.arpa"}, "bad.arpa', line 2"),
        ({"inputs": ["none.txt"]}, "none.txt"),
    ):
        status, out, err = score(**flags)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err


def test_stdin_that_is_closed(score, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, _, err = score(inputs=["-"])
    assert status == 2 and "standard input, which is closed" in err


def test_a_full_disk(score, full_disk, tmp_path):
    """The disk of the table is full: no file has the output's name."""
    full_disk(room=100)
    status, _, err = score("-o", "x.parquet")
    assert status == 1 and "cannot write" in err and "No space left" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.arpa", "text"]


@pytest.mark.parametrize(
    ("log10", "shown"),
    [(-1, "10"), (-0.0, "1"), (-16, "10000000000000000"), (-22, "1e22"), (-900, "inf"), (-0.5, repr(10**0.5))],
)
def test_perplexities_are_printed_like_kenlms(log10, shown, score, tmp_path):
    """The shortest digits, without .0, and an exponent from 1e21 on."""
    lines = ["\\data\\", "ngram 1=3", "", "\\1-grams:", f"{log10}\t<unk>", f"{log10}\t<s>", f"{log10}\t</s>"]
    (tmp_path / "one.arpa").write_text("\n".join([*lines, "", "\\end\\", ""]))
    status, out, err = score("-v", "summary", model="one.arpa")
    assert (status, err) == (0, "")
    assert out.startswith(f"Perplexity including OOVs:\t{shown}\nPerplexity excluding OOVs:\t{shown}\n")


def test_only_tables_are_replaced(score, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other").write_text("a b")
    assert "output other exists; add --overwrite (in Python" in score("-o", "other")[2]
    for name in "model.arpa", "text":
        status, _, err = score("-o", name, "--overwrite")
        assert status == 2 and f"output {name} is " in err and "an input of this run; give another" in err
    for name in "other", "pipe":
        status, _, err = score("-o", name, "--overwrite")
        assert status == 2 and f"{name} exists and is not a Parquet file; delete it" in err
    assert (tmp_path / "other").read_text() == "a b" and (tmp_path / "pipe").is_fifo()


def test_a_broken_link_is_not_replaced(score, tmp_path):
    (tmp_path / "x.parquet").symlink_to("nowhere")
    assert "exists; add --overwrite" in score("-o", "x.parquet")[2]


def test_a_damaged_model(score, tmp_path):
    """The damage is found, unless verify is off."""
    assert cli.main(["trie", "model.arpa", "-o", "m.safetensors"]) == 0
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "m.safetensors").write_bytes(data)
    status, _, err = score("-v", "summary", model="m.safetensors")
    assert status == 2 and "is damaged: array" in err
    assert score("-v", "summary", "--no-verify", model="m.safetensors")[0] == 0


def test_invalid_requests_fail_before_a_cluster_starts(score, monkeypatch):
    monkeypatch.setattr(run_command, "open_executor", lambda *_: pytest.fail("it started"))
    for words, model in ((), "none.arpa"), (("-o", "text"), "model.arpa"):
        assert score(*words, model=model)[0] == 2


def test_no_temporary_file_remains(score, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert score("-v", "summary")[0] == 0
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("flags", "bars"),
    [([], False), (["-v", "word"], False), (["-v", "summary"], True), (["-o", "x.parquet"], True)],
)
def test_no_bar_between_lines_on_a_terminal(flags, bars, score, monkeypatch):
    shown = []

    class Terminal(run_command.Bars):
        def __init__(self, drawn):
            super().__init__(drawn)
            shown.append(drawn)

    monkeypatch.setattr(run_command, "Bars", Terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert score(*flags)[0] == 0 and shown == [bars]
