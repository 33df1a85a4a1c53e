"""kenlm-lmplz, kenlm-query, kenlm-build_binary and kenlm-filter: KenLM's options, and its outputs on the goldens."""

import base64
import io
import lzma
import os
import re
import subprocess
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from mgpu_ngram import cli
from mgpu_ngram.commands.kenlm import parse_size
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.arpa import read_arpa

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


def test_lmplz_ignores_words_that_belong_to_no_option(run):
    """NeMo's train_kenlm.py gives an empty one for models of characters."""
    flags = ["-o", 2, "--discount_fallback"]
    assert run("kenlm-lmplz", "", *flags, stdin=TEXT).out == run("kenlm-lmplz", *flags, stdin=TEXT).out != b""
    assert "unrecognized option --words" in run("kenlm-lmplz", *flags, "--words", stdin=TEXT).err


@pytest.mark.parametrize("flag", ["--discount", "--discount-fallback", "--discount_fall=0.5"])
def test_lmplz_takes_the_beginning_of_an_option(run, flag):
    """As Boost's library of options does; error messages of ours name options with hyphens."""
    assert run("kenlm-lmplz", "-o", 2, flag, stdin=TEXT).status == 0
    assert "--skip-symbols" in run("kenlm-lmplz", "-o", 2, flag, stdin=b"<s>\n").err
    assert run("kenlm-lmplz", "-o", 2, flag, "--skip", stdin=b"<s> a\n").status == 0


@pytest.fixture
def piped():
    """Return piped(content), which returns the path of a pipe that gives it."""
    open_ends = []

    def piped(content):
        receiving, sending = os.pipe()
        os.write(sending, content)
        os.close(sending)
        open_ends.append(receiving)
        return f"/dev/fd/{receiving}"

    yield piped
    for end in open_ends:
        os.close(end)


def test_lmplz_reads_a_pipe(run, piped):
    flags = ["-o", 2, "--discount_fallback"]
    done = run("kenlm-lmplz", *flags, "--text", piped(TEXT))
    assert done.status == 0 and done.out == run("kenlm-lmplz", *flags, stdin=TEXT).out


def test_models_from_pipes(run, piped, arpa, tmp_path):
    """`lmplz ... | build_binary trie /dev/stdin m.binary`, and `query <(...)`, which name a pipe in /dev/fd."""
    for made, source in ("one", arpa), ("other", piped(ARPA.encode())):
        assert run("kenlm-build_binary", "trie", source, tmp_path / made).status == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    for model in arpa, tmp_path / "one":
        wanted = run("kenlm-query", model, stdin=b"a b\n").out
        assert wanted and run("kenlm-query", piped(model.read_bytes()), stdin=b"a b\n").out == wanted
    assert run("kenlm-build_binary", piped(ARPA.encode())).err == run("kenlm-build_binary", arpa).err
    for name, source in ("whole", arpa), ("piped", piped(ARPA.encode())):
        assert run("kenlm-filter", "single", f"model:{source}", tmp_path / name, stdin=b"a\n").status == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "piped").read_bytes()
    broken = piped(ARPA.replace("-0.4", "x").encode())
    done = run("kenlm-build_binary", broken, tmp_path / "none")
    assert done.status == 2 and f"{broken!r}, line " in done.err and done.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"m.arpa", "one", "other", "whole", "piped"}


def test_an_output_that_is_an_input(run, arpa, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = arpa.read_bytes()
    (tmp_path / "link").symlink_to(arpa)
    os.link(arpa, "hard")
    for name in arpa.name, f"./{arpa.name}", "link", "hard":
        for words in (
            ["kenlm-build_binary", arpa.name, name],
            ["kenlm-build_binary", "-r", arpa.name, "none", name],
            ["kenlm-filter", "single", f"model:{arpa.name}", name],
            ["kenlm-filter", "single", f"vocab:{arpa.name}", name],
            ["kenlm-lmplz", "-o", "2", "--text", arpa.name, "--arpa", name],
        ):
            done = run(*words)
            assert done.status == 2 and done.err.count("\n") == 1, words
            assert f"output {name} is" in done.err and "an input of this run; give another output path" in done.err
    assert arpa.read_bytes() == before


@pytest.mark.parametrize(
    "flags, why",
    [
        ([], "usage"),
        (["--text", "x"], "required: -o/--order"),
        (["-o", "2"], "--discount-fallback"),
        (["-o", "2", "--renumber"], "--renumber is not supported: it only changes the order"),
        (["-o", "2", "--intermediate", "x"], "mix ARPA files with mgpu-ngram mix"),
        (["-o", "2", "--arpa", "none/x"], "'none' is not a folder"),
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
    assert parse_size(text) == pytest.approx(size or 0.8 * psutil.virtual_memory().total)
    with pytest.raises(InputError, match="is not a number with one of the units"):
        parse_size(text + "x")


@pytest.mark.parametrize("text", ["inf", "-infG", "nan%", "nanK"])
def test_sizes_that_are_no_numbers(text):
    with pytest.raises(InputError, match="is not a number with one of the units"):
        parse_size(text)


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


@pytest.mark.parametrize("flags", [(), ("-v", "word"), ("-v", "sentence"), ("-v", "summary", "-n"), ("-v", "1")])
@pytest.mark.parametrize("text", [b"a b\nz\n", b"", b"\n \na\x00b <s>\r\na b a", b"x" * 9000 + b" a\n"])
def test_query_prints_at_once_what_it_prints_at_last(run, arpa, text, flags):
    run("kenlm-build_binary", arpa, arpa.with_suffix(".bin"))
    for model in arpa, arpa.with_suffix(".bin"):
        found, wanted = (run("kenlm-query", *more, *flags, model, stdin=text) for more in (["-b"], []))
        assert (found.status, found.out) == (wanted.status, wanted.out) == (0, wanted.out)


def test_query_answers_before_the_next_line(arpa):
    """A client writes a line and waits for its score, as Perl's open2 does."""
    call = "import sys; from mgpu_ngram.cli import kenlm_program; kenlm_program(['kenlm-query', *sys.argv[1:]])"
    command = [sys.executable, "-c", call, "-b", "-v", "sentence", str(arpa)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line, total in zip([b"a b\n", b"z\n"], TOTALS, strict=True):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == total.encode()
        process.stdin.close()
        assert process.stdout.read() == b"" and process.wait() == 0


@pytest.mark.parametrize(
    "words, why",
    [([], "usage"), (["-b", "m"], "m: cannot be read"), (["-v", "all", "m"], "-v is 'all'"), (["a", "b"], "usage")],
)
def test_query_refuses(run, words, why):
    done = run("kenlm-query", *words)
    assert done.status == 2 and why in done.err


def test_lmplz_raises_a_small_memory(run):
    """`-S` is at least 64 MiB."""
    flags = ["-o", 2, "--discount_fallback"]
    assert run("kenlm-lmplz", *flags, "-S", "1K", stdin=TEXT).out == run("kenlm-lmplz", *flags, stdin=TEXT).out != b""


def test_build_binary_makes_models_that_score_the_same(run, arpa, tmp_path):
    expected = run("kenlm-query", arpa, stdin=b"a b\nz b a\n").out
    sizes = {}
    for name, flags in {
        "probing": [], "dense": ["-p", "1.1", "-a", "22", "probing"], "trie": ["-s", "-w", "mmap", "-S", "1G", "trie"],
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


KENLM_FILES = {  # zlib, base 85: by build_binary -u -1.5 of KenLM 0.3.0, of ARPA without <unk>
    "probing": "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFY7OdhaD7Gr_Z"
    "%nYc26^IM!6!%)TmBQ6x1A^JvmoJHnvxD?=<$V8GTl^p!WRJO))}-1$-LD|#AJ`95KWpa9eY0jtg51zxY;0_Q_RN{RXV3TmX`g)@pO`XQHW~|q*"
    "o{SRKh##&w1VU{+srTQIn=BGWbZ?^+om)x+m6Ae7>M<OL?S~H0{}G|PUr",
    "trie": "c-qU&O)OBz$yLZGDJihh*U!#KO-##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFY7Odhajf{KAKD^!jd"
    "$pjWCT~MdE*RrjYK`=Y}@+EO`cCMW7A8U&rWSeVgO{)FV{R*Muz<vfaFl*+_eK5AMvGM-1XU^<J$Vr0KH^AI=_KXiu-e(^Zni<Rt*g<Am+PjT2XWm"
    "?%mZm0;EMZfcmu<&jQ*6hO$Y7%nq>>l_&OJhx",
}  # fmt: skip


@pytest.mark.parametrize("kind", KENLM_FILES)
def test_files_of_kenlm_for_a_model_without_unk(run, tmp_path, kind):
    """KenLM does not count an added <unk> in a probing file, and gives it the backoff 0 without a sign."""
    (tmp_path / "m.arpa").write_text(ARPA.replace("ngram 1=5", "ngram 1=4").replace("-1\t<unk>\n", ""))
    assert run("kenlm-build_binary", "-u", "-1.5", kind, tmp_path / "m.arpa", tmp_path / "made").status == 0
    made = (tmp_path / "made").read_bytes()
    assert made == zlib.decompress(base64.b85decode(KENLM_FILES[kind]))
    assert run("kenlm-query", "-v", "word", tmp_path / "made", stdin=b"z a\n").out.startswith(b"z=0 1 -1.8\ta=")


@pytest.mark.parametrize(
    "flags, kind",
    [
        (["-q", "8"], 3), (["-q", "4", "-b", "3"], 3), (["-a", "22"], 4), (["-a", "255", "-q", "5"], 5),
        (["-t", "/tmp", "-m", "100", "-S", "1G", "-w", "after"], 2),
    ],
)  # fmt: skip
def test_build_binary_compresses_tries(run, arpa, tmp_path, flags, kind):
    """The goldens of other tests have the bytes; here all values of an order fit the codes."""
    assert run("kenlm-build_binary", *flags, "trie", arpa, tmp_path / "made").status == 0
    content = (tmp_path / "made").read_bytes()
    assert content[96] == kind
    score = lambda model: run("kenlm-query", "-v", "sentence", model, stdin=b"a b\nz b a\n").out  # noqa: E731
    assert score(tmp_path / "made") == score(arpa)


def test_build_binary_takes_files_that_lack_something(run, tmp_path):
    """-u: <unk>. -s: <s>. -i: probabilities over 1 become 1. -r: rest costs, which follow the backoffs."""
    lines = ARPA.replace("ngram 1=5", "ngram 1=4").replace("-1\t<unk>\n", "")
    (tmp_path / "m.arpa").write_text(lines)
    assert run("kenlm-build_binary", "-u", "-5", tmp_path / "m.arpa", tmp_path / "made").status == 0
    assert b"z=0 1 -5\t" in run("kenlm-query", "-n", tmp_path / "made", stdin=b"z\n").out
    lines = ARPA.replace("ngram 1=5", "ngram 1=4").replace("0\t<s>\t-0.3\n", "").replace("ngram 2=3", "ngram 2=2")
    (tmp_path / "m.arpa").write_text(lines.replace("-0.1\t<s> a\n", ""))
    assert "<s> is none of them" in run("kenlm-build_binary", tmp_path / "m.arpa", tmp_path / "made").err
    for kind in "probing", "trie":
        assert run("kenlm-build_binary", "-s", kind, tmp_path / "m.arpa", tmp_path / "made").status == 0
        assert (tmp_path / "made").read_bytes().count(b"</s>\0") == 1
    (tmp_path / "m.arpa").write_text(ARPA.replace("-0.2\ta b", "0.001\ta b"))
    assert "over 0" in run("kenlm-build_binary", tmp_path / "m.arpa", tmp_path / "made").err
    assert run("kenlm-build_binary", "-i", tmp_path / "m.arpa", tmp_path / "made").status == 0
    assert b"b=4 2 -0\t" in run("kenlm-query", "-n", tmp_path / "made", stdin=b"a b\n").out
    (tmp_path / "m.arpa").write_text(ARPA)
    unigrams = ARPA.partition("\n\n\\2-grams")[0].replace("ngram 2=3\n", "") + "\n\n\\end\\\n"
    (tmp_path / "1.arpa").write_text(re.sub("(\t[^\t\n]*)\t.*", r"\1", unigrams))
    assert run("kenlm-build_binary", "-r", tmp_path / "1.arpa", tmp_path / "m.arpa", tmp_path / "made").status == 0
    content = (tmp_path / "made").read_bytes()
    rest = np.frombuffer(content, "<f4,<f4,<f4", 5, 128 + 8 + 12 * 7)
    assert content[96] == 1 and rest["f2"].tolist() == np.array([-1, 0, -0.6, -0.7, -0.8], np.float32).tolist()


SIZES = """Memory estimate for binary LM:
type      MB
probing 3141 assuming -p 1.25
probing 3572 assuming -r models -p 1.25
trie    1768 without quantization
trie     849 assuming -q 4 -b 3 quantization{space}
trie    1561 assuming -a 255 array pointer compression
trie     642 assuming -a 255 -q 4 -b 3 array pointer compression and quantization
""".replace("{space}", " ")


@pytest.mark.parametrize(
    "flags, why",
    [
        (["-q", "8"], "-q is given, but KenLM quantises only tries"),
        (["-q", "x", "trie"], "-q is 'x' but must be a whole number"),
        (["-q", "1", "trie"], "quantize_backoff is 1 bits"),
        (["-b", "8", "trie"], "-b is given without -q"),
        (["-a", "256", "trie"], "pointer_bits is 256"),
        (["-r", "a b", "trie"], "-r is given, but KenLM's tries have no rest costs"),
        (["-r", "nowhere"], "nowhere"),
        (["-u", "5"], "unk_log10 is 5 but must be 0 or less"),
        (["-p", "1"], "multiplier is 1 but must be a number above 1"),
        (["-w", "x"], "-w is 'x'"),
        (["-m", "x"], "-m is 'x'"),
        (["-p", "inf"], "multiplier is inf but must be a number above 1"),
        (["-S", "inf"], "the size 'inf' is not a number"),
        (["tree"], "'tree' is neither probing nor trie; usage"),
        (["-h"], "usage"),
        (["-z"], "-z not recognized"),
    ],
)
def test_build_binary_refuses(run, arpa, tmp_path, flags, why):
    done = run("kenlm-build_binary", *flags, arpa, tmp_path / "made")
    assert done.status == 2 and why in done.err and done.err.count("\n") == 1 and not (tmp_path / "made").exists()


def test_build_binary_estimates_memory(run, tmp_path):
    """As KenLM's program prints it."""
    counts = "ngram 1=400000\nngram 2=20000000\nngram 3=70000000\nngram 4=99000000\n"
    (tmp_path / "m.arpa").write_text(f"\\data\\\n{counts}\n\\1-grams:\n")
    done = run("kenlm-build_binary", "-q", "4", "-b", "3", "-a", "255", "-p", "1.25", tmp_path / "m.arpa")
    assert (done.status, done.out) == (0, b"") and done.err == SIZES


def test_a_bug_does_not_hint_at_a_flag_that_is_missing(run, arpa, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyError("x")

    monkeypatch.setattr("mgpu_ngram.commands.kenlm.folder_of", fail)
    done = run("kenlm-build_binary", arpa, tmp_path / "made")
    assert (done.status, done.err) == (1, "kenlm-build_binary: the run failed: KeyError: 'x'\n")


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


COUNTS = (
    b"a b c\t5\n\n\t7\na\t1\n  a  b \t2\nx a\t3\na x\t4\n<s> a b\t6\n<s>\t8\nb\r\t9\na b\tc d\tx\n <q> \t1\nd c\ne c d"
)
FILTER_TEXT = b"a b\nc d\te\n\n  \nb  c <q>\n"
IN_LINE_0 = ["", "\t7", "a\t1", "  a  b \t2", "<s> a b\t6", "<s>\t8", "a b\tc d\tx", " <q> \t1"]
IN_LINE_1 = ["", "\t7", "<s>\t8", " <q> \t1", "d c", "e c d"]
IN_LINE_2 = ["", "\t7", "<s>\t8", " <q> \t1"]


def lines_of(path):
    assert path.read_bytes().endswith(b"\n")
    return path.read_bytes().decode().split("\n")[:-1]


@pytest.mark.parametrize("model_on_stdin", [True, False])
@pytest.mark.parametrize(
    "words, kept",
    [  # by KenLM's program
        ("copy", COUNTS.decode().split("\n")),
        ("single", ["a b c\t5", *IN_LINE_0, "d c", "e c d"]),
        ("union", [*IN_LINE_0, "d c", "e c d"]),
        ("union phrase threads:2", [*IN_LINE_0, "d c", "e c d"]),
    ],
)
def test_raw_ngrams_are_filtered(run, tmp_path, model_on_stdin, words, kept):
    (tmp_path / "text").write_bytes(FILTER_TEXT)
    (tmp_path / "counts").write_bytes(COUNTS)
    source, stdin = (f"vocab:{tmp_path / 'text'}", COUNTS) if model_on_stdin else (tmp_path / "counts", FILTER_TEXT)
    done = run("kenlm-filter", *words.split(), "raw", source, tmp_path / "kept", stdin=stdin)
    assert (done.status, done.out, lines_of(tmp_path / "kept")) == (0, b"", kept)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "counts", "kept"}


def test_raw_ngrams_of_each_line_and_of_contexts(run, tmp_path, monkeypatch):
    monkeypatch.setattr("mgpu_ngram.commands.kenlm_filter.HELD_BYTES", 20)
    (tmp_path / "text").write_bytes(FILTER_TEXT)
    vocabulary = f"vocab:{tmp_path / 'text'}"
    assert run("filter", "multiple", "raw", vocabulary, tmp_path / "o.", stdin=COUNTS).status == 0
    assert [lines_of(tmp_path / f"o.{k}") for k in range(3)] == [IN_LINE_0, IN_LINE_1, IN_LINE_2]
    assert {path.name for path in tmp_path.iterdir()} == {"text", "o.0", "o.1", "o.2"}
    counts = b"\n".join(line for line in COUNTS.split(b"\n") if line and line[:1] != b"\t")
    assert run("filter", "union", "context", "raw", vocabulary, tmp_path / "o", stdin=counts).status == 0
    kept = "a b c\t5|a\t1|  a  b \t2|a x\t4|<s> a b\t6|<s>\t8|b\r\t9|a b\tc d\tx| <q> \t1|d c|e c d"
    assert lines_of(tmp_path / "o") == kept.split("|")


def test_golden_raw_ngrams(run, tmp_path, golden_filter):
    """That of the mode single is empty, because KenLM with threads loses it."""
    counts = (golden_filter / "raw_in.txt").read_bytes()
    done = run("kenlm-filter", "union", "raw", f"vocab:{golden_filter / 'sent12.txt'}", tmp_path / "kept", stdin=counts)
    assert done.status == 0
    assert (tmp_path / "kept").read_bytes() == (golden_filter / "raw_union.txt").read_bytes()


def entries(path):
    """The lines of an ARPA file, sorted, with numbers as float32."""
    found = []
    for line in filter(None, path.read_text().split("\n")):
        fields = line.split("\t")
        numbers = [np.float32(field) for field in (fields[0], *fields[2:]) if len(fields) > 1]
        found.append((fields[1:2] or fields, [float(x) for x in numbers if x]))
    return sorted(found)


@pytest.mark.parametrize(
    "words, text, expected",
    [
        ("copy", "vocab.txt", "a.arpa"),
        ("single", "vocab.txt", "a.single.arpa"),
        ("single context", "vocab.txt", "a.single_context.arpa"),
        ("union arpa", "sent12.txt", "a.union.arpa"),
        ("union phrase", "phrases12.txt", "a.union_phrase.arpa"),
    ],
)
def test_golden_filtered_models(run, tmp_path, golden_filter, words, text, expected):
    model = f"model:{golden_filter / 'a.arpa'}"
    done = run("filter", *words.split(), model, tmp_path / "made", stdin=(golden_filter / text).read_bytes())
    assert (done.status, done.out) == (0, b"")
    assert entries(tmp_path / "made") == entries(golden_filter / expected)


@pytest.mark.parametrize("kind", ["raw", "arpa"])
def test_a_folder_in_place_of_an_output(kind, run, arpa, tmp_path):
    """Nothing is written."""
    folder = tmp_path / "made"
    (folder / "o1").mkdir(parents=True)
    (tmp_path / "text").write_bytes(FILTER_TEXT)
    words = ["raw", f"vocab:{tmp_path / 'text'}"] if kind == "raw" else [f"model:{arpa}"]
    done = run("filter", "multiple", *words, folder / "o", stdin=COUNTS if kind == "raw" else FILTER_TEXT)
    assert done.status == 2 and done.err.endswith("o1 is a folder; remove it or give another path\n")
    assert [path.name for path in folder.iterdir()] == ["o1"]


def test_a_model_of_each_line_of_a_golden_text(run, tmp_path, golden_filter):
    """KenLM counts no blank line."""
    text = b"\n" + (golden_filter / "sent12.txt").read_bytes()
    done = run("filter", "multiple", f"model:{golden_filter / 'a.arpa'}", tmp_path / "a.", stdin=text)
    assert (done.status, done.out) == (0, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"a.{k}" for k in range(12))
    assert entries(tmp_path / "a.3") == entries(next(golden_filter.rglob("multi/a.3")))


@pytest.mark.parametrize(
    "words, why",
    [
        (["in", "out"], "usage: kenlm-filter"),
        (["raw", "in", "out"], "no mode is given"),
        (["single", "threads:x", "in", "out"], "'threads:x' is not an option"),
        (["single", "phrase", "in", "out"], "phrase needs the mode union or multiple, but the mode is single"),
        (["single", "text:in", "out"], "the input is 'text:in'; put vocab: or model: before"),
        (["single", "in", "nowhere/out"], "'nowhere' is not a folder"),
        (["single", "raw", "in", "out"], "in"),
    ],
)
def test_filter_refuses(run, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    done = run("kenlm-filter", *words, stdin=b"a\n")
    assert done.status == 2 and why in done.err and done.err.count("\n") == 1 and not list(tmp_path.iterdir())
