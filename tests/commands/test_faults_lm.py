"""Faults that users of language models met, each with its right value; inputs are in shared/data/faults/lm.

The figures are those of KenLM's build_binary, query, filter and interpolate, or follow from the definitions.
"""

import gzip
import re
import struct
import warnings
from pathlib import Path

import pytest

from mgpu_ngram import cli, kenlm
from mgpu_ngram.core.errors import InputError, InputWarning
from mgpu_ngram.engine.trie.open_model import open_model

UNKNOWN_TEXT = "the <UNK> sat on the mat\na <UNK> ran\nthe cat sat\n"


@pytest.fixture(scope="module")
def faults(shared_data):
    """Return the folder of the inputs."""
    folder = shared_data / "faults" / "lm"
    if not folder.is_dir():
        pytest.skip("shared/data beside this checkout has no folder faults/lm")
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Return a function: run(*arguments) runs a command in a folder of its own and returns (exit status, output)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments, program=cli.main):
        try:
            status = program(list(map(str, arguments))) or 0
        except SystemExit as end:
            status = end.code or 0
        written = capsys.readouterr()
        return status, written.out + written.err

    return command


def scores(path, *texts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        return [kenlm.Model(str(path)).score(text) for text in texts]


def probs(path):
    """Return {n-gram: (log10 probability, log10 backoff)} of an ARPA file."""
    found = {}
    for line in Path(path).read_text().splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            found[fields[1]] = float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0
    return found


def row_sum(path, history=""):
    """Return the sum of P(word | history) over all words of a model, by its scores."""
    model, found = open_model(path), probs(path)
    words = [word for word in model.words if word != "<s>"]

    def prob(context, word):
        gram = " ".join([*context, word])
        if gram in found:
            return 10 ** found[gram][0]
        return 10 ** found.get(" ".join(context), (0, 0.0))[1] * prob(context[1:], word)

    return sum(prob(history.split(), word) for word in words)


def test_f1_unk_in_capitals(faults, run):
    """KenLM: <UNK> is <unk>, by every path."""
    folder = faults / "F1_unk"
    texts = "the zzz ran", "the <UNK> ran", "the <unk> ran"
    for name in "u.arpa", "u.safetensors":
        assert run("estimate", folder / "u.txt", "-o", name, "--order", 2, "--discount-fallback")[0] == 0
    assert Path("u.arpa").read_text() == (folder / "u.arpa").read_text()
    for kind in "probing", "trie":
        assert run("convert", "u.arpa", "-o", f"u.{kind}.bin", "--format", f"kenlm-{kind}")[0] == 0
    assert run("convert", "u.arpa", "-o", "c.safetensors")[0] == 0
    for path in "u.arpa", folder / "uk.prob", "u.probing.bin", "u.trie.bin", "u.safetensors", "c.safetensors":
        assert scores(path, *texts) == pytest.approx([-1.8627694] * 3, abs=1e-6), path
        status, out = run("score", path, folder / "uq.txt", "-v", "sentence")
        assert status == 0 and out.count("-1.86276") == 3, (path, out)
    with pytest.warns(InputWarning, match=r"lists 1 1-gram again \(<UNK> is <unk>\)"):
        open_model("u.arpa")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("dupinf", "tall trees", -0.9),
        ("dup1", "red boat", -1.05),
        ("dup1", "boat boat", -2.82),
        ("dup1", "boat", -1.75),
        ("dup_eos", "red boat", -1.05),
        ("dup_eos", "tall trees", -101.9),
    ],
)
def test_f2_words_listed_twice(name, text, expected, faults, run):
    """The values of the file of `build_binary probing`."""
    path = faults / "F2_dup" / f"{name}.arpa"
    for kind in "probing", "trie":
        assert run("convert", path, "-o", f"{kind}.bin", "--format", f"kenlm-{kind}")[0] == 0
    assert run("convert", path, "-o", "m.safetensors")[0] == 0
    for file in path, "probing.bin", "trie.bin", "m.safetensors":
        assert scores(file, text) == pytest.approx([expected], abs=1e-5)


def test_f3_counts_that_were_cut_off(faults, run):
    counts = faults / "F3_counts" / "cut5.counts"
    status, out = run("estimate", "--from-counts", counts, "-o", "m.arpa", "--discount-fallback")
    assert status == 2 and "has 'b </s>' but no 3-gram that ends with it, so counts were cut off" in out
    status, _ = run("estimate", "--from-counts", counts, "-o", "m.arpa", "--smoothing", "witten-bell")
    assert status == 0 and row_sum("m.arpa", "a b") == pytest.approx(1, abs=1e-5)


def test_f4_weights_without_a_maximum(faults, run):
    folder = faults / "F4_loglinear"
    models = folder / "a.arpa", folder / "b.arpa"
    status, out = run("mix", *models, "--log-linear", "--tune", folder / "one.txt", "-o", "z.arpa")
    assert status == 0 and re.search(r"1\.001\d* +4\.647\d* 2\.198", out), out
    assert row_sum("z.arpa", "<s> the") == pytest.approx(1, abs=1e-5)


def test_f4_rows_of_models_with_zeros(faults, run):
    folder = faults / "F4_loglinear"
    models = folder / "ml1.arpa", folder / "ml2.arpa"
    status, _ = run("mix", *models, "--log-linear", "--weights", 0.5, 0.5, "-o", "z.arpa")
    assert status == 0
    for history in "", "<s>", "north wind", "south wind", "wind":
        assert row_sum("z.arpa", history) == pytest.approx(1, abs=1e-5), history


def test_f5_words_that_the_text_lacks(faults, run):
    folder = faults / "F5_vocab_kn"
    how = "--order", 2, "--discount-fallback", "--vocabulary", folder / "voc"
    assert run("estimate", folder / "u.txt", "-o", "o.arpa", *how)[0] == 0
    assert [gram for gram in probs("o.arpa") if " " not in gram] == ["<unk>", "<s>", "</s>", "the", "cat", "zebra"]
    assert [row_sum("o.arpa"), row_sum("o.arpa", "the")] == pytest.approx([1, 1], abs=1e-5)


def test_f6_coefficients_above_1(faults, run):
    how = "--smoothing", "good-turing", "--gt-max", 7, "--order", 2
    with pytest.warns(
        InputWarning, match="the coefficient of count 1 is out of range, so this count is not discounted"
    ):
        assert run("estimate", faults / "F6_gt" / "u.txt", "-o", "o.arpa", *how)[0] == 0
    assert [row_sum("o.arpa", history) for history in ("", "<s>", "the")] == pytest.approx([1] * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("how", "counts", "bigrams"),
    [
        ("union phrase", (3, 0, 0), []),
        ("union context phrase", (6, 2, 0), ["<s> red", "<s> green"]),
        ("union", (3, 0, 0), []),
    ],
)
def test_f7_no_phrases(how, counts, bigrams, faults, run, monkeypatch):
    folder = faults / "F7_filter_phrase"
    from mgpu_ngram.commands.kenlm_filter import run_filter

    monkeypatch.setattr("sys.stdin", open(folder / "blank"))  # noqa: SIM115
    assert run(*how.split(), f"model:{folder / 'base.arpa'}", "o.arpa", program=run_filter)[0] == 0
    text = Path("o.arpa").read_text()
    assert tuple(int(count) for count in re.findall(r"ngram \d=(\d+)", text)) == counts
    assert sorted(gram for gram in probs("o.arpa") if " " in gram) == sorted(bigrams)
    assert list(probs("o.arpa"))[:3] == ["<unk>", "<s>", "</s>"]


def test_f8_bytes_after_a_binary(faults):
    path = faults / "F8_trailing" / "t.extra.bin"
    assert scores(path, "red boat") == pytest.approx([-1.05], abs=1e-5)
    assert list(open_model(path).words)[-1] == "boat"


def test_f9_a_compressed_binary(faults):
    with pytest.raises(OSError, match="is a KenLM binary model, which must be a local file that is not compressed"):
        kenlm.Model(str(faults / "F9_gzbin_exc" / "p.bin.gz"))


def test_f10_infinite_costs(faults, run):
    path = faults / "F10_lattice_inf" / "inf.lat"
    how = "--lattices", "kaldi", "--n-best", 5, "-o", "nbest.txt"
    status, out = run("rescore", path, "--lm", faults / "F7_filter_phrase" / "base.arpa", *how)
    assert status == 0, out
    assert [line.split(" ||| ")[1] for line in Path("nbest.txt").read_text().splitlines()] == ["a"]


def test_f11_nul_in_a_word(faults, run):
    path = faults / "F11_nul" / "nul_word.arpa"
    for kind in "probing", "trie":
        assert run("convert", path, "-o", f"{kind}.bin", "--format", f"kenlm-{kind}")[0] == 0
        assert sorted(open_model(f"{kind}.bin").words) == sorted(open_model(path).words)
    assert "bo\0at" in list(open_model("trie.bin").words)


ARPA = r"""\data\
ngram 1={}
ngram 2={}

\1-grams:
{}
\2-grams:
{}
\end\
"""


def put(name, words, bigrams):
    lines = ["".join(f"{line}\n" for line in some) for some in (words, bigrams)]
    Path(name).write_text(ARPA.format(len(words), len(bigrams), *lines))


BEGIN = ["-1\t<s>\t-0.5", "-1.25\t</s>"]


@pytest.mark.parametrize(
    ("words", "bigrams", "expected"),
    [
        # The last line of <unk> counts, the first of other words and of n-grams. "q" is unknown; after <s>.
        (["-2\t<UNK>\t-1", "-3\t<unk>\t-2"], ["-0.5\t<s> <UNK>"], -0.5 - 2 - 1.25),
        (["-3\t<unk>\t-2", "-2\t<UNK>\t-1"], ["-0.5\t<s> <unk>"], -0.5 - 1 - 1.25),
        (["-2\t<Unk>\t-1", "-3\t<unk>\t-2"], ["-0.5\t<s> <Unk>"], -0.5 - 3 - 2 - 1.25),
        (["-3\t<unk>\t-2"], ["-0.5\t<s> <unk>", "-0.75\t<s> <UNK>"], -0.5 - 2 - 1.25),
        (["-3\t<unk>\t-2"], ["-0.75\t<s> <UNK>", "-0.5\t<s> <unk>"], -0.75 - 2 - 1.25),
        (["-3\t<unk>\t-2", "-9\t<s>\t-9"], ["-0.25\t<unk> </s>"], -0.5 - 3 - 0.25),
        (["-2\t<Unk>\t-1"], ["-0.5\t<s> <Unk>"], -0.5 - 100 - 1.25),
    ],
)
def test_unknown_words_and_lines_given_twice(words, bigrams, expected, run):
    put("m.arpa", [*BEGIN, *words], bigrams)
    for kind in "probing", "trie":
        assert run("convert", "m.arpa", "-o", f"{kind}.bin", "--format", f"kenlm-{kind}")[0] == 0
    assert run("convert", "m.arpa", "-o", "m.safetensors")[0] == 0
    for file in "m.arpa", "probing.bin", "trie.bin", "m.safetensors":
        assert scores(file, "q") == pytest.approx([expected], abs=1e-5), file


def test_a_probing_file_of_kenlm_with_a_word_twice(run):
    """A table of build_binary has both words; lookups find the first slot, whose id is the lower one."""
    put("m.arpa", ["-2\t<unk>", *BEGIN, "-3\ta", "-4\tb"], ["-0.5\t<s> a"])
    assert run("convert", "m.arpa", "-o", "m.bin", "--format", "kenlm-probing")[0] == 0
    data = Path("m.bin").read_bytes()
    header = 88 + 20 + 2 * 8 + 4
    slots = [struct.unpack_from("<QI", data, header + 8 + 12 * s) for s in range(7)]
    hash_of = {id: (hash, s) for s, (hash, id) in enumerate(slots) if hash}
    first, (_, second_at) = hash_of[3], hash_of[4]
    home = (first[0]) % 7
    if (second_at - home) % 7 < (first[1] - home) % 7:
        pytest.skip("the slot of b precedes that of a")
    changed = bytearray(data)
    struct.pack_into("<Q", changed, header + 8 + 12 * second_at, first[0])
    changed[data.rindex(b"b\0")] = ord("a")
    Path("twice.bin").write_bytes(changed)
    with pytest.warns(InputWarning, match="lists 1 1-gram again"):
        assert list(open_model("twice.bin").words) == ["<unk>", "<s>", "</s>", "a"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kenlm.Model("twice.bin")
    [told] = [str(warning.message) for warning in caught if warning.category is InputWarning]
    assert told.startswith("'/") and "twice.bin' lists 1 1-gram again (<UNK> is <unk>); as in KenLM's" in told
    assert scores("twice.bin", "a", "b") == scores("m.arpa", "a", "c")


def test_a_trie_file_of_kenlm_with_a_word_twice(run):
    """The drop-in says it, once; a file without repeated words says nothing."""
    put("m.arpa", ["-2\t<unk>", *BEGIN, *(f"-3\t{letter}" for letter in "abcdef")], ["-0.5\t<s> a"])
    assert run("convert", "m.arpa", "-o", "m.bin", "--format", "kenlm-trie")[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kenlm.Model("m.bin")
    data, at = bytearray(Path("m.bin").read_bytes()), 88 + 20 + 2 * 8 + 4 + 8  # the sorted hashes, after their number
    words = data[data.rindex(b"<unk>\0") :].split(b"\0")[:-1]
    first = next(v for v in range(1, len(words)) if len(words[v]) == len(words[v + 1]) == 1)
    data[at + 8 * first : at + 8 * first + 8] = data[at + 8 * first - 8 : at + 8 * first]
    place = len(data) - sum(len(word) + 1 for word in words[first + 1 :])
    data[place : place + 1] = words[first]
    Path("twice.bin").write_bytes(data)
    with pytest.warns(InputWarning, match=r"twice.bin' lists 1 1-gram again") as caught:
        kenlm.Model("twice.bin")
    assert len(caught) == 1


def test_a_bad_lattice_does_not_stop_others(run):
    put("m.arpa", ["-2\t<unk>", *BEGIN, "-3\ta", "-4\tb"], ["-0.5\t<s> a"])
    Path("l.lat").write_text("one\n0 1 a 1,1,\n1\n\ntwo\n0 1 a\n\nthree\n0 1 b nan,1,\n1\n\nfour\n0 1 b 2,2,\n1\n\n")
    with pytest.warns(InputWarning, match=r"2 of 4 lattices or files are left out; .*the lattice at line 5"):
        status, out = run("rescore", "l.lat", "--lm", "m.arpa", "--lattices", "kaldi", "-o", "n.txt")
    assert status == 0, out
    assert [line.split(" ||| ")[:2] for line in Path("n.txt").read_text().splitlines()] == [["one", "a"], ["four", "b"]]
    Path("nan.lat").write_text("three\n0 1 b nan,1,\n1\n\n")
    status, out = run("rescore", "nan.lat", "--lm", "m.arpa", "--lattices", "kaldi", "-o", "n2.txt")
    assert status == 2 and "'0 1 b nan,1,' has the cost nan; a cost is a number" in out


@pytest.mark.parametrize(
    ("labels", "blank"),
    [
        (["<blank>", "a", "b", " "], 0),
        (["a", "b", " ", "<BLK>"], 3),
        (["<pad>", "<blk>", "a", "|"], 1),
        (["-", "|", "a", "b"], 0),
        (["-", "a", "b", " "], 4),  # a hyphen: a blank is added
        (["", "<blank>", "a"], 0),
        (["[PAD]", "a", "-", "|"], 0),
    ],
)
def test_labels_of_the_ctc_blank(labels, blank):
    from mgpu_ngram.engine.states.ctc_tokens import read_labels

    texts = read_labels(labels).texts
    assert texts[blank] == "" and len(texts) == max(len(labels), blank + 1)


def test_gzip_of_anything_but_text_is_an_error_of_kenlm(tmp_path):
    path = tmp_path / "m.arpa.gz"
    path.write_bytes(gzip.compress(b"\x00\x01 nothing"))
    with pytest.raises(OSError, match="Cannot read model"):
        kenlm.Model(str(path))
    with pytest.raises(InputError):
        open_model(path)
