"""kenlm-lmplz, kenlm-query and kenlm-build_binary: KenLM's options, and its outputs on the goldens."""

import io
import lzma
import os
import sys
from types import SimpleNamespace

import pytest

from mgpu_ngram import cli
from mgpu_ngram.commands.kenlm import parse_size
from mgpu_ngram.core.arpa import read_arpa
from mgpu_ngram.core.errors import InputError

TEXT = b"a b a\nb a\na a b c\n"
ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1\t<unk>
0\t<s>\t-0.3
-0.6\t</s>
-0.7\ta\t-0.1
-0.8\tb\t-0.2

\\2-grams:
-0.1\t<s> a
-0.2\ta b
-0.4\tb </s>

\\end\\
"""
SCORES = ["a=3 2 -0.1\tb=4 2 -0.2\t</s>=2 2 -0.4\t", "z=0 1 -1.3\t</s>=2 1 -0.6\t"]  # by KenLM
TOTALS = ["Total: -0.70000005 OOV: 0\n", "Total: -1.9 OOV: 1\n"]


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Return run(program, *words, stdin=bytes), which returns (exit status, output, messages)."""

    def run(program, *words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = cli.kenlm_program([f"/somewhere/{program}", *map(str, words)])
        except SystemExit as error:
            status = error.code
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return SimpleNamespace(status=status, out=out, err=err.decode())

    return run


@pytest.fixture
def arpa(tmp_path):
    (tmp_path / "m.arpa").write_text(ARPA)
    return tmp_path / "m.arpa"


def test_lmplz_from_stdin_to_stdout(run, tmp_path):
    flags = ["-o", 2, "--discount_fallback", "-S", "1G", "-T", f"{tmp_path}/", "--vocab_estimate", 9]
    done = run("kenlm-lmplz", *flags, stdin=TEXT)
    assert done.status == 0 and done.out.startswith(b"\\data\\\nngram 1=6\nngram 2=8\n")
    assert "Unigram tokens 9 types 6\nStatistics:\n1 6 D1=0.2 D2=1.7 D3+=3\n2 8 D1=0.5 D2=1 D3+=1.5\n" in done.err
    (tmp_path / "text").write_bytes(TEXT)
    (tmp_path / "m.lm").write_text("old")
    again = run("lmplz", *flags, "--text", tmp_path / "text", "--arpa", tmp_path / "m.lm")
    assert (again.status, again.out) == (0, b"") and (tmp_path / "m.lm").read_bytes() == done.out
    assert {path.name for path in tmp_path.iterdir()} == {"text", "m.lm"}


def test_lmplz_options_that_change_results(run, tmp_path):
    (tmp_path / "words").write_text("a b")
    flags = ["-o2", "--discount_fallback", "0.5", "0.6", "--interpolate_unigrams=0", "--prune", 0, 1]
    flags += ["--limit_vocab_file", tmp_path / "words", "--skip_symbols", "--verbose_header", "--collapse_values"]
    done = run("kenlm-lmplz", *flags, stdin=TEXT.replace(b"c", b"<unk>"))
    assert done.status == 0 and b"# Token count: 8\n" in done.out
    (tmp_path / "m.arpa").write_bytes(done.out)
    levels = list(read_arpa(tmp_path / "m.arpa").levels())
    assert [len(level) for level in levels] == [5, 4]  # <s> a, a b, b a and a </s> occur twice
    assert not levels[0].backoff.any()
    assert "2 4/7" in done.err and "D1=0.5 D2=0.6 D3+=0.6" in done.err
    padded = run("kenlm-lmplz", "-o", 2, "--discount_fallback", "--vocab_pad", 1000, stdin=TEXT)
    plain = run("kenlm-lmplz", "-o", 2, "--discount_fallback", stdin=TEXT)
    assert padded.status == plain.status == 0 and padded.out != plain.out


def test_lmplz_reads_a_pipe(run, tmp_path):
    flags = ["-o", 2, "--discount_fallback"]
    receiving, sending = os.pipe()
    os.write(sending, TEXT)
    os.close(sending)
    done = run("kenlm-lmplz", *flags, "--text", f"/dev/fd/{receiving}")
    os.close(receiving)
    assert done.status == 0 and done.out == run("kenlm-lmplz", *flags, stdin=TEXT).out


@pytest.mark.parametrize(
    "flags, why",
    [
        ([], "usage"),
        (["--text", "x"], "required: -o/--order"),
        (["-o", "2"], "--discount-fallback"),
        (["-o", "2", "--renumber"], "--renumber is not supported"),
        (["-o", "2", "--intermediate", "x"], "--intermediate is not supported"),
        (["-o", "2", "--arpa", "none/x"], "'none' is no folder"),
        (["-o", "2", "-S", "1X"], "the size '1X'"),
    ],
)
def test_lmplz_fails_without_output(run, flags, why):
    done = run("kenlm-lmplz", *flags, stdin=TEXT)
    assert done.status in (1, 2) and done.out == b"" and why in done.err


@pytest.mark.parametrize(
    "text, size", [("80%", None), ("10G", 10 << 30), ("3", 3 << 10), ("5b", 5), ("1.5M", 3 << 19), ("2k", 2 << 10)]
)
def test_sizes(text, size):
    assert parse_size(text) == size if size else parse_size(text) > 0
    with pytest.raises(InputError, match="is not a number with one of the units"):
        parse_size(text + "x")


def test_query_prints_what_kenlm_prints(run, arpa):
    words, totals = SCORES, TOTALS
    for flags, expected in {
        (): words[0] + totals[0] + words[1] + totals[1],
        ("-v", "2"): words[0] + totals[0] + words[1] + totals[1],
        ("-v", "word"): "".join(words),
        ("-v", "sentence", "-l", "lazy"): "".join(totals),
        ("-v", "word", "-v", "sentence"): words[0] + totals[0] + words[1] + totals[1],
        ("-v", "0"): "",
        ("-n", "-v", "sentence"): "Total: -0.9 OOV: 0\nTotal: -1 OOV: 1\n",
    }.items():
        done = run("kenlm-query", *flags, arpa, stdin=b"a b\nz\n")
        summary = b"Tokens:\t5\n" in done.out
        assert summary == (not flags or flags[-1] in "20") and done.status == 0
        assert done.out.decode().split("Perplexity including")[0] == expected


@pytest.mark.parametrize(
    "words, why",
    [([], "usage"), (["-b", "m"], "-b prints"), (["-v", "all", "m"], "-v is 'all'"), (["a", "b"], "usage")],
)
def test_query_refuses(run, words, why):
    done = run("kenlm-query", *words)
    assert done.status == 2 and why in done.err


def test_build_binary_makes_models_that_score_the_same(run, arpa, tmp_path):
    expected = run("kenlm-query", arpa, stdin=b"a b\nz b a\n").out
    sizes = {}
    for name, flags in {
        "probing": [], "dense": ["-p", "1.1", "probing"], "trie": ["-s", "-w", "mmap", "-S", "1G", "trie"],
        "hashes": ["-v", "-T", "x", "trie"],
    }.items():  # fmt: skip
        made = tmp_path / name
        made.write_bytes(b"old")
        done = run("kenlm-build_binary", *flags, arpa, made)
        assert (done.status, done.out) == (0, b"") and done.err.endswith("SUCCESS\n")
        found = run("kenlm-query", "-v", "sentence", made, stdin=b"a b\nz b a\n").out
        assert found.splitlines() == [line[line.index(b"Total") :] for line in expected.splitlines()[:2]]
        sizes[name] = made.stat().st_size
    assert sizes["dense"] < sizes["probing"]
    assert sizes["trie"] - sizes["hashes"] == len("<unk> <s> </s> a b ")
    assert {path.name for path in tmp_path.iterdir()} == {"m.arpa", *sizes}


@pytest.mark.parametrize(
    "flags, why",
    [
        (["-q", "8"], "-q is given"),
        (["-a", "22"], "-a is given"),
        (["-u", "-5"], "-u is -5"),
        (["-p", "1"], "multiplier is 1 but must be over 1"),
        (["-z"], "-z not recognized"),
    ],
)
def test_build_binary_refuses(run, arpa, tmp_path, flags, why):
    done = run("kenlm-build_binary", *flags, arpa, tmp_path / "made")
    assert done.status == 2 and why in done.err and not (tmp_path / "made").exists()
    assert "estimate of memory" in run("kenlm-build_binary", arpa).err


@pytest.mark.parametrize("model, text", [("tiny.o3.fallback", "tiny_heldout"), ("small.o3", "edge_query")])
def test_query_prints_the_goldens(run, shared_data, model, text, tmp_path):
    golden = shared_data / "golden"
    path = golden / "models" / f"{model}.arpa"
    if not path.exists():
        (tmp_path / "m.arpa").write_bytes(lzma.decompress(path.with_suffix(".arpa.xz").read_bytes()))
        path = tmp_path / "m.arpa"
    for flags, suffix in ([], ""), (["-n"], "__n"):
        done = run("kenlm-query", *flags, path, stdin=(golden / "inputs" / f"{text}.txt").read_bytes())
        assert done.out == (golden / "queries" / f"{model}__{text}{suffix}.txt").read_bytes()


def test_lmplz_prints_the_statistics_of_the_goldens(run, shared_data):
    golden = shared_data / "golden"
    text = lzma.decompress((golden / "inputs" / "small.txt.xz").read_bytes())
    done = run("kenlm-lmplz", "-o", 3, "--prune", 0, 0, 1, stdin=text)
    log = (golden / "models" / "small.o3.prune001.log").read_text().splitlines()
    expected = [line for line in log if line.startswith(("Unigram tokens", "Statistics")) or " D1=" in line]
    assert [line for line in done.err.splitlines() if line in expected] == expected
