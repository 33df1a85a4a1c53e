"""Every command that takes a model takes KenLM's binary files, and makes of them what it makes of the ARPA file."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import mgpu_ngram as ng
from mgpu_ngram import kenlm
from mgpu_ngram.core.kenlm.binary_file import KenlmFile

OTHER = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-0.5\t</s>\n-0.25\ta\n\n\\end\\\n"


@pytest.fixture
def of_both(binaries, binary_type, tmp_path, monkeypatch, mgpu_ngram):
    """Return of_both(result, *words): the result of a command with the ARPA file, and with a binary as MODEL.

    result  called with the output of the command, which may write the file or folder `made`
    """
    monkeypatch.chdir(tmp_path)
    listed = binaries.ARPA.replace("ngram 2=6", "ngram 2=7").replace("\t0\n\n\\3", "\t0\n-2.25\ta naïve\t0\n\n\\3")
    (tmp_path / "m.arpa").write_text(listed)  # with the n-gram that KenLM fills in
    (tmp_path / "m.bin").write_bytes(binaries.BINARIES[binary_type])
    (tmp_path / "other.arpa").write_text(OTHER)
    (tmp_path / "text").write_text("a b\nb a naïve b c a\n\n")

    def of_both(result, *words):
        found = []
        for model in "m.arpa", "m.bin":
            words_here = [model if word == "MODEL" else word for word in words]
            status, out, err = mgpu_ngram(*words_here, "--device", "cpu")
            assert (status, err) == (0, "")
            found.append(result(out))
        return found

    return of_both


def lines_of_model(out):
    with open("made.arpa") as file:
        return sorted(file)  # ids, and so the order of n-grams, are those of each file


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "MODEL"],
        ["prune", "MODEL", "--entropy", "0.1"],
        ["prune", "MODEL", "--vocabulary", "text"],
        ["mix", "MODEL", "other.arpa", "--weights", "0.25", "0.75"],
        ["mix", "other.arpa", "MODEL", "--tune", "text", "--log-linear"],
    ],
    ids=lambda words: "-".join(words[:3:2]),
)
def test_models(words, of_both):
    found, wanted = of_both(lines_of_model, *words, "-o", "made.arpa", "--overwrite")
    assert found == wanted and len(found) > 12


def test_scores(of_both, binaries):
    with open("text", "w") as file:
        file.writelines(f"{text}\n" for text in binaries.SCORES)
    words = ["-o", "made.parquet", "--overwrite", "-v", "word"]
    columns = "word", "ngram_length", "prob_log10"
    read = lambda out: [pq.read_table("made.parquet")[name].to_pylist() for name in columns]  # noqa: E731
    found, wanted = of_both(read, "score", "MODEL", "text", *words)
    expected = [pair for scores in binaries.SCORES.values() for pair in scores]
    assert found == wanted and list(zip(found[2], found[1], strict=True)) == expected


def test_comparisons(of_both):
    names = "totals", "known_perplexity", "lengths"
    read = lambda out: [[m[name] for name in names] for m in json.loads(out)["models"]]  # noqa: E731
    found, wanted = of_both(read, "compare", "MODEL", "other.arpa", "text", "--json")
    assert found == wanted and found[0] != found[1]


def test_lists(of_both):
    with open("lists", "w") as file:
        file.write("0 ||| a b ||| F0= 1 ||| 1\n0 ||| naïve b a ||| F0= 2 ||| 2\n")
    read = lambda out: open("made").read().replace("m.", "")  # noqa: E731, SIM115
    found, wanted = of_both(read, "rescore", "lists", "--lm", "MODEL", "-o", "made", "--overwrite")
    assert found == wanted and "naïve" in found


def test_documents(of_both):
    with open("docs.jsonl", "w") as file:
        file.write('{"text": "a b a"}\n{"text": "c a"}\n')
    read = lambda out: open("made/documents/docs.jsonl").read()  # noqa: E731, SIM115
    found, wanted = of_both(read, "filter", "docs.jsonl", "-m", "MODEL", "-o", "made", "--overwrite")
    assert found == wanted and '"oovs"' in found


def test_next_words(of_both):
    read = lambda out: np.sort(np.load("made/rows.npy")).tolist()  # noqa: E731
    words = ["-o", "made", "--format", "npy", "--overwrite"]
    found, wanted = of_both(read, "distribution", "MODEL", "text", *words)
    assert found == wanted and len(found) > 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_files_are_mapped(of_both):
    """Neither the drop-in nor the reader of the commands copies a file into memory."""
    maps = lambda: open("/proc/self/maps").read().count(os.path.abspath("m.bin"))  # noqa: E731, SIM115
    assert maps() == 0
    for load in kenlm.Model, lambda name: KenlmFile(name, Path(name).read_bytes()):
        model = load("m.bin")
        assert maps() == 1, model
        del model
    assert ng.Model.load("m.bin", "cpu").order == 3
