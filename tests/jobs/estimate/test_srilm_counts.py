"""Models of counts of SRILM's ngram-count equal those of the counted text, bit for bit; counts are written back."""

import gzip
import itertools
import json

import numpy as np
import pytest

import mgpu_ngram as ng
from mgpu_ngram import cli
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.estimate.run import EstimateConfig
from tests.support.srilm_models import LINES, MODELS

SMOOTHING = {"smoothing": "absolute", "discount": [0.6], "interpolate": True}
# ngram-count -text LINES -order 2 -write -: the first lines, in its order
SRILM_HEAD = "<s>\t6\n<s> the\t4\n<s> a\t2\nthe\t7\nthe cat\t4\nthe mat\t2\nthe dog\t1\ncat\t4\n"


def random_lines(count, words=30):
    rng = np.random.default_rng(0)
    return [" ".join(f"w{w}" for w in rng.zipf(1.4, rng.integers(1, 14)).clip(1, words)) for _ in range(count)]


def counts_of(lines, order):
    """Return the counts file of lines, as ngram-count writes it: each n-gram before those that it begins."""
    counts = {}
    for line in lines:
        marked = ["<s>", *line.split(), "</s>"]
        for n in range(1, order + 1):
            for gram in zip(*(marked[i:] for i in range(n)), strict=False):
                counts[gram] = counts.get(gram, 0) + 1
    return "".join(f"{' '.join(gram)}\t{count}\n" for gram, count in sorted(counts.items()))


@pytest.fixture
def model_of(model_bytes, tmp_path, part_tokens, monkeypatch):
    """Return a function: the bytes of a model of text, a list of lines, or of a counts file."""

    def run(source, shards=1, cluster=None, **options):
        part_tokens(3000 // shards)
        path = tmp_path / "input"
        if isinstance(source, list):
            path.write_text("".join(line + "\n" for line in source))
            given = {"corpus": [str(path)]}
        else:
            path.write_bytes(source if isinstance(source, bytes) else source.encode())
            given = {"counts": str(path)}
        return model_bytes(EstimateConfig(**given, **options), cluster)

    return run


@pytest.mark.parametrize(
    "options", [SMOOTHING, {"smoothing": "good-turing", "closed": True}, {"exact_discounts": True}]
)
@pytest.mark.filterwarnings("ignore:Good-Turing")
def test_the_model_of_the_text(options, model_of):
    """Plain and compressed, in any order of lines, in one part or several, of lower order."""
    lines, options = random_lines(300), {"order": 3, "discount_fallback": None, **options}
    if options["discount_fallback"] is None and "smoothing" not in options:
        options["discount_fallback"] = []
    expected, counts = model_of(lines, **options), counts_of(lines, 4)
    assert model_of(counts, **options) == expected
    shuffled = "\n\n".join(reversed(counts.splitlines())).replace(" ", "  ").replace("\t", " \t ").encode()
    assert model_of(gzip.compress(shuffled), **options) == expected
    assert model_of(counts, shards=6, **options) == expected


@pytest.mark.parametrize("shards", [1, 2, 6])
def test_discounts_are_exact(shards, model_of):
    """A file of counts does not say which word came last, on which lmplz's slip depends."""
    lines, options = random_lines(60, 8), {"order": 4, "discount_fallback": []}
    expected = model_of(lines, exact_discounts=True, **options)
    assert model_of(lines, **options) != expected
    assert model_of(counts_of(lines, 4), shards=shards, **options) == expected


def test_counts_of_one_n_gram_add_up(model_of):
    counts = counts_of(LINES, 2)
    halves = counts.replace("the\t7\n", "the\t4\nthe\t3\n").replace("the cat\t4\n", "the cat\t0\nthe cat\t4\n")
    assert halves != counts and model_of(halves, **SMOOTHING) == model_of(counts, **SMOOTHING)


def test_counts_without_begin(model_of):
    """<s> needs no 1-gram."""
    options, counts = {"order": 2, **SMOOTHING}, counts_of(LINES, 2)
    without = "".join(line for line in counts.splitlines(True) if not line.startswith("<s>\t"))
    assert model_of(without, **options) == model_of(counts, **options)


def test_ngrams_over_the_ends_of_sentences_are_left_out(model_of):
    options, counts = {"order": 2, **SMOOTHING}, counts_of(LINES, 2)
    assert model_of(counts + "</s> the\t2\nthe <s>\t1\n", **options) == model_of(counts, **options)


def test_a_vocabulary(model_of, tmp_path):
    """Counts of words outside add up to those of <unk>."""
    (tmp_path / "words").write_text("w1 w2 w3 w7 w99")
    lines = random_lines(200)
    for options in itertools.product((False, True), (1, 5)):
        how = {**SMOOTHING, "order": 3, "vocabulary": str(tmp_path / "words"), "closed": options[0]}
        assert model_of(counts_of(lines, 3), shards=options[1], **how) == model_of(lines, **how)


@pytest.mark.slow
def test_on_two_processes(start, device, model_of):
    if device == "gpu":
        pytest.skip("once is enough")
    counts = counts_of(random_lines(300), 3)
    assert model_of(counts, 6, start(2), **SMOOTHING) == model_of(counts, **SMOOTHING)


def test_the_order_is_that_of_the_counts(tmp_path):
    (tmp_path / "counts").write_text(counts_of(LINES, 3))
    assert ng.estimate(ng.SrilmCounts(tmp_path / "counts"), device="cpu", **SMOOTHING).order == 3
    assert ng.estimate(ng.SrilmCounts(tmp_path / "counts"), 2, device="cpu", **SMOOTHING).order == 2


@pytest.mark.parametrize(
    "counts, message",
    [
        ("a\t2\n\nb c\n", "line 3 of .* ends with 'c', which is not a count"),
        ("7\n", "line 1 of .* has no count after its word"),
        ("a\t2.5\n", "line 1 of .* has the count 2.5, but counts must be whole numbers"),
        ("a\t1e3\n", "line 1 of .* has the count 1e3, but counts must be whole numbers"),
        ("a\t-1\n", "line 1 of .* ends with '-1', which is not a count"),
        ("a\t1234567890123456789\n", "must have 18 digits or fewer"),
        ("\n\n", "has no n-grams"),
        ("a b\t2\n", "has no 1-grams; a model needs the counts of all orders"),
        ("<s>\t2\n<s> a\t2\n", "has no 1-grams"),
        ("a\t2\na x\t1\n", "line 2 of .* has the word 'x', which is not among the 1-grams"),
        ("a\t2\nb\t2\na b\t3\n", "says that 'a b' occurs 3 times and 'a' 2 times"),
        ("a\t2\nb\t2\na b\t1\nb a\t1\na b a\t1\na a b\t1\n", "says that 'a a b' occurs 1 times and 'a a' 0 times"),
    ],
)
def test_bad_files(counts, message, model_of):
    with pytest.raises(InputError, match=message) as found:
        model_of(counts, order=max(2, len(counts.splitlines()[-1].split()) - 1), **SMOOTHING)
    assert "\n" not in str(found.value)


def test_refused_sources(model_of, tmp_path):
    with pytest.raises(InputError, match="order is 4 but .* has orders up to 2"):
        model_of(counts_of(LINES, 2), order=4, **SMOOTHING)
    (tmp_path / "text").write_text("a b\n")
    counts = ng.count(tmp_path / "text", 2, output=tmp_path / "counted", sentence_markers=True, device="cpu")
    with pytest.raises(InputError, match="vocabulary is for text and for counts of SRILM"):
        ng.estimate(counts, device="cpu", vocabulary=str(tmp_path / "text"), **SMOOTHING)
    with pytest.raises(InputError, match="truncated gzip"):
        model_of(gzip.compress(counts_of(LINES, 2).encode())[:60], **SMOOTHING)


def run(*arguments):
    return cli.main([*map(str, arguments)])


def test_commands(tmp_path, capsys):
    """Text to counts to SRILM's format to a model equals SRILM's model; a YAML job; plan; info."""
    (tmp_path / "text").write_text("".join(line + "\n" for line in LINES))
    assert run("count", tmp_path / "text", "-o", tmp_path / "counted", "--order", 3, "--sentence-markers") == 0
    capsys.readouterr()
    assert run("export", tmp_path / "counted", "--format", "srilm") == 0
    counts = capsys.readouterr().out
    assert sorted(counts.splitlines()) == sorted(counts_of(LINES, 3).splitlines())
    assert {*SRILM_HEAD.splitlines()} <= {*counts.splitlines()}
    assert run("export", tmp_path / "counted", "--format", "srilm", "--order", 2) == 0
    assert counts.startswith(capsys.readouterr().out)
    (tmp_path / "srilm.counts").write_text(counts)
    flags = ["--smoothing", "witten-bell", "--interpolate", "--closed", "--workers", 0]
    assert run("estimate", "--from-counts", tmp_path / "srilm.counts", "-o", tmp_path / "m.arpa", *flags) == 0
    assert "with smoothing" not in capsys.readouterr().err
    found = [line.split("\t") for line in (tmp_path / "m.arpa").read_text().splitlines() if "\t" in line]
    options, arpa = MODELS["-order 3 -wbdiscount -interpolate -gt3min 1"]
    assert options["closed"] and len(found) == len([line for line in arpa.splitlines() if "\t" in line])
    job = {
        "output": str(tmp_path / "out"), "cluster": {"workers": 0},
        "jobs": [{"estimate": {"counts": str(tmp_path / "srilm.counts"), "format": "arpa", "smoothing": "witten-bell",
                               "interpolate": True, "closed": True}}],
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert run("plan", tmp_path / "job.yaml") == 0
    assert "to a model with smoothing witten-bell" in capsys.readouterr().out
    assert run("run", tmp_path / "job.yaml") == 0
    [made] = (tmp_path / "out").rglob("*.arpa")
    assert made.read_bytes() == (tmp_path / "m.arpa").read_bytes()
    assert run("info", made.parent) == 0
    assert "a model with smoothing witten-bell of order 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--order is missing"),
        (["--format", "srilm", "--top", 3], "--top is not for --format srilm"),
        (["--format", "srilm", "--order", 9], "has orders 1 to 2, not 9"),
    ],
)
def test_bad_exports(flags, message, tmp_path, capsys):
    (tmp_path / "text").write_text("a b\n")
    run("count", tmp_path / "text", "-o", tmp_path / "counted", "--order", 2)
    assert run("export", tmp_path / "counted", *flags) == 2
    assert message in capsys.readouterr().err
