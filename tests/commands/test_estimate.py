"""The command estimate, its YAML job and ng.estimate, in the calls of a user."""

import bz2
import gzip
import json
import lzma
import math
import re
import tempfile

import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.core.models.arpa import read_arpa
from mgpu_ngram.core.models.model_file import describe_model

LINES = [f"{a} {b} {c}" for a in "pqrs" for b in "xyz" for c in "pqxy" if a + b != "px"] + ["p x", "q"] * 3


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text("".join(line + "\n" for line in LINES))
    return str(tmp_path / "text")


def run(*arguments):
    return cli.main([*map(str, arguments)])


def orders_of(path):
    return [len(level) for level in read_arpa(path).levels()]


def test_model_files_and_arpa_files(text, tmp_path, capsys):
    flags = ["--workers", 0, "--order", 3, "--discount-fallback"]
    assert run("estimate", text, "-o", tmp_path / "m.arpa", *flags) == 0
    out, _ = capsys.readouterr()
    assert "unigram tokens" in out and "D3+" in out and "tokens/s" in out
    assert run("estimate", text, "-o", tmp_path / "m.safetensors", *flags, "--json") == 0
    [found] = [json.loads(capsys.readouterr().out)]
    assert found["tokens"] == sum(len(line.split()) for line in LINES) and found["types"] == 3 + len("pqrsxyz")
    assert orders_of(tmp_path / "m.arpa") == describe_model(tmp_path / "m.safetensors")["orders"]
    assert list(found["statistics"]["kept"].values()) == orders_of(tmp_path / "m.arpa")
    for name in "m.arpa", "m.safetensors":
        assert run("score", tmp_path / name, text, "-v", "summary") == 0
    one, two = capsys.readouterr().out.split("Perplexity including OOVs:")[1:]
    assert one == two


@pytest.mark.parametrize(
    "suffix, plain", [(".gz", gzip.decompress), (".xz", lzma.decompress), (".bz2", bz2.decompress)]
)
def test_compressed_arpa_files(text, tmp_path, suffix, plain):
    flags = ["--workers", 0, "--order", 2, "--discount-fallback"]
    assert run("estimate", text, "-o", tmp_path / "m.arpa", *flags) == 0
    packed = tmp_path / f"m.arpa{suffix}"
    assert run("estimate", text, "-o", packed, *flags) == 0
    assert plain(packed.read_bytes()) == (tmp_path / "m.arpa").read_bytes()
    assert run("estimate", text, "-o", packed, *flags) == 2  # it exists
    assert run("convert", tmp_path / "m.arpa", "-o", packed, "--overwrite") == 0
    assert plain(packed.read_bytes()) == (tmp_path / "m.arpa").read_bytes()


def test_an_arpa_file_on_standard_output(text, tmp_path, capfdbinary):
    assert run("estimate", text, "-o", tmp_path / "m.arpa", "--workers", 0, "--order", 2, "--discount-fallback") == 0
    expected = (tmp_path / "m.arpa").read_bytes()
    capfdbinary.readouterr()
    assert run("estimate", text, "-o", "-", "--workers", 0, "--order", 2, "--discount-fallback") == 0
    out, err = capfdbinary.readouterr()
    assert out == expected and b"unigram tokens" in err
    assert err.startswith(b"-: ") and b"model.arpa" not in err, "the temporary file has no name"
    assert run("convert", tmp_path / "m.arpa", "-o", "-", "--json") == 0
    out, err = capfdbinary.readouterr()
    assert out == expected and json.loads(err)["path"] == "-"
    assert run("estimate", text, "-o", "-", "--resume") == 2
    assert b"standard output; name a file" in capfdbinary.readouterr().err
    assert run("convert", tmp_path / "m.arpa", "-o", "-", "--format", "kenlm-trie") == 2


def test_no_room_for_a_model_on_standard_output(arpa, tmp_path, capsys, full_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full_disk()
    assert run("convert", arpa, "-o", "-") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "mgpu-ngram-" not in err, "no name of a file that is deleted"
    assert f"cannot write a temporary file in {tmp_path} after 0 bytes: No space left on device; free space" in err


def test_python(text, tmp_path):
    assert run("estimate", text, "-o", tmp_path / "m.arpa", "--workers", 0, "--discount-fallback", 0.5, 0.7) == 0
    model = ng.estimate(text, discount_fallback=[0.5, 0.7], device="cpu")
    assert isinstance(model, ng.Model) and model.order == 5
    same = ng.Model.load(tmp_path / "m.arpa", device="cpu")
    assert model.score(LINES).tolist() == same.score(LINES).tolist()
    assert ng.estimate(iter(LINES), 2, discount_fallback=[], device="cpu").order == 2
    with pytest.raises(ng.InputError, match="format is for files"):
        ng.estimate(text, format="arpa")


def test_yaml(text, tmp_path, capsys):
    config = tmp_path / "c.yaml"
    config.write_text(f"""
output: {tmp_path}/out
cluster: {{workers: 0, device: cpu}}
jobs:
- estimate: {{corpus: {text}, order: 2, discount_fallback: []}}
- score: {{model: estimate, text: {text}}}
""")
    assert run("plan", config) == 0 and run("run", config) == 0
    out, err = capsys.readouterr()
    once = "one part: its tokens are sorted once|parts are made from the tokens, which are read 1 time"  # by cores
    assert re.search(f"\n({once})\ntokens: up to 0 bytes on devices, ", out)
    assert "Perplexity including OOVs" in out and err == ""
    assert run("info", tmp_path / "out" / "estimate") == 0
    assert "Kneser-Ney model of order 2" in capsys.readouterr().out
    assert run("run", config, "--resume") == 0
    assert capsys.readouterr().err.count("finished before") == 2


@pytest.mark.parametrize(
    "arguments, why",
    [
        ([], "neither corpus nor counts is given"),
        (["text", "--from-counts", "c"], "both corpus and counts are given"),
        (["text", "--prune", "1", "0"], "prune is .* must .* not fall"),
        (["text", "--order", "0"], "order is 0 but must be from 1 to 1000"),
        (["text", "--order", "2", "--prune", "0", "0", "1"], "3 thresholds for 2 orders"),
        (["text", "--limit-vocab-file", "nothing"], "limit_vocab_file nothing: cannot be read"),
        (["text", "--discount-fallback", "2"], "2 for count 1 but it must be from 0 to 1"),
        (["text", "--discount-fallback", "1", "1", "1", "1"], "4 values but there are only 3"),
        (["text", "--collapse-values"], "collapse_values needs format arpa"),
        (["text", "--separator-id", "1"], "separator_id needs unit id"),
        (["text", "--vocab-pad", "9", "--interpolate-unigrams", "0"], "vocab_pad needs interpolate_unigrams"),
        (["nowhere"], "nowhere"),
        (["text"], "no discount can be computed for 1-grams .*seen: .*--discount-fallback"),
        (["specials", "--discount-fallback"], "<s> stands in .*specials' at byte 4.*--skip-symbols"),
        (["empty", "--discount-fallback"], "the text is empty"),
    ],
)
def test_refusals(arguments, why, text, tmp_path, monkeypatch, capsys):
    """The error is one line, and no file remains."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specials").write_text("a b <s> c\n")
    (tmp_path / "empty").write_text("")
    before = sorted(tmp_path.iterdir())
    assert run("estimate", *arguments, "-o", "m.safetensors", "--workers", 0) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert re.search(why, err), err
    assert sorted(tmp_path.iterdir()) == before


def test_names_of_outputs(text, tmp_path, capsys):
    assert run("estimate", text, "-o", tmp_path / "m.safetensors.gz", "--workers", 0) == 2
    assert "must end with .arpa" in capsys.readouterr().err
    for name in "m.arpa", "m.safetensors":
        (tmp_path / name).write_text("mine")
        assert run("estimate", text, "-o", tmp_path / name, "--workers", 0, "--overwrite") == 2
        assert "exists and is not " in capsys.readouterr().err and (tmp_path / name).read_text() == "mine"


def test_perplexity_of_uniform_text(tmp_path):
    """In a model of order 1 with equally frequent words, each word has the same probability."""
    (tmp_path / "text").write_text("a b c d\n" * 5)
    model = ng.estimate(str(tmp_path / "text"), 1, discount_fallback=[0, 0, 0], device="cpu")
    assert model.score("a b c d") == pytest.approx(5 * math.log10(1 / 5), abs=1e-5)
