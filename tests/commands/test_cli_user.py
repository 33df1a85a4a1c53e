"""Mistakes of a new user: wrong files, wrong names and wrong places, each with one clear line."""

import gzip
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import mgpu_ngram as ng
from mgpu_ngram.commands import commands
from mgpu_ngram.core.counts.counts import read_counts
from mgpu_ngram.core.errors import InputWarning

ARPA = r"""\data\
ngram 1=3
ngram 2=2

\1-grams:
-1	<s>	-0.5
-1.5	</s>
-0.5	a	-0.25

\2-grams:
-0.25	<s> a
-1.25	a </s>

\end\
"""
HERE = ["--workers", "0", "--device", "cpu"]

pytestmark = pytest.mark.filterwarnings("ignore:.*lacks <unk>")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a user: an ARPA file without <unk>, and a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.arpa").write_text(ARPA)
    (tmp_path / "text").write_bytes(b"a\na a\n")
    return tmp_path


def refused(result):
    """Return the error message of a refused command."""
    status, out, err = result
    assert (status, out) == (2, "") and err.startswith("mgpu-ngram: ") and err.count("\n") == 1, err
    return err


@pytest.mark.slow
def test_an_arpa_without_unk_warns_in_one_line_once(folder):
    """In this process, and with two workers that both load the model."""
    for name in "bcd":
        (folder / name).write_bytes(b"a\n" * 9)
    for workers in "0", "2":
        command = [sys.executable, "-m", "mgpu_ngram", "score", "m.arpa", "text", "b", "c", "d", "-v", "summary"]
        flags = ["--device", "cpu", "--workers", workers, "--chunk-bytes", "2"]
        done = subprocess.run([*command, *flags], capture_output=True, text=True)
        assert done.returncode == 0 and "Tokens" in done.stdout
        warned = [line for line in done.stderr.splitlines() if "<unk>" in line]
        assert len(warned) == 1, done.stderr
        assert re.fullmatch("mgpu-ngram: warning: '.*' lacks <unk>; its log10 .* is taken to be -100", warned[0])
        assert "Warning" not in done.stderr and ".py" not in done.stderr


def test_a_library_user_can_filter_the_warning(folder):
    with pytest.warns(InputWarning, match="^'m.arpa' lacks <unk>"):
        ng.Model.load("m.arpa", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", InputWarning)
        ng.Model.load("m.arpa", device="cpu")


def test_help_imports_nothing_heavy():
    """In an interpreter that cannot import NumPy and other large packages."""
    heavy = ("numpy", "numba", "pyarrow", "dask", "distributed", "rich", "yaml", "fsspec")
    script = (
        "import contextlib, io, sys\n"
        f"for name in {heavy!r}: sys.modules[name] = None\n"
        "from mgpu_ngram.cli import main\n"
        "from mgpu_ngram.commands import commands\n"
        "for command in commands():\n"
        "    sys.argv = ['mgpu-ngram', command, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit): main()\n"
        "    assert out.getvalue().startswith(f'usage: mgpu-ngram {command} '), command\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["score", "URL", "text", *HERE], ["convert", "URL", "-o", "m.safetensors"]])
def test_a_model_at_a_url_is_refused(words, folder, mgpu_ngram):
    words = ["s3://bucket/m.arpa" if word == "URL" else word for word in words]
    message = "s3://bucket/m.arpa: is a URL, but commands read models from local files; download it\n"
    assert mgpu_ngram(*words) == (2, "", f"mgpu-ngram: {message}")


def test_info_names_the_format_of_a_file(folder, mgpu_ngram):
    (folder / "m.arpa.gz").write_bytes(gzip.compress(ARPA.encode()))
    assert mgpu_ngram("info", "m.arpa") == (0, "m.arpa: ARPA file of order 2, 5 n-grams (3 + 2)\n116 bytes\n", "")
    assert mgpu_ngram("info", "m.arpa.gz")[1].startswith("m.arpa.gz: ARPA file (gzip) of order 2, 5 n-grams (3 + 2)\n")
    assert mgpu_ngram("info", "text") == (0, "text: text\n6 bytes\n", "")
    (folder / "docs").write_bytes(b'{"id": 1, "text": "a"}\n')
    assert mgpu_ngram("info", "docs") == (0, "docs: JSON lines\nkeys: id, text\n23 bytes\n", "")


@pytest.mark.parametrize(
    ("verb", "name", "message"),
    [
        ("trie", "z.gz", "output z.gz would be a model file, but its name ends with .gz"),
        ("trie", "z.Bin", "ends with .bin, as KenLM's files do; add --format kenlm-probing or --format kenlm-trie, or"),
        ("score", "s.csv", "output s.csv would be a Parquet file, but its name ends with .csv; name it s.parquet"),
        ("score", "s.jsonl", "ends with .jsonl; name it s.parquet"),
        ("count", "c.CSV", "output c.CSV would be a folder, but its name ends with .csv; name it c"),
        ("distribution", "made/d.parquet", "would be a folder, but its name ends with .parquet; name it made/d"),
        ("lda", "l.npz", "output l.npz would be a folder, but its name ends with .npz; name it l"),
    ],
)
def test_a_suffix_of_another_format_is_refused(verb, name, message, folder, mgpu_ngram):
    inputs = {"trie": ["m.arpa"], "count": ["text", *HERE], "lda": ["text", *HERE]}.get(verb, ["m.arpa", "text", *HERE])
    assert message in refused(mgpu_ngram(verb, *inputs, "-o", name))
    assert not Path(name).exists()


def test_matching_and_unknown_suffixes_are_accepted(folder, mgpu_ngram):
    for name in "m", "m.lm", "m.safetensors", "m.v1.2":
        assert mgpu_ngram("trie", "m.arpa", "-o", name, "--device", "cpu")[0] == 0, name
    for name in "s", "s.parquet", "s.pq":
        assert mgpu_ngram("score", "m.arpa", "text", "-o", name, *HERE)[0] == 0, name
    for name in "c", "c.v1.2", "c.counts":
        assert mgpu_ngram("count", "text", "-o", name, *HERE)[0] == 0, name


def test_a_folder_with_a_model_is_no_text(folder, mgpu_ngram):
    err = refused(mgpu_ngram("score", "m.arpa", ".", *HERE))
    assert re.search(r"'\./m\.arpa' is an ARPA file, not text; give only text files", err)


def test_json_lines_are_text(folder, mgpu_ngram):
    """Of every command that reads text, as of plain lines."""
    (folder / "plain").write_bytes(b"a b\nb\n")
    (folder / "docs.jsonl").write_bytes(b'\n{"text": "a b"}\n{"text": "b"}\n')
    (folder / "n.arpa").write_text(ARPA.replace("-0.5	a", "-0.75	a"))
    assert mgpu_ngram("score", "m.arpa", "plain", *HERE) == mgpu_ngram("score", "m.arpa", "docs.jsonl", *HERE)
    found = [mgpu_ngram("compare", "m.arpa", "n.arpa", name, *HERE)[1] for name in ("plain", "docs.jsonl")]
    assert found[0].partition(" s on ")[0][:-4] == found[1].partition(" s on ")[0][:-4].replace("docs.jsonl", "plain")
    for name in "plain", "docs.jsonl":
        assert mgpu_ngram("mix", "m.arpa", "n.arpa", "--tune", name, "-o", f"{name}.arpa", *HERE)[0] == 0
    assert Path("plain.arpa").read_bytes() == Path("docs.jsonl.arpa").read_bytes()
    err = refused(mgpu_ngram("score", "m.arpa", "plain", "--text-column", "text", *HERE))
    assert "text_column is 'text' but 'plain' is plain text, without columns; leave text_column out" in err


def test_json_lines_are_counted_as_text_from_memory(folder):
    """To count the words of JSON, give its lines as a corpus in memory."""
    assert ng.count(ng.Lines(['{"text": "a"}']), order=1, device="cpu").max_order == 1


def test_kenlm_binaries_are_models(binaries, folder, mgpu_ngram):
    (folder / "m.bin").write_bytes(binaries.BINARIES["trie"])
    code, out, _ = mgpu_ngram("score", "m.bin", "text", *HERE, "-v", "sentence")
    assert code == 0 and out.startswith("Total: -")
    assert mgpu_ngram("trie", "m.bin", "-o", "m.safetensors", "--device", "cpu")[0] == 0
    assert mgpu_ngram("score", "m.safetensors", "text", *HERE, "-v", "sentence")[1] == out
    for flags in ["-o", "back.arpa"], ["-o", "back.klm", "--format", "kenlm-probing"]:
        assert mgpu_ngram("convert", "m.safetensors", *flags)[0] == 0
        assert mgpu_ngram("score", flags[1], "text", *HERE, "-v", "sentence")[1] == out
    err = refused(mgpu_ngram("convert", "m.bin", "-o", "m.txt", "--format", "kenlm-trie"))
    assert "output m.txt would be a KenLM binary model, but its name ends with .txt; name it m.binary" in err
    code, out, _ = mgpu_ngram("info", "m.bin")
    assert code == 0 and "m.bin: KenLM binary model of order 3, 16 n-grams (6 + 7 + 3)\ntype: trie\n" in out


def test_damaged_kenlm_binaries_are_refused(binaries, folder, mgpu_ngram):
    (folder / "m.bin").write_bytes(binaries.BINARIES["trie"][:-1])
    for words in ["score", "m.bin", "text", *HERE], ["trie", "m.bin", "-o", "m.safetensors"]:
        assert "m.bin' is a damaged KenLM binary model: it ends with 5 words " in refused(mgpu_ngram(*words))
    (folder / "m.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 4\n\0" + bytes(100))
    # Before the run waits for a cluster.
    err = refused(mgpu_ngram("score", "m.bin", "text", "--scheduler-file", "none"))
    assert "'m.bin' is a KenLM binary model of version 4 but must be of version 5" in err


def test_standard_input_is_named_dash(folder):
    command = [sys.executable, "-m", "mgpu_ngram", "score", "m.arpa", "-", *HERE]
    done = subprocess.run(command, input=b'{"text": "a"}\n', capture_output=True)
    plain = subprocess.run(command, input=b"a\n", capture_output=True)
    assert done.returncode == 0 and done.stdout == plain.stdout != b""


def test_a_folder_that_is_not_writable(folder, mgpu_ngram, monkeypatch):
    """The superuser may write everywhere, so the system's answer is replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (str(folder), os.W_OK))
    err = refused(mgpu_ngram("score", "m.arpa", "text", "-o", "s.parquet", *HERE))
    assert f"cannot write in {folder}: Permission denied; give another output path" in err


def test_a_model_is_no_limit_vocabulary(folder, mgpu_ngram):
    flags = ["--order", "2", "--discount-fallback", "--limit-vocab-file", "m.arpa"]
    err = refused(mgpu_ngram("estimate", "text", "-o", "e.arpa", *flags, *HERE))
    assert "'m.arpa' is an ARPA file, not text" in err and not Path("e.arpa").exists()


def test_orders(folder, mgpu_ngram):
    """A high order works even if its number of bins exceeds a float; higher ones are refused at once."""
    (folder / "long").write_text(" ".join(map(str, range(300))))
    assert mgpu_ngram("count", "long", "-o", "out", "--order", "250", *HERE)[0] == 0
    assert read_counts("out").totals[250] == 51
    for verb in "count", "estimate":
        err = refused(mgpu_ngram(verb, "text", "-o", "x.arpa", "--order", "99999999999", *HERE))
        assert "order is 99999999999 but must be from 1 to 1000" in err


def test_info_of_a_folder_without_an_output(folder, mgpu_ngram):
    err = refused(mgpu_ngram("info", "."))
    assert "'.' is not an output of mgpu-ngram: it has no manifest.json; give the folder that a job wrote" in err
    assert "'' does not exist" in refused(mgpu_ngram("info", ""))


def test_a_path_that_is_not_utf8(folder, mgpu_ngram):
    name = os.fsdecode(b"counts\xff")
    assert mgpu_ngram("count", "text", "-o", name, *HERE)[0] == 0
    err = refused(mgpu_ngram("export", name, "--order", "1"))
    assert "is not UTF-8, as paths of Parquet files must be; rename it" in err


def test_a_file_as_spill_dir(folder, mgpu_ngram):
    err = refused(mgpu_ngram("count", "text", "-o", "out", "--spill-dir", "text", *HERE))
    assert err.endswith("Not a directory; give another spill_dir\n")


def test_an_unknown_flag_points_to_the_help_of_its_command(folder, mgpu_ngram):
    for verb in "score", "count", "convert", "trie":
        err = refused(mgpu_ngram(verb, "m.arpa", *["text"] * (verb == "score"), "-o", "x", "--foo"))
        name = "convert" if verb == "trie" else verb
        assert err == f"mgpu-ngram: unrecognized arguments: --foo; see mgpu-ngram {name} --help\n"


@pytest.mark.parametrize("verb", commands())
def test_an_unknown_flag_is_named_before_missing_arguments(verb, mgpu_ngram):
    for word in "--foo", "--foo=3", "-j":
        err = refused(mgpu_ngram(verb, word, "--json"))
        assert err == f"mgpu-ngram: unrecognized arguments: {word}; see mgpu-ngram {verb} --help\n"


@pytest.mark.parametrize("words", ["--foo m.arpa", "-1 --foo -v summary", "-vword --foo -- --bar"])
def test_only_unknown_flags_are_named(words, mgpu_ngram):
    err = refused(mgpu_ngram("score", *words.split()))
    assert err == "mgpu-ngram: unrecognized arguments: --foo; see mgpu-ngram score --help\n"
    err = refused(mgpu_ngram("score", *words.replace("--foo", "").partition("--")[0].split()))
    assert err.startswith("mgpu-ngram: the following arguments are required: ")


def test_a_run_in_this_process_mentions_no_workers(folder, mgpu_ngram):
    status, out, _ = mgpu_ngram("count", "text", "-o", "out", "--order", "2", *HERE)
    assert status == 0 and "worker" not in out and re.search(r" s on .*this process", out), out
