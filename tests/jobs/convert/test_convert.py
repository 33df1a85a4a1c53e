"""Model files made from ARPA files and from other model files: their contents, their scores, and refusals."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

from mgpu_ngram import kenlm
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import InputError, RunError
from mgpu_ngram.core.models.model_file import load_model
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.jobs.context import PlanContext, RunContext
from mgpu_ngram.jobs.convert import run as convert
from mgpu_ngram.jobs.convert.run import ConvertConfig, build, plan, run
from tests.support.slow_cases import first_fast

DEFAULTS = {
    "index": None,
    "format": "safetensors",
    "fanout": None,
    "quantize": None,
    "quantize_backoff": None,
    "pointer_bits": None,
    "multiplier": 1.5,
    "rest": [],
    "words": True,
    "unk_log10": -100,
    "need_markers": True,
    "positive_to_zero": False,
    "backoff": True,
}
ARPA = r"""\data\
ngram 1=5
ngram 2=6
ngram 3=2

\1-grams:
-99	<s>	-0.5
-1	<unk>
-1.5	</s>
-0.5	a	-0.25
-0.75	b	-2

\2-grams:
-0.25	<s> a	-0.125
-0.5	a b	0
-0.375	a a	-0.375
-1.25	a </s>
-1.75	b a	-0.625
-2	b b	-0.625

\3-grams:
-0.0625	<s> a b
-0.03125	a a </s>

\end\
"""
TEXT = ["a b", "a a", "b a a", "b b", "c a b a"]


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(ARPA)
    return str(path)


def scores(path):
    model = kenlm.Model(str(path))
    return [list(model.full_scores(line)) for line in TEXT]


@pytest.mark.parametrize("index", ["btree", "edge", "both"])
def test_contents_of_a_model_file(index, arpa, device, tmp_path):
    output = tmp_path / "new" / "folder" / "m.safetensors"
    result = build(ConvertConfig(arpa, index), output, device, threads=2)
    assert (result.path, result.order, result.counts) == (output, 3, [5, 6, 2])
    assert result.size_bytes == output.stat().st_size and result.bytes_per_ngram == result.size_bytes / 13
    assert set(result.seconds) == {"read", "build", "index", "write"} and min(result.seconds.values()) >= 0
    model = load_model(output)
    assert model.fingerprint == result.fingerprint and (model.edges is None) == (index == "btree")
    assert model.trie.fanout == 32 and list(model.words) == ["<unk>", "<s>", "</s>", "a", "b"]
    assert scores(output) == scores(arpa)
    assert list(output.parent.iterdir()) == [output]


def test_edge_tables_and_fanouts_of_model_files_change(arpa, device, tmp_path):
    """A model file gives the same output as the ARPA file."""
    names = [("btree", 32), ("edge", 32), ("btree", 4), ("edge", 128)]
    settings = [{"index": index, "fanout": fanout} for index, fanout in names]
    for i, config in enumerate(settings):
        build(ConvertConfig(arpa, **config), tmp_path / f"{i}", device)
        for j in range(i):
            build(ConvertConfig(str(tmp_path / f"{j}"), **config), tmp_path / "again", device, overwrite=True)
            assert (tmp_path / "again").read_bytes() == (tmp_path / f"{i}").read_bytes()
            build(ConvertConfig(str(tmp_path / f"{i}"), **settings[j]), tmp_path / "again", device, overwrite=True)
            assert (tmp_path / "again").read_bytes() == (tmp_path / f"{j}").read_bytes()


def test_properties_of_a_model_file_are_kept(arpa, device, tmp_path):
    """Unless an option changes them."""
    build(ConvertConfig(arpa, "edge", 4), tmp_path / "m", device)
    for asked, wanted in (
        ({}, {"index": "edge", "fanout": 4}),
        ({"quantize": 4}, {"index": "edge", "fanout": 4, "quantize": 4}),
        ({"fanout": 32}, {"index": "edge"}),
        ({"index": "btree"}, {"fanout": 4}),
        ({"backoff": False}, {"fanout": 4, "backoff": False}),
    ):
        build(ConvertConfig(str(tmp_path / "m"), **asked), tmp_path / "made", device, overwrite=True)
        build(ConvertConfig(arpa, **wanted), tmp_path / "wanted", device, overwrite=True)
        assert (tmp_path / "made").read_bytes() == (tmp_path / "wanted").read_bytes()
    model = load_model(tmp_path / "m")
    assert model.trie.fanout == 4 and model.edges


@pytest.mark.parametrize("index", ["btree", "edge"])
def test_quantised_by_hand(index, arpa, device, tmp_path):
    """Two bits: four centres of the six bigrams' probabilities; for their backoffs 0 and two more."""
    build(ConvertConfig(arpa, index, quantize=2), tmp_path / "m", device)
    # Bins: -2 | -1.75 -1.25 | -0.5 | -0.375 -0.25; of backoffs -0.625 -0.625 | -0.375 -0.125
    changes = {
        "-0.25	<s> a	-0.125": "-0.3125	<s> a	-0.25",
        "-0.375	a a	-0.375": "-0.3125	a a	-0.25",
        "-1.25	a </s>": "-1.5	a </s>",
        "-1.75	b a": "-1.5	b a",
    }
    text = ARPA
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "expected.arpa").write_text(text)
    assert scores(tmp_path / "m") == scores(tmp_path / "expected.arpa") != scores(arpa)
    model = load_model(tmp_path / "m")
    assert model.trie.quantized and model.trie.prob_G.dtype == np.uint8
    build(ConvertConfig(str(tmp_path / "m")), tmp_path / "same", device)
    assert load_model(tmp_path / "same").fingerprint == model.fingerprint


def test_lossless_codes(arpa, device, tmp_path):
    build(ConvertConfig(arpa, quantize=9), tmp_path / "m", device)
    assert load_model(tmp_path / "m").trie.prob_G.dtype == np.uint16
    assert scores(tmp_path / "m") == scores(arpa)


def test_without_backoffs(arpa, device, tmp_path):
    build(ConvertConfig(arpa, backoff=False), tmp_path / "m", device)
    model, whole = load_model(tmp_path / "m"), build(ConvertConfig(arpa), tmp_path / "whole", device)
    assert len(model.trie.backoff_M) == 0 and not model.trie.has_backoffs and model.fingerprint != whole.fingerprint
    expected = load_model(whole.path).trie.arrays()
    assert all(np.array_equal(a, expected[name]) for name, a in model.trie.arrays().items() if name != "backoff_M")
    with pytest.raises(OSError, match="Cannot read model .*has no backoffs, which scores need; make it again without"):
        kenlm.Model(str(tmp_path / "m"))
    with pytest.raises(InputError, match="m has no backoffs, which scores need; make it again without --no-backoff"):
        build(ConvertConfig(str(tmp_path / "m"), "edge"), tmp_path / "edges", device)
    build(ConvertConfig(str(tmp_path / "m"), quantize=4), tmp_path / "q", device)
    build(ConvertConfig(arpa, quantize=4, backoff=False), tmp_path / "r", device)
    assert (tmp_path / "q").read_bytes() == (tmp_path / "r").read_bytes()


def test_a_quantised_model_is_not_quantised_again(arpa, tmp_path):
    build(ConvertConfig(arpa, quantize=8), tmp_path / "m")
    with pytest.raises(InputError, match="m is already quantised; leave quantize out, or give the original model"):
        build(ConvertConfig(str(tmp_path / "m"), quantize=4), tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_an_output_that_exists(arpa, tmp_path):
    output = tmp_path / "m"
    build(ConvertConfig(arpa), output)
    before = output.read_bytes()
    with pytest.raises(InputError, match="exists; add --overwrite"):
        build(ConvertConfig("nowhere.arpa"), output)
    assert output.read_bytes() == before
    build(ConvertConfig(str(output), "edge"), output, overwrite=True)  # also the input itself
    assert load_model(output).edges and scores(output) == scores(arpa)
    with pytest.raises(InputError, match="model.arpa exists and is not a model file; delete it"):
        build(ConvertConfig(arpa), arpa, overwrite=True)
    with pytest.raises(InputError, match="cannot write in .*/m/deeper: Not a directory; give another output path"):
        build(ConvertConfig(arpa), output / "deeper" / "m")


def test_an_unwritable_folder_is_found_before_work(arpa, monkeypatch):
    monkeypatch.setattr(convert, "open_model", lambda *_, **__: pytest.fail("the model was read"))
    for output in "/proc/m", "/proc/deeper/m":
        with pytest.raises(InputError, match="^cannot write in /proc.*; give another output path$"):
            build(ConvertConfig(arpa), output)


def test_a_failure_leaves_no_file(arpa, tmp_path, full_disk):
    full_disk(100, "m.safetensors")
    with pytest.raises(RunError, match="cannot write .*m.safetensors"):
        build(ConvertConfig(arpa), tmp_path / "out" / "m.safetensors")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def executor():
    with contextlib.closing(LocalExecutor("cpu", 1)) as made:
        yield made


def test_as_a_job(arpa, executor, tmp_path):
    config, output = ConvertConfig(arpa, "edge", quantize=8), tmp_path / "out"
    assert plan(config, PlanContext(2, "cpu", 1 << 30)) == {
        "job": "convert",
        "model": arpa,
        "format": "safetensors",
        "index": "edge",
        "device": "cpu",
    }
    other = ConvertConfig(arpa, format="arpa")
    assert plan(other, PlanContext(2, "cpu", 1 << 30)) == {
        "job": "convert",
        "model": arpa,
        "format": "arpa",
        "device": "cpu",
    }
    result = run(config, RunContext(executor, output))
    assert sorted(path.name for path in output.iterdir()) == ["manifest.json", "model.safetensors"]
    assert result.path == output / "model.safetensors" and load_model(result.path).edges
    named = json.loads(json.dumps(result.as_json()))
    assert (named["path"], named["order"], named["counts"]) == (str(result.path), 3, [5, 6, 2])
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["orders"] == [5, 6, 2] and manifest["fingerprint"] == load_model(result.path).fingerprint
    assert manifest["options"] == DEFAULTS | {"index": "edge", "quantize": 8}
    assert plan(ConvertConfig(arpa), PlanContext(2, "cpu", 1 << 30))["index"] == "auto"
    with pytest.raises(InputError, match="exists; add --overwrite"):
        run(config, RunContext(executor, output))
    run(ConvertConfig(arpa), RunContext(executor, output, overwrite=True))
    assert load_model(output / "model.safetensors").edges is None


@pytest.mark.parametrize("bomb", first_fast(["build.after", "build.before"]))
@pytest.mark.timeout(120)
def test_the_worker_dies(bomb, arpa, executor, start, hooks, hooks_folder, contents, tmp_path):
    """Before it has made the model, or after it has written the file."""
    run(ConvertConfig(arpa), RunContext(executor, tmp_path / "here"))
    hooks(**{bomb: ""})
    run(ConvertConfig(arpa), RunContext(start(1), tmp_path / "there"))
    assert not (hooks_folder / bomb).exists(), "the worker died"
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fanout": 3}, "fanout is 3 but must be 4 to 128"),
        ({"fanout": 129}, "fanout is 129 but must be 4 to 128"),
        ({"quantize": 1}, "quantize is 1 bits but must be 2 to 16; leave it out for floats"),
        ({"quantize": 17}, "quantize is 17 bits"),
        ({"index": "edge", "backoff": False}, "index edge holds backoffs but backoff is false; make index btree, or"),
        ({"index": "both", "backoff": False}, "index both holds backoffs"),
        ({"index": "trie"}, "index is 'trie'"),
        ({"format": "kenlm-probing", "multiplier": 1}, "multiplier is 1 but must be a number above 1"),
        ({"format": "arpa", "multiplier": 2}, "multiplier is 2 but format arpa has no tables; leave it out"),
        ({"format": "kenlm-trie", "quantize": 26}, "quantize is 26 bits but must be 1 to 25; leave it out for floats"),
        (
            {"format": "kenlm-trie", "quantize": 1},
            "quantize_backoff is 1 bits but must be 2 to 25, because KenLM reserves two",
        ),
        ({"format": "kenlm-trie", "quantize_backoff": 8}, "quantize_backoff is 8 but needs format kenlm-trie and quan"),
        ({"quantize": 8, "quantize_backoff": 8}, "quantize_backoff is 8 but needs"),
        ({"format": "kenlm-trie", "pointer_bits": 256}, "pointer_bits is 256 but must be 0 to 255, with format kenlm-"),
        ({"format": "kenlm-probing", "pointer_bits": 2}, "pointer_bits is 2"),
        ({"format": "kenlm-trie", "rest": ["m"]}, "rest is given but format kenlm-trie has no rest costs; make format"),
        ({"need_markers": False}, "need_markers is false but format safetensors needs <s> and </s>; leave it out"),
        ({"unk_log10": 1}, "unk_log10 is 1 but must be 0 or less, a log10 probability"),
        ({"words": False}, "words is false but format safetensors needs words; leave it out"),
        ({"name": "a/b"}, "name is 'a/b' but must be a plain folder name"),
        ({"name": ".."}, "name is"),
        ({"backoff": "no"}, "backoff is 'no' but must be of type bool"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(InputError, match=message):
        fill(ConvertConfig, {"model": "m"} | settings, "convert")


def test_settings_at_their_limits():
    trie = {"format": "kenlm-trie"}
    for settings in (
        {"fanout": 4, "quantize": 2}, {"fanout": 128, "quantize": 16}, {"quantize": "auto"}, trie | {"quantize": 25},
        trie | {"quantize": 1, "quantize_backoff": 2, "pointer_bits": 0}, trie | {"pointer_bits": 255, "multiplier": 2},
    ):  # fmt: skip
        fill(ConvertConfig, {"model": "m"} | settings, "convert")
    assert dataclasses.asdict(ConvertConfig("m")) == {"model": "m", "name": "convert"} | DEFAULTS


@pytest.mark.parametrize("format", ["arpa", "kenlm-probing", "kenlm-trie"])
def test_other_formats(arpa, format, tmp_path):
    """The files are models, from which the same formats come again."""
    name = "again.arpa" if format == "arpa" else "again.binary"
    result = build(ConvertConfig(arpa, format=format), tmp_path / name, threads=2)
    assert result.size_bytes == (tmp_path / name).stat().st_size and result.counts == [5, 6, 2]
    assert scores(tmp_path / name) == scores(arpa)
    build(ConvertConfig(str(tmp_path / name)), tmp_path / "m.safetensors")
    build(ConvertConfig(str(tmp_path / "m.safetensors"), format=format), tmp_path / f"new.{name}")
    assert (tmp_path / f"new.{name}").read_bytes() == (tmp_path / name).read_bytes()
    with pytest.raises(InputError, match=f"{name} exists; add --overwrite"):
        build(ConvertConfig(arpa, format=format), tmp_path / name)
    build(ConvertConfig(arpa, format=format), tmp_path / name, overwrite=True)
    other = tmp_path / "other.txt"
    other.write_text("of the\n")
    with pytest.raises(InputError, match="other.txt exists and is not (an ARPA file|a KenLM binary model); delete it"):
        build(ConvertConfig(arpa, format=format), other, overwrite=True)
    with pytest.raises(InputError, match=r"its name ends with .safetensors; name it .*\.(arpa|binary)$"):
        build(ConvertConfig(arpa, format=format), tmp_path / "new.safetensors")


def test_a_run_with_another_format(arpa, tmp_path):
    config = ConvertConfig(arpa, format="kenlm-trie")
    result = run(config, RunContext(LocalExecutor(), tmp_path / "out"))
    assert result.path == tmp_path / "out" / "model.binary" and scores(result.path) == scores(arpa)


def test_an_arpa_file_without_the_ngrams_that_were_filled_in(arpa, tmp_path):
    text = ARPA.replace("ngram 2=6", "ngram 2=5").replace("-0.5\ta b\t0\n", "")
    (tmp_path / "model.arpa").write_text(text)
    build(ConvertConfig(arpa, format="arpa"), tmp_path / "new.arpa")
    assert sorted((tmp_path / "new.arpa").read_text().split("\n")) == sorted(
        text.replace("<s> a\t-0.125", "<s> a\t-0.125").replace("-1.25\ta </s>\n", "-1.25\ta </s>\t0\n")
        .replace("-1.5\t</s>\n", "-1.5\t</s>\t0\n").replace("-1\t<unk>\n", "-1\t<unk>\t0\n").split("\n")
    )  # fmt: skip
    assert scores(tmp_path / "new.arpa") == scores(arpa)


@pytest.mark.parametrize(("name", "value"), [("index", "edge"), ("fanout", 8), ("quantize", 8), ("backoff", False)])
def test_settings_that_other_formats_lack(arpa, name, value):
    with pytest.raises(
        InputError, match=f"{name} is {str(value).lower()} but format arpa (has no such option|needs backoffs); "
    ):
        ConvertConfig(arpa, format="arpa", **{name: value})
